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

// Returns whether a line is a complete record, and not of a step that the run repeats.
bool stays(std::string_view line, int64_t steps_done) {
  json record;
  try {
    record = parse_json(line, "");
  } catch (const UserError&) {
    return false;
  }
  if (!record.is_object()) return false;
  const auto step = record.find("step");
  return step == record.end() || !step->is_number_integer() || step->get<int64_t>() <= steps_done;
}

// Removes the lines for which stays() is false, and returns `path`.
const std::filesystem::path& drop_lines(const std::filesystem::path& path, int64_t steps_done) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return path;
  const MappedFile file(path);
  const std::string_view all(reinterpret_cast<const char*>(file.bytes().data()),
                             file.bytes().size());
  std::string kept;
  for (std::string_view rest = all; !rest.empty();) {
    const auto newline = rest.find('\n');
    if (newline == std::string_view::npos) break;  // an incomplete last line
    const auto line = rest.substr(0, newline + 1);
    rest.remove_prefix(line.size());
    if (stays(line, steps_done)) kept += line;
  }
  if (kept.size() != all.size()) write_file_atomic(path, kept);
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
