#include "observe/metrics_csv.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "observe/metric_keys.h"
#include "observe/metrics_reader.h"

namespace mtrain::observe {

namespace {

constexpr size_t kPiece = size_t{1} << 16;  // bytes that are written at once

struct Place {
  int64_t step, begin, end;  // begin and end: bytes of the file
};

void cut_from(std::vector<Place>& places, int64_t step) {
  while (!places.empty() && places.back().step >= step) places.pop_back();
}

// The places of a run's records in its file, without those of steps that were repeated later.
struct Index {
  std::vector<Place> steps, evaluations;
  std::set<std::string, std::less<>> keys;

  explicit Index(const RunFile& run) {
    RecordStream stream(run.path, {.record = [this](const MetricsRecord& record, int64_t begin,
                                                    int64_t end) { add(record, begin, end); },
                                   .restart = [this] { steps = evaluations = {}, keys = {}; }});
    stream.poll();
    warn_of_damage(stream);
    if (steps.empty() && evaluations.empty()) throw no_records(run.path);
  }

  void add(const MetricsRecord& record, int64_t begin, int64_t end) {
    for (const auto& [key, value] : record.values) keys.insert(key);
    cut_from(evaluations, record.step);
    if (!record.evaluation) cut_from(steps, record.step);
    (record.evaluation ? evaluations : steps).push_back({record.step, begin, end});
  }
};

// Sorts keys in the order of the page of keys; keys that it lacks come last.
std::vector<std::string> in_order(const std::set<std::string, std::less<>>& keys) {
  std::vector<std::string> order(keys.begin(), keys.end());
  const auto place = [](const std::string& key) {
    const MetricKey* known = find_metric_key(key);
    return known ? known - metric_keys().data() : std::ptrdiff_t(metric_keys().size());
  };
  std::ranges::stable_sort(order, {}, place);
  return order;
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

class Rows {
 public:
  Rows(const RunFile& run, bool named, const std::vector<std::string>& keys)
      : file_(run.path), name_(named ? quoted(run.name) + "," : ""), keys_(keys) {}

  std::string row(const Place* step, const Place* evaluation) const {
    const int64_t n = (step ? step : evaluation)->step;
    const std::optional<MetricsRecord> of_step = read(step), of_evaluation = read(evaluation);
    std::string out = fmt::format("{}{}", name_, n);
    for (const std::string& key : keys_) {
      out += ',';
      for (const auto* record : {&of_step, &of_evaluation}) {
        if (!*record) continue;
        const auto value = (*record)->values.find(key);
        if (value == (*record)->values.end()) continue;
        if (std::isfinite(value->second)) out += fmt::format("{}", value->second);
        break;
      }
    }
    return out + "\n";
  }

 private:
  std::optional<MetricsRecord> read(const Place* place) const {
    if (!place) return std::nullopt;
    std::string line(size_t(place->end - place->begin), '\0');
    try {
      file_.read(place->begin, line.size(), line.data(), "metrics");
      MetricsRecord record = parse_metrics_record(line);
      if (record.step == place->step) return record;
    } catch (const UserError&) {  // reported below
    }
    throw RunError(fmt::format("{} has changed while it was read", file_.path().string()),
                   "run the command again");
  }

  RandomAccessFile file_;
  std::string name_;
  const std::vector<std::string>& keys_;
};

}  // namespace

void write_metrics_csv(const std::vector<RunFile>& runs, const CsvOptions& options,
                       const std::function<void(std::string_view)>& write) {
  std::vector<Index> indices;
  std::set<std::string, std::less<>> all;
  int64_t from = options.from.value_or(std::numeric_limits<int64_t>::min()), last = 0;
  for (const RunFile& run : runs) {
    Index& index = indices.emplace_back(run);
    all.insert(index.keys.begin(), index.keys.end());
    for (const auto* places : {&index.steps, &index.evaluations})
      if (!places->empty()) last = std::max(last, places->back().step);
  }
  if (options.last) from = std::max(from, last - *options.last + 1);
  for (Index& index : indices)
    for (auto* places : {&index.steps, &index.evaluations})
      std::erase_if(*places, [&](const Place& place) { return place.step < from; });
  std::vector<std::string> keys = options.keys;
  for (const std::string& key : keys)
    if (!all.contains(key)) throw unknown_key(key, all);
  if (keys.empty())
    keys = in_order(all);
  else if (std::ranges::count(keys, "time") == 0 && all.contains("time"))
    keys.insert(keys.begin(), "time");
  std::erase(keys, "step");
  const bool named = runs.size() > 1;
  std::string text = named ? "run,step" : "step";
  for (const std::string& key : keys) text += "," + quoted(key);
  text += "\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    const Rows rows(runs[i], named, keys);
    const std::vector<Place>&steps = indices[i].steps, &evaluations = indices[i].evaluations;
    for (size_t s = 0, e = 0; s < steps.size() || e < evaluations.size();) {
      const bool has_step =
          s < steps.size() && (e == evaluations.size() || steps[s].step <= evaluations[e].step);
      const bool has_evaluation =
          e < evaluations.size() && (!has_step || evaluations[e].step == steps[s].step);
      text +=
          rows.row(has_step ? &steps[s++] : nullptr, has_evaluation ? &evaluations[e++] : nullptr);
      if (text.size() < kPiece) continue;
      write(text);
      text.clear();
    }
  }
  write(text);
}

}  // namespace mtrain::observe
