#include "observe/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/terminal.h"
#include "observe/launch_letters.h"

namespace mtrain::observe {

namespace {

using nlohmann::json;
using TrackId = std::pair<int64_t, int64_t>;  // process, thread

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw UserError(fmt::format("{}: {}", path.string(), why),
                  "name a file that --trace (debug.trace) has written");
}

double number_of_event(const json& event, const char* key) {
  const auto at = event.find(key);
  return at != event.end() && at->is_number() ? at->get<double>() : 0;
}

// The texts are printed to a terminal, and the file may be from any source.
std::string text(const json& event, const char* key) {
  const auto at = event.is_object() ? event.find(key) : event.end();
  return at != event.end() && at->is_string() ? printable(at->get_ref<const std::string&>()) : "";
}

int64_t integer_arg(const json& args, const char* key, int64_t otherwise = -1) {
  const auto at = args.is_object() ? args.find(key) : args.end();
  return at != args.end() && at->is_number_integer() ? at->get<int64_t>() : otherwise;
}

class TraceReader {
 public:
  void event(const json& e) {
    const TrackId id{int64_t(number_of_event(e, "pid")), int64_t(number_of_event(e, "tid"))};
    const std::string kind = text(e, "ph");
    if (kind == "X") {
      const double begin = number_of_event(e, "ts");
      const json args = e.value("args", json::object());
      track(id).spans.push_back({.name = text(e, "name"),
                                 .begin_us = begin,
                                 .end_us = begin + number_of_event(e, "dur"),
                                 .pass = text(args, "pass"),
                                 .stage = integer_arg(args, "stage"),
                                 .micro_batch = integer_arg(args, "micro_batch"),
                                 .bytes = integer_arg(args, "bytes", 0),
                                 .wait = text(e, "cat") == "wait"});
    } else if (kind == "M" && text(e, "name") == "thread_name") {
      track(id).name = text(e.value("args", json::object()), "name");
    }
  }

  Trace take() {
    Trace trace;
    for (auto& [id, track] : tracks_) {
      if (track.spans.empty()) continue;
      std::ranges::stable_sort(track.spans, {}, &TraceSpan::begin_us);
      trace.push_back(std::move(track));
    }
    return trace;
  }

 private:
  TraceTrack& track(const TrackId& id) {
    return tracks_.try_emplace(id, TraceTrack{id.first, std::to_string(id.second), {}})
        .first->second;
  }
  std::map<TrackId, TraceTrack> tracks_;
};

struct Window {
  double begin_us = 0, end_us = 0;
  double overlap(const TraceSpan& s) const {
    return std::max(0.0, std::min(end_us, s.end_us) - std::max(begin_us, s.begin_us));
  }
};

Window full_window(const Trace& trace) {
  Window w{INFINITY, -INFINITY};
  for (const TraceTrack& track : trace)
    for (const TraceSpan& s : track.spans)
      w = {std::min(w.begin_us, s.begin_us), std::max(w.end_us, s.end_us)};
  return w;
}

// Returns the time of a step on the first rank; the others begin and end it at about the same time.
Window step_window(const Trace& trace, std::optional<int64_t> step) {
  const TraceTrack* track = nullptr;
  for (const TraceTrack& t : trace)
    if (t.name == kStepTrack) track = track ? track : &t;
  if (!track && !step) return full_window(trace);
  if (!track)
    throw UserError("the trace does not have the times of its steps", "use --from and --to");
  std::vector<const TraceSpan*> steps;  // without saves and evaluations
  for (const TraceSpan& span : track->spans)
    if (span.name.starts_with("step ")) steps.push_back(&span);
  if (steps.empty()) return full_window(trace);
  const TraceSpan* found = steps.back();
  if (step) {
    const std::string name = fmt::format("step {}", *step);
    const auto at =
        std::ranges::find_if(steps, [&](const TraceSpan* span) { return span->name == name; });
    if (at == steps.end())
      throw UserError(fmt::format("the trace has no step {}", *step),
                      fmt::format("it has {} to {}", steps.front()->name, found->name));
    found = *at;
  }
  return {found->begin_us, found->end_us};
}

Window window_of(const Trace& trace, const TimelineOptions& o) {
  if (!o.from_ms && !o.to_ms) return step_window(trace, o.step);
  const Window all = full_window(trace);
  const Window w{o.from_ms ? *o.from_ms * 1e3 : all.begin_us,
                 o.to_ms ? *o.to_ms * 1e3 : all.end_us};
  if (!(w.begin_us < w.end_us))
    throw UserError(
        fmt::format("from {} ms to {} ms is not a time span", w.begin_us / 1e3, w.end_us / 1e3),
        fmt::format("the trace covers {:.3f} ms to {:.3f} ms", all.begin_us / 1e3,
                    all.end_us / 1e3));
  return w;
}

Trace chosen(const Trace& trace, const std::vector<int64_t>& ranks) {
  if (ranks.empty()) return trace;
  for (const int64_t rank : ranks)
    if (std::ranges::find(trace, rank, &TraceTrack::rank) == trace.end())
      throw UserError(fmt::format("the trace has no rank {}", rank),
                      fmt::format("it has {} to {}", trace.front().rank, trace.back().rank));
  Trace some;
  for (const TraceTrack& t : trace)
    if (std::ranges::find(ranks, t.rank) != ranks.end()) some.push_back(t);
  return some;
}

// Adds up how long each kind of launch ran, and writes the legend.
class Legend {
 public:
  void add(char letter, double us) { us_[letter] += us; }

