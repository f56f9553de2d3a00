#include "observe/timeline.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"

#include "base/error.h"

namespace mtrain::observe {

namespace {

using nlohmann::json;
using TrackId = std::pair<int64_t, int64_t>;  // process, thread

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw UserError(fmt::format("{}: {}", path.string(), why),
                  "name a file that --trace (debug.trace) has written");
}

double number(const json& event, const char* key) {
  const auto at = event.find(key);
  return at != event.end() && at->is_number() ? at->get<double>() : 0;
}

std::string text(const json& event, const char* key) {
  const auto at = event.find(key);
  return at != event.end() && at->is_string() ? at->get<std::string>() : "";
}

class TraceReader {
 public:
  void event(const json& e) {
    const TrackId id{int64_t(number(e, "pid")), int64_t(number(e, "tid"))};
    const std::string kind = text(e, "ph");
    if (kind == "X") {
      const double begin = number(e, "ts");
      track(id).spans.push_back({text(e, "name"), begin, begin + number(e, "dur")});
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

// Returns the first word of a launch's name: matmul_fc1_fwd and matmul_qkv_dgrad are both matmul.
std::string kind_of(const std::string& name) {
  static const std::set<std::string> two_words{"all", "reduce"};  // all_gather, reduce_scatter
  const size_t first = name.find('_');
  if (first == std::string::npos || !two_words.contains(name.substr(0, first)))
    return name.substr(0, first);
  return name.substr(0, name.find('_', first + 1));
}

struct Window {
  double begin_us = 0, end_us = 0;
  double overlap(const TraceSpan& s) const {
    return std::max(0.0, std::min(end_us, s.end_us) - std::max(begin_us, s.begin_us));
  }
};

Window whole(const Trace& trace) {
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
  if (!track && !step) return whole(trace);
  if (!track) throw UserError("the trace does not say when its steps were", "use --from and --to");
  const TraceSpan* found = &track->spans.back();
  if (step) {
    const auto at =
        std::ranges::find(track->spans, fmt::format("step {}", *step), &TraceSpan::name);
    if (at == track->spans.end())
      throw UserError(fmt::format("the trace has no step {}", *step),
                      fmt::format("it has {} to {}", track->spans.front().name, found->name));
    found = &*at;
  }
  return {found->begin_us, found->end_us};
}

Window window_of(const Trace& trace, const TimelineOptions& o) {
  if (!o.from_ms && !o.to_ms) return step_window(trace, o.step);
  const Window all = whole(trace);
  const Window w{o.from_ms ? *o.from_ms * 1e3 : all.begin_us,
                 o.to_ms ? *o.to_ms * 1e3 : all.end_us};
  if (!(w.begin_us < w.end_us))
    throw UserError(fmt::format("from {} ms to {} ms is no time", w.begin_us / 1e3, w.end_us / 1e3),
                    fmt::format("the trace goes from {:.3f} ms to {:.3f} ms", all.begin_us / 1e3,
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

// Chooses a letter for every kind of launch, if possible from its name. The kinds that ran longest
// choose first.
class Letters {
 public:
  Letters(const Trace& trace, const Window& window) {
    for (const TraceTrack& track : trace)
      for (const TraceSpan& s : track.spans)
        if (const double us = window.overlap(s); us > 0 && track.name != kStepTrack)
          us_[kind_of(s.name)] += us;
    std::vector<std::string> kinds;
    for (const auto& [kind, us] : us_) kinds.push_back(kind);
    std::ranges::stable_sort(kinds, std::greater<>(), [&](const auto& k) { return us_.at(k); });
    for (const std::string& kind : kinds) choose(kind);
  }

  char of(const std::string& kind) const {
    const auto at = letters_.find(kind);
    return at == letters_.end() ? '?' : at->second;
  }
  // Returns the legend of the letters that are shown, in lines of at most `columns`.
  std::string legend(const std::string& shown, size_t columns) const {
    std::string out, line;
    for (const std::string& kind : order_) {
      if (shown.find(of(kind)) == std::string::npos) continue;
      const auto entry = fmt::format("{} {} {:.1f} ms", of(kind), kind, us_.at(kind) / 1e3);
      if (!line.empty() && line.size() + 2 + entry.size() > columns)
        out += std::exchange(line, "") + "\n";
      line += (line.empty() ? "" : ", ") + entry;
    }
    return out + line + "\n";
  }

 private:
  void choose(const std::string& kind) {
    std::string wanted;
    for (const char c : kind)
      if (std::isalpha(static_cast<unsigned char>(c))) wanted += char(std::tolower(c));
    std::string capitals = wanted;
    for (char& c : capitals) c = char(std::toupper(c));
    wanted += capitals + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    const size_t at = wanted.find_first_not_of(taken_);
    if (at == std::string::npos) return;
    letters_[kind] = wanted[at];
    taken_ += wanted[at];
    order_.push_back(kind);
  }

  std::map<std::string, double> us_;
  std::map<std::string, char> letters_;
  std::string taken_;
  std::vector<std::string> order_;
};

struct Row {
  std::string cells;
  double busy_us = 0;
};

Row row_of(const TraceTrack& track, const Window& w, size_t cells, const Letters& letters) {
  const double width = (w.end_us - w.begin_us) / double(cells);
  std::vector<std::map<char, double>> taken(cells);
  Row row{std::string(cells, '.')};
  for (const TraceSpan& s : track.spans) {
    const double us = w.overlap(s);
    if (us <= 0) continue;
    row.busy_us += us;
    const double begin = std::max(s.begin_us, w.begin_us) - w.begin_us;
    const char letter = letters.of(kind_of(s.name));
    const auto first = std::min(cells - 1, size_t(begin / width));
    for (size_t i = first; i < cells && double(i) * width < begin + us; ++i)
      taken[i][letter] +=
          std::min(begin + us, double(i + 1) * width) - std::max(begin, double(i) * width);
  }
  for (size_t i = 0; i < cells; ++i) {
    double busy = 0, most = 0;
    for (const auto& [letter, us] : taken[i]) {
      busy += us;
      if (us > most) row.cells[i] = letter;
      most = std::max(most, us);
    }
    if (busy < width / 2) row.cells[i] = '.';
  }
  return row;
}

}  // namespace

Trace read_trace(const std::filesystem::path& path) {
  const MappedFile file(path);
  TraceReader reader;
  // Events are read and dropped one by one, since the JSON tree of a whole trace may take
  // gigabytes.
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

std::string timeline_text(const Trace& all, const TimelineOptions& o) {
  const Trace trace = chosen(all, o.ranks);
  const Window w = window_of(all, o);
  const Letters letters(trace, w);
  size_t label = 0;
  for (const TraceTrack& t : trace)
    label = std::max(label, fmt::format("rank {} {}", t.rank, t.name).size());
  constexpr size_t kShare = 7;  // "  100 %"
  const size_t cells = std::max<int64_t>(10, o.columns - int64_t(label + 1 + kShare));
  std::string out = fmt::format("{:.3f} ms from {:.3f} ms on; a column is {:.3f} ms\n",
                                (w.end_us - w.begin_us) / 1e3, w.begin_us / 1e3,
                                (w.end_us - w.begin_us) / 1e3 / double(cells));
  int64_t rank = -1;
  std::string shown;
  for (const TraceTrack& t : trace) {
    if (t.name == kStepTrack) continue;
    const Row row = row_of(t, w, cells, letters);
    if (row.busy_us == 0) continue;
    const std::string head = t.rank == rank ? "" : fmt::format("rank {}", t.rank);
    rank = t.rank;
    shown += row.cells;
    out += fmt::format("{}{:>{}} {}{:>5.0f} %\n", head, t.name, label - head.size(), row.cells,
                       100 * row.busy_us / (w.end_us - w.begin_us));
  }
  return out + letters.legend(shown, size_t(o.columns));
}

}  // namespace mtrain::observe
