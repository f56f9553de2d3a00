#include "observe/watch.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "base/strings.h"
#include "base/terminal.h"

namespace mtrain::observe {

namespace {

constexpr const char* kLoss = "loss";
constexpr const char* kValidation = "validation_loss";

// Returns the validation losses to show in a picture of the training loss; else null.
const Series* marks_of(const RunMetrics& run, const std::string& key) {
  return key == kLoss ? &run.series(kValidation) : nullptr;
}

std::string title(const std::vector<WatchedRun>& runs, const std::string& key,
                  const CurveOptions& options) {
  const bool marks = std::ranges::any_of(runs, [&](const WatchedRun& run) {
    const Series* series = marks_of(*run.metrics, key);
    return series && !series->empty();
  });
  std::string lines, dots;
  for (size_t i = 0; i < runs.size(); ++i) {
    lines += fmt::format("{}{}", i > 0 ? " " : "", line_letter(i, runs.size()));
    dots += fmt::format("{}{}", i > 0 ? " " : "", mark_letter(i, runs.size()));
  }
  std::string out = key;
  if (runs.size() > 1 || !options.braille) out += fmt::format(" ({})", lines);
  if (marks) out += fmt::format(" and validation loss ({})", dots);
  if (options.smooth > 1) out += fmt::format(", mean of {} steps", options.smooth);
  if (options.log) out += ", logarithmic";
  return out;
}

std::string value_text(const std::string& key, double value) {
  if (!std::isfinite(value)) return "NaN";
  const bool loss = key == kLoss || key == kValidation;
  return loss ? fmt::format("{:.4f}", value) : fmt::format("{:.5g}", value);
}

std::string best_validation(const Series& series) {
  size_t best = series.values.size();
  for (size_t i = 0; i < series.values.size(); ++i)
    if (std::isfinite(series.values[i]) &&
        (best == series.values.size() || series.values[i] < series.values[best]))
      best = i;
  if (best == series.values.size()) return "";
  return fmt::format(", best validation loss {} at step {}",
                     value_text(kValidation, series.values[best]), series.steps[best]);
}

std::string figures(const WatchedRun& run, const std::string& key, const CurveOptions& options) {
  const RunMetrics& m = *run.metrics;
  if (m.empty()) return "no step yet";
  std::string out = fmt::format("step {}", m.last_step());
  if (m.total_steps() > 0) out += fmt::format(" of {}", m.total_steps());
  const Series& series = m.series(key);
  if (series.empty())
    out += fmt::format(", no {}", key);
  else
    out += fmt::format(", {} {}", key, value_text(key, series.values.back()));
  out += best_validation(m.series(kValidation));
  if (const double rate = m.tokens_per_s(); std::isfinite(rate))
    out += fmt::format(", {} tok/s", human_count(rate));
  if (const double left = m.seconds_left(); run.live && std::isfinite(left))
    out += fmt::format(", ETA {}", human_duration(left));
  if (const int64_t damaged = m.stream().damaged_count(); damaged > 0)
    out += fmt::format("; damaged lines: {}", damaged);
  const auto gaps =
      std::ranges::count_if(series.values, [](double v) { return !std::isfinite(v); });
  if (gaps > 0) out += fmt::format("; NaN: {} of {} values", gaps, series.values.size());
  const auto low = std::ranges::count_if(series.values, [](double v) { return v <= 0; });
  if (options.log && low > 0) out += fmt::format("; not drawn, since not above 0: {}", low);
  return out;
}

// Returns the lines about the runs, without colors, one entry for each run.
std::vector<std::string> legend(const std::vector<WatchedRun>& runs, const std::string& key,
                                const CurveOptions& options) {
  std::vector<std::string> entries;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string letter =
        runs.size() > 1 ? fmt::format("{} ", line_letter(i, runs.size())) : "";
    entries.push_back(
        wrap_words(fmt::format("{}{}{}: {}", letter, runs[i].name, runs[i].live ? ", training" : "",
                               figures(runs[i], key, options)),
                   options.columns));
  }
  return entries;
}

}  // namespace

std::vector<std::string> watched_keys(const std::string& key) { return {key, kValidation}; }

std::string watch_text(const std::vector<WatchedRun>& runs, const std::string& key,
                       const CurveOptions& options) {
  std::vector<Curve> curves;
  for (const WatchedRun& run : runs)
    curves.push_back({.line = &run.metrics->series(key), .marks = marks_of(*run.metrics, key)});
  std::string out = wrap_words(title(runs, key, options), options.columns) + "\n";
  out += draw_curves(curves, options);
  const std::vector<std::string> entries = legend(runs, key, options);
  for (size_t i = 0; i < entries.size(); ++i) {
    std::string entry = entries[i];
    if (options.color && runs.size() > 1)
      entry = fmt::format("{}{}\x1b[0m{}", curve_color(i), entry.substr(0, 1), entry.substr(1));
    out += entry + "\n";
  }
  return out;
}

int lines_beside_plot(const std::vector<WatchedRun>& runs, const std::string& key,
                      const CurveOptions& options) {
  constexpr int kAxis = 2;
  const auto lines = [](const std::string& text) {
    return 1 + int(std::ranges::count(text, '\n'));
  };
  int count = lines(wrap_words(title(runs, key, options), options.columns)) + kAxis;
  for (const std::string& entry : legend(runs, key, options)) count += lines(entry);
  return count;
}

}  // namespace mtrain::observe