  // Returns the explanations of the letters in `shown`, the longest total time first.
  std::string text(const std::string& shown) const {
    std::vector<std::pair<double, char>> order;
    for (const auto& [letter, us] : us_)
      if (shown.find(letter) != std::string::npos) order.emplace_back(us, letter);
    std::ranges::stable_sort(order, std::greater<>(), &std::pair<double, char>::first);
    std::string out;
    for (const auto& [us, letter] : order)
      out += fmt::format("{}{} {} {:.1f} ms", out.empty() ? "" : ", ", letter,
                         meaning_of_letter(letter), us / 1e3);
    return out;
  }

 private:
  std::map<char, double> us_;
};

// Returns the text in lines of at most `columns`, broken after commas.
std::string in_lines(const std::string& text, size_t columns) {
  std::string out, line;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(", ", at), text.size());
    const std::string entry = text.substr(at, end - at);
    if (!line.empty() && line.size() + 2 + entry.size() > columns)
      out += std::exchange(line, "") + "\n";
    line += (line.empty() ? "" : ", ") + entry;
    at = end + 2;
  }
  return line.empty() ? out : out + line + "\n";
}

// A row that is divided into columns of equal time. Each column sums the time of every key.
template <class Key>
class Columns {
 public:
  Columns(const Window& w, size_t count)
      : w_(w), width_((w.end_us - w.begin_us) / double(count)), taken_(count) {}

  void add(const TraceSpan& s, const Key& key) {
    const double us = w_.overlap(s);
    if (us <= 0) return;
    const double begin = std::max(s.begin_us, w_.begin_us) - w_.begin_us;
    const auto first = std::min(taken_.size() - 1, size_t(begin / width_));
    for (size_t i = first; i < taken_.size() && double(i) * width_ < begin + us; ++i)
      taken_[i][key] +=
          std::min(begin + us, double(i + 1) * width_) - std::max(begin, double(i) * width_);
  }

  // Returns the key with the most time in a column; absent if all keys together take less than half
  // of it.
  std::optional<Key> of(size_t column) const {
    double all = 0, most = 0;
    std::optional<Key> key;
    for (const auto& [each, us] : taken_[column]) {
      all += us;
      if (us > most) key = each, most = us;
    }
    return all < width_ / 2 ? std::nullopt : key;
  }

