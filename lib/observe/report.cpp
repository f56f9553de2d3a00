#include "observe/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "observe/envelope.h"
#include "observe/metrics_reader.h"
#include "observe/page_files.h"

namespace mtrain::observe {

namespace {

using nlohmann::ordered_json;

constexpr size_t kMostRanges = 1000;   // of a curve
constexpr size_t kMostPoints = 80000;  // of all curves; a point takes up to 30 bytes of the page
constexpr size_t kPointsOfBox = 2;     // a box of a picture takes as many bytes as two points
constexpr size_t kMostCurves = 200, kLongestKey = 200;  // of a run; bytes
constexpr size_t kMostStarts = 100;                     // at each end of a run's list
constexpr size_t kMostSlowest = 256;                    // ranks of a run
constexpr const char* kSlowest = "compute.busy_ms.max_rank";
constexpr double kClockStep = 2;  // seconds; a smaller change of the clock is not a new start

// The keys that page.js draws. One that ends in a dot stands for all that begin with it.
constexpr std::array kDrawn{"loss",
                            "validation_loss",
                            "tokens_per_s",
                            "grad_norm",
                            "lr",
                            "step_ms",
                            "step_ms.max",
                            "compute.busy_ms",
                            "compute.busy_ms.max",
                            "compute.starved_ms",
                            "memory_peak",
                            "memory_peak.max",
                            "memory_peak.activations",
                            "memory_peak.buffers",
                            "memory_planned",
                            "moe."};

bool is_drawn(std::string_view key) {
  if (key.size() > kLongestKey) return false;
  if (key.starts_with("comm.") && key.ends_with(".exposed_ms")) return true;
  return std::ranges::any_of(kDrawn, [&](std::string_view drawn) {
    return drawn.ends_with('.') ? key.starts_with(drawn) : key == drawn;
  });
}

std::optional<double> value_of(const MetricsRecord& record, const char* key) {
  const auto value = record.values.find(key);
  if (value == record.values.end() || !std::isfinite(value->second)) return {};
  return value->second;
}

// A number that is not finite is null, as in metrics.jsonl.
ordered_json number(std::optional<double> value) {
  return value && std::isfinite(*value) ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json numbers(const std::vector<double>& values) {
  ordered_json all = ordered_json::array();
  for (const double value : values) {
    // Integers are shorter without ".0".
    if (std::isfinite(value) && value == std::floor(value) && std::abs(value) < 1e15)
      all.push_back(int64_t(value));
    else
      all.push_back(number(value));
  }
  return all;
}

// Steps as differences, which are short.
ordered_json differences(const std::vector<int64_t>& steps) {
  ordered_json all = ordered_json::array();
  int64_t before = 0;
  for (const int64_t step : steps) all.push_back(step - std::exchange(before, step));
  return all;
}

// What the page shows of a run.
class ReportRun {
 public:
  explicit ReportRun(const RunFile& run, std::function<void(double)> progress)
      : name_(run.name),
        stream_(run.path, {.record = [this](const MetricsRecord& r, int64_t, int64_t) { take(r); },
                           .restart = [this] { throw_changed(); },
                           .progress = std::move(progress)}) {
    stream_.poll();
    warn_of_damage(stream_);
  }

  bool empty() const { return records_ == 0; }
  size_t curves() const { return curves_.size(); }
  const std::filesystem::path& path() const { return stream_.path(); }

  ordered_json json(size_t most_ranges) {
    ordered_json out{{"name", name_},
                     {"last_step", last_step_},
                     {"total_steps", total_steps_},
                     {"last", ordered_json::object()},
                     {"notes", notes()},
                     {"starts", ordered_json::array()},
                     {"slowest", ordered_json::array()},
                     {"series", ordered_json::object()}};
    for (const Start& start : starts_)
      out["starts"].push_back(
          {{"step", start.step}, {"time", number(start.time)}, {"gap_s", number(start.gap_s)}});
    for (const auto& [rank, steps] : slowest_most_often())
      out["slowest"].push_back({{"rank", rank}, {"steps", steps}});
    for (auto& [key, curve] : curves_) {
      if (curve.empty()) continue;
      curve.shrink_to(most_ranges);
      const Series points = curve.points();
      out["last"][key] = number(points.values.back());
      out["series"][key] = {{"x", differences(points.steps)},
                            {"y", numbers(points.values)},
                            {"count", curve.count()},
                            {"nan", curve.not_finite()}};
    }
    return out;
  }

 private:
  struct Start {
    int64_t step = 0;  // the first one
    std::optional<double> time, gap_s;
  };

  [[noreturn]] void throw_changed() const {
    throw RunError(fmt::format("{} has changed while it was read", stream_.path().string()),
                   "run the command again");
  }

  void take(const MetricsRecord& record) {
    ++records_;
    if (record.step <= last_step_ && !record.evaluation)
      for (auto& [key, curve] : curves_) curve.cut_from(record.step);
    last_step_ = record.evaluation ? std::max(last_step_, record.step) : record.step;
    find_start(record);
    size_t place = 0;
    for (const auto& [key, value] : record.values) {
      Envelope* const curve = curve_at(place++, key);
      if (!curve) continue;
      if (record.evaluation) curve->cut_from(record.step);
      curve->add(record.step, value);
    }
    if (const auto total = value_of(record, "total_steps"); total && *total < 1e15)
      total_steps_ = int64_t(*total);
    if (const auto rank = value_of(record, kSlowest); rank && *rank >= 0 && *rank < 1e9)
      ++slowest_[int64_t(*rank)];
  }

  // Returns the curve of the key at this place of a record; null if it is not drawn. Most records
  // have the same keys at the same places.
  Envelope* curve_at(size_t place, const std::string& key) {
    if (place >= places_.size()) places_.resize(place + 1);
    Place& known = places_[place];
    if (known.key != key) known = {.key = key, .curve = find_curve(key)};
    return known.curve;
  }

  Envelope* find_curve(const std::string& key) {
    if (!is_drawn(key)) return nullptr;
    if (const auto curve = curves_.find(key); curve != curves_.end()) return &curve->second;
    lacks_curves_ = lacks_curves_ || curves_.size() >= kMostCurves;
    return curves_.size() < kMostCurves ? &curves_.try_emplace(key, kMostRanges).first->second
                                        : nullptr;
  }

  // Returns the ranks that were slowest most often, by rank.
  std::map<int64_t, int64_t> slowest_most_often() const {
    std::vector<std::pair<int64_t, int64_t>> ranks(slowest_.begin(), slowest_.end());
    std::ranges::stable_sort(ranks, std::greater(), &std::pair<int64_t, int64_t>::second);
    ranks.resize(std::min(ranks.size(), kMostSlowest));
    return {ranks.begin(), ranks.end()};
  }

  // A new process begins to count its time again.
  void find_start(const MetricsRecord& record) {
    const auto time = value_of(record, "time"), elapsed = value_of(record, "elapsed_s");
    if (!time || !elapsed) return;
    const double began = *time - *elapsed;
    const bool first = !time_;
    if (first || *elapsed < elapsed_ || began > began_ + kClockStep) {
      Start start{.step = record.step, .time = began};
      if (!first && *time >= *time_) start.gap_s = *time - *time_;
      starts_.push_back(start);
      ++starts_count_;
      if (starts_.size() > 2 * kMostStarts) starts_.erase(starts_.begin() + kMostStarts);
    }
    time_ = time, elapsed_ = *elapsed, began_ = began;
  }

  ordered_json notes() const {
    ordered_json notes = ordered_json::array();
    if (empty()) notes.push_back("no step yet");
    if (const int64_t n = stream_.damaged_count(); n > 0)
      notes.push_back(fmt::format("damaged lines: {}", n));
    if (starts_count_ > 1)
      notes.push_back(fmt::format("{} starts{}", starts_count_,
                                  starts_.size() < starts_count_
                                      ? fmt::format(", the first and last {} shown", kMostStarts)
                                      : ""));
    if (lacks_curves_) notes.push_back(fmt::format("only {} curves are drawn", kMostCurves));
    if (slowest_.size() > kMostSlowest)
      notes.push_back(fmt::format("only the {} ranks that were slowest most often", kMostSlowest));
    return notes;
  }

  const std::string name_;
  std::map<std::string, Envelope, std::less<>> curves_;
  struct Place {
    std::string key;
    Envelope* curve = nullptr;  // in curves_
  };
  std::vector<Place> places_;           // of a record's values
  std::map<int64_t, int64_t> slowest_;  // in how many timed steps a rank computed longest
  std::vector<Start> starts_;           // the first and the last ones
  size_t starts_count_ = 0;
  bool lacks_curves_ = false;
  std::optional<double> time_;  // of the record before, as the two below
  double elapsed_ = 0, began_ = 0;
  int64_t records_ = 0, last_step_ = 0, total_steps_ = 0;
  RecordStream stream_;  // last: it fills the others
};

// A tenth of a microsecond: more digits are not seen.
double rounded(double ms) { return std::round(ms * 1e4) / 1e4; }

ordered_json lanes_json(const ReportLanes& l) {
  ordered_json out{{"title", l.title},
                   {"note", l.note},
                   {"ms", number(l.ms)},
                   {"legend", ordered_json::array()},
                   {"lanes", ordered_json::array()}};
  for (const auto& [sign, meaning] : l.legend) out["legend"].push_back({sign, meaning});
  for (const ReportLanes::Lane& lane : l.lanes) {
    ordered_json boxes = ordered_json::array();
    for (const ReportLanes::Box& b : lane.boxes)
      boxes.push_back({number(rounded(b.begin_ms)), number(rounded(b.end_ms)), b.kind, b.text});
    out["lanes"].push_back({{"name", lane.name}, {"cells", lane.cells}, {"boxes", boxes}});
  }
  return out;
}

ordered_json bars_json(const ReportBars& b) {
  ordered_json out{{"title", b.title}, {"axis", b.axis},     {"unit", b.unit},
                   {"note", b.note},   {"labels", b.labels}, {"sets", ordered_json::array()}};
  for (const auto& [name, values] : b.sets)
    out["sets"].push_back({{"name", name}, {"values", numbers(values)}});
  return out;
}

constexpr const char* kHead = R"(<!DOCTYPE html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'">
<title>mtrain report</title>
<style>
)";
constexpr const char* kBody = R"(</style>
</head>
<body>
<header><h1>Training report</h1><button id="theme" type="button">light or dark</button></header>
<main>
<noscript><p>This page draws its charts with JavaScript.</p></noscript>
<div id="tables"></div>
<div id="charts"></div>
<div id="lanes"></div>
</main>
<script type="application/json" id="data">)";
constexpr const char *kScript = "</script>\n<script>\n", *kEnd = "</script>\n</body>\n</html>\n";

}  // namespace

