#include "observe/metrics.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "observe/metric_keys.h"

namespace mtrain::observe {

using nlohmann::json;

namespace {

// What a line of the file means to a run that has done some steps.
enum class Line {
  repeated,  // of a step that the run makes again, or damaged
  other,     // it stays
  done,      // the record of a step that the run has done: it stays, with all lines before it
};

Line judge(std::string_view line, int64_t steps_done) {
  json record;
  try {
    record = parse_json(line, "");
  } catch (const UserError&) {
    return Line::repeated;
  }
  if (!record.is_object()) return Line::repeated;
  const auto step = record.find("step");
  if (step == record.end() || !step->is_number_integer()) return Line::other;
  if (step->get<int64_t>() > steps_done) return Line::repeated;
  return record.contains("validation_loss") ? Line::other : Line::done;
}

// Removes the lines that judge() calls repeated, and returns `path`. Steps rise within the file:
// only its end is parsed, since the file of a long run has gigabytes.
const std::filesystem::path& drop_lines(const std::filesystem::path& path, int64_t steps_done) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return path;
  const MappedFile file(path);
  const std::string_view all(reinterpret_cast<const char*>(file.bytes().data()),
                             file.bytes().size());
  const size_t complete = all.rfind('\n') + 1;  // an incomplete last line is torn
  size_t stays = complete;                      // the bytes before it stay
  std::vector<std::string_view> later;          // lines after them that stay, the last one first
  bool drops = complete < all.size();
  for (size_t end = complete; end > 0;) {
    const size_t begin = end < 2 ? 0 : all.rfind('\n', end - 2) + 1;
    const std::string_view line = all.substr(begin, end - begin);
    const Line kind = judge(line, steps_done);
    if (kind == Line::done) break;
    if (kind == Line::other)
      later.push_back(line);
    else
      drops = true;
    stays = end = begin;
  }
  if (!drops) return path;
  AtomicFile shorter(path);
  shorter.write(all.substr(0, stays));
  for (auto line = later.rbegin(); line != later.rend(); ++line) shorter.write(*line);
  shorter.commit();
  return path;
}

// Returns seconds, rounded to milliseconds.
template <class Duration>
double seconds(Duration duration) {
  return double(std::chrono::round<std::chrono::milliseconds>(duration).count()) / 1e3;
}

}  // namespace

MetricsWriter::MetricsWriter(const std::filesystem::path& path, int64_t steps_done)
    : file_(drop_lines(path, steps_done)) {}

void MetricsWriter::write(int64_t step, const std::vector<Metric>& metrics) {
  nlohmann::ordered_json record{{"step", step}};
  const MetricKey* first = nullptr;
  for (const Metric& m : metrics) {
    const MetricKey* key = find_metric_key(m.name);
    MT_CHECK(key && key->record != MetricKey::Record::any, "a metric without a row: {}", m.name);
    if (!first) first = key;
    MT_CHECK(key->record == first->record, "{} and {} in one record", m.name, first->name);
    auto& value = record[std::string(m.name)];
    if (const auto* number = std::get_if<double>(&m.value)) {
      if (std::isfinite(*number)) value = *number;  // else it stays null
    } else {
      std::visit([&](const auto& v) { value = v; }, m.value);
    }
  }
  record["time"] = seconds(std::chrono::system_clock::now().time_since_epoch());
  record["elapsed_s"] = seconds(std::chrono::steady_clock::now() - opened_);
  file_.append(record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
               "\n");
}

}  // namespace mtrain::observe