 private:
  const Window w_;
  const double width_;
  std::vector<std::map<Key, double>> taken_;
};

struct Row {
  std::string cells;
  double busy_us = 0;
};

Row row_of(const TraceTrack& track, const Window& w, size_t cells, Legend& legend) {
  Columns<char> columns(w, cells);
  Row row{std::string(cells, '.')};
  for (const TraceSpan& s : track.spans) {
    const double us = w.overlap(s);
    if (us <= 0) continue;
    const char letter = s.wait ? kWaits : letter_of(s.name);
    if (!s.wait) row.busy_us += us;
    legend.add(letter, us);
    columns.add(s, letter);
  }
  for (size_t i = 0; i < cells; ++i) row.cells[i] = columns.of(i).value_or('.');
  return row;
}

bool is_pass(const TraceSpan& s) {
  static const std::set<std::string> kinds{"F", "B", "I", "W"};
  return !s.wait && s.micro_batch >= 0 && kinds.contains(s.pass);
}

// Returns what the rank computes in each column: "F3--", or "1F3-" on a rank with several stages.
// The name of a pass, or as much of it as fits, is at the pass's beginning. Empty if the trace
// names no passes.
std::string passes_of(const TraceTrack& track, const Window& w, size_t cells) {
  std::set<int64_t> stages;
  for (const TraceSpan& s : track.spans)
    if (is_pass(s)) stages.insert(s.stage);
  if (stages.empty()) return "";
  Columns<std::string> columns(w, cells);
  for (const TraceSpan& s : track.spans)
    if (is_pass(s))
      columns.add(s, fmt::format("{}{}{}", stages.size() > 1 ? std::to_string(s.stage) : "", s.pass,
                                 s.micro_batch));
  std::string row(cells, '.');
  std::optional<std::string> before;
  for (size_t i = 0, from = 0; i < cells; ++i) {
    const auto name = columns.of(i);
    if (name != before) from = i;
    if (name) row[i] = i - from < name->size() ? (*name)[i - from] : '-';
    before = name;
  }
  return row;
}

constexpr const char* kPasses = "passes";
constexpr const char* kPassLegend =
    "passes: F3 forward of micro-batch 3, B backward, I input gradients, W weight gradients, "
    "1F3 that of stage 1";

}  // namespace