std::string for_script(std::string json) {
  for (size_t at = 0; (at = json.find('<', at)) != std::string::npos;)
    json.replace(at, 1, "\\u003c");  // `<` can only be in a text
  return json;
}

std::string report_html(const ReportInput& input) {
  std::vector<std::unique_ptr<ReportRun>> runs;
  size_t curves = 1;
  for (const RunFile& run : input.runs) {
    std::function<void(double)> progress;
    if (input.progress) progress = [&](double part) { input.progress(run.name, part); };
    runs.push_back(std::make_unique<ReportRun>(run, progress));
    curves += runs.back()->curves();
  }
  if (std::ranges::all_of(runs, [](const auto& run) { return run->empty(); }))
    throw no_records(runs.front()->path());
  size_t boxes = 0;
  for (const ReportLanes& lanes : input.lanes)
    for (const ReportLanes::Lane& lane : lanes.lanes) boxes += lane.boxes.size();
  // Curves get the bytes that are left.
  const size_t points = kMostPoints - std::min(kMostPoints * 3 / 4, boxes * kPointsOfBox);
  const size_t most_ranges = std::min(kMostRanges, points / 2 / curves);
  ordered_json data{{"runs", ordered_json::array()},
                    {"settings", ordered_json::array()},
                    {"settings_note", input.settings_note},
                    {"lanes", ordered_json::array()},
                    {"bars", ordered_json::array()}};
  for (const auto& run : runs) data["runs"].push_back(run->json(most_ranges));
  for (const ReportLanes& lanes : input.lanes) data["lanes"].push_back(lanes_json(lanes));
  for (const ReportBars& bars : input.bars) data["bars"].push_back(bars_json(bars));
  for (const ReportSetting& row : input.settings)
    data["settings"].push_back({{"setting", row.setting}, {"values", row.values}});
  std::string page = kHead;
  page += page_style();
  page += kBody;
  page += for_script(data.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  page += kScript;
  page += chart_js();
  page += kScript;
  page += page_script();
  page += kEnd;
  return page;
}

}  // namespace mtrain::observe