Trace read_trace(const std::filesystem::path& path) {
  const MappedFile file(path);
  TraceReader reader;
  // Events are read and dropped one by one, since the JSON tree of a full trace may take gigabytes.
  const auto take = [&](size_t depth, const json& object) {
    if (depth > 2) return false;
    if (object.contains("ph")) reader.event(object);
    return true;
  };
  parse_json_objects({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                     path.string(), take);
  Trace trace = reader.take();
  if (trace.empty()) refuse(path, "has no events with a duration");
  return trace;
}

StepTimeline step_timeline(const Trace& trace, std::optional<int64_t> step, size_t cells) {
  const Window w = step_window(trace, step);
  StepTimeline out{.ms = (w.end_us - w.begin_us) / 1e3};
  for (const TraceTrack& track : trace) {
    if (track.name == kStepTrack) {
      for (const TraceSpan& s : track.spans)
        if (s.name.starts_with("step ") && s.begin_us == w.begin_us) out.name = s.name;
      continue;
    }
    Legend legend;  // timeline_text() prints one
    const Row row = row_of(track, w, cells, legend);
    if (row.busy_us == 0) continue;
    for (const char letter : row.cells)
      if (letter != '.') out.legend.try_emplace(letter, meaning_of_letter(letter));
    out.rows.push_back({track.rank, track.name, row.cells, row.busy_us / (w.end_us - w.begin_us)});
    if (track.name != kComputeTrack) continue;
    std::vector<PassRun>& passes = out.passes[track.rank];
    for (const TraceSpan& s : track.spans) {
      if (!is_pass(s) || w.overlap(s) <= 0) continue;
      const bool same = !passes.empty() && passes.back().pass == s.pass &&
                        passes.back().stage == s.stage &&
                        passes.back().micro_batch == s.micro_batch;
      if (!same)
        passes.push_back({.pass = s.pass,
                          .stage = s.stage,
                          .micro_batch = s.micro_batch,
                          .begin_ms = (s.begin_us - w.begin_us) / 1e3});
      passes.back().end_ms = (s.end_us - w.begin_us) / 1e3;
      passes.back().busy_ms += (s.end_us - s.begin_us) / 1e3;
    }
  }
  std::erase_if(out.passes, [](const auto& rank) { return rank.second.empty(); });
  return out;
}

std::vector<RankSteps> steps_by_rank(const Trace& trace) {
  std::vector<RankSteps> all;
  for (const TraceTrack& track : trace) {
    if (track.name != kStepTrack) continue;
    RankSteps r{.rank = track.rank, .least_ms = INFINITY};
    const auto compute = std::ranges::find_if(trace, [&](const TraceTrack& t) {
      return t.rank == track.rank && t.name == kComputeTrack;
    });
    for (const TraceSpan& s : track.spans) {
      if (!s.name.starts_with("step ")) continue;
      const double ms = (s.end_us - s.begin_us) / 1e3;
      ++r.steps;
      r.mean_ms += ms;
      r.least_ms = std::min(r.least_ms, ms), r.most_ms = std::max(r.most_ms, ms);
      const Window w{s.begin_us, s.end_us};
      if (compute != trace.end())
        for (const TraceSpan& c : compute->spans)
          if (!c.wait) r.busy_ms += w.overlap(c) / 1e3;
    }
    if (r.steps == 0) continue;
    r.mean_ms /= double(r.steps), r.busy_ms /= double(r.steps);
    all.push_back(r);
  }
  return all;
}

std::string timeline_text(const Trace& all, const TimelineOptions& o) {
  const Trace trace = chosen(all, o.ranks);
  const Window w = window_of(all, o);
  size_t label = 0;
  for (const TraceTrack& t : trace)
    label = std::max(label, fmt::format("rank {} {}", t.rank, t.name).size());
  constexpr size_t kShare = 7;  // "  100 %"
  const size_t cells = std::max<int64_t>(10, o.columns - int64_t(label + 1 + kShare));
  std::string out = fmt::format("{:.3f} ms from {:.3f} ms on; a column is {:.3f} ms\n",
                                (w.end_us - w.begin_us) / 1e3, w.begin_us / 1e3,
                                (w.end_us - w.begin_us) / 1e3 / double(cells));
  int64_t rank = -1;
  const auto line = [&](const TraceTrack& t, const std::string& name, const std::string& row) {
    const std::string head = t.rank == rank ? "" : fmt::format("rank {}", t.rank);
    rank = t.rank;
    return fmt::format("{}{:>{}} {}", head, name, label - head.size(), row);
  };
  std::string shown;
  bool passes = false;
  Legend legend;
  for (const TraceTrack& t : trace) {
    if (t.rank != rank) {
      const auto compute = std::ranges::find_if(
          trace, [&](const TraceTrack& c) { return c.rank == t.rank && c.name == kComputeTrack; });
      const std::string row = compute == trace.end() ? "" : passes_of(*compute, w, cells);
      if (row.find_first_not_of('.') != std::string::npos) {
        out += line(t, kPasses, row) + "\n";
        passes = true;
      }
    }
    if (t.name == kStepTrack) continue;
    const Row row = row_of(t, w, cells, legend);
    if (row.busy_us == 0) continue;
    shown += row.cells;
    out += line(t, t.name, row.cells) +
           fmt::format("{:>5.0f} %\n", 100 * row.busy_us / (w.end_us - w.begin_us));
  }
  if (passes) out += in_lines(kPassLegend, size_t(o.columns));
  return out + in_lines(legend.text(shown), size_t(o.columns));
}

}  // namespace mtrain::observe
