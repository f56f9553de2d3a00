#include "observe/chrome_trace.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "observe/timeline.h"

namespace mtrain::observe {

namespace {
constexpr size_t kMiB = size_t{1} << 20;
}  // namespace

namespace {

// Returns a JSON string. Malformed UTF-8 is replaced, since a name must never make a trace fail.
std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Times may be before the origin, since the clocks of several hosts differ.
std::string microseconds(int64_t ns) {
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
}

// Shorter waits are left out of a trace: they are only the cost of the check.
constexpr int64_t kShortestWait = 1000;  // ns

constexpr std::string_view kDigits = "0123456789";

// The positions at which the stage and the kind end in an action's text, such as "3F12", "2SEND_B1"
// or "0UNSHARD".
struct ActionText {
  size_t stage_end = 0, kind_end = 0;
};
std::optional<ActionText> action_text(std::string_view text) {
  const ActionText a{
      .stage_end = std::min(text.find_first_not_of(kDigits), text.size()),
      .kind_end =
          std::min(text.find_first_of(kDigits, text.find_first_not_of(kDigits)), text.size())};
  const bool kind = std::all_of(text.begin() + long(a.stage_end), text.begin() + long(a.kind_end),
                                [](char c) { return (c >= 'A' && c <= 'Z') || c == '_'; });
  const bool ends = text.find_first_not_of(kDigits, a.kind_end) == std::string_view::npos;
  if (a.stage_end == 0 || a.kind_end == a.stage_end || !kind || !ends) return std::nullopt;
  return a;
}

// Returns the action in the text of a Device's scopes: "3F12" from "3F12 > layers.3.attention".
// Weight gradients that run separately from their backward ("weights of 3B12") become a W action.
std::string action_in(std::string_view scope) {
  constexpr std::string_view kNext = " > ";
  while (!scope.empty()) {
    std::string_view name = scope.substr(0, scope.find(kNext));
    scope.remove_prefix(std::min(scope.size(), name.size() + kNext.size()));
    bool weights = false;
    for (const std::string_view prefix : {"weights of ", "delayed "})
      if (name.starts_with(prefix)) name.remove_prefix(prefix.size()), weights = true;
    const auto a = action_text(name);
    if (!a) continue;
    std::string action(name);
    if (weights) action.replace(a->stage_end, a->kind_end - a->stage_end, "W");
    return action;
  }
  return "";
}

std::string arguments_of(const std::string& action) {
  const ActionText a = action_text(action).value();
  const std::string micro = action.substr(a.kind_end);
  return fmt::format(
      R"("pass":"{}","stage":{}{})", action.substr(a.stage_end, a.kind_end - a.stage_end),
      action.substr(0, a.stage_end), micro.empty() ? "" : R"(,"micro_batch":)" + micro);
}

}  // namespace

ChromeTrace::ChromeTrace(int rank, size_t max_events) : rank_(rank), max_events_(max_events) {}

const std::string* ChromeTrace::known(std::string_view text) {
  auto at = texts_.find(text);
  if (at == texts_.end()) at = texts_.emplace(text).first;
  return &*at;
}

void ChromeTrace::add(Entry entry, std::string_view name, Track track, std::string_view scope) {
  if (!recording_) return;
  const std::string action = action_in(scope);
  std::lock_guard lock(mutex_);
  if (entries_.size() >= max_events_) {
    if (dropped_++ == 0) full_at_ns_ = entry.begin_ns;
    return;
  }
  entry.name = known(name);
  if (!action.empty()) entry.action = known(action);
  auto at = std::ranges::find(tracks_, track);
  if (at == tracks_.end()) at = tracks_.insert(at, track);
  entry.track = int32_t(at - tracks_.begin());
  entries_.push_back(entry);
}

void ChromeTrace::record(const device::Timing& t) {
  // The span of a communication begins when the last rank was ready, if that is known.
  const int64_t begin_ns = t.begin_ns + t.idle_ns.value_or(0);
  if (begin_ns - t.begin_ns >= kShortestWait)
    add({.begin_ns = t.begin_ns, .end_ns = begin_ns, .kind = Entry::Kind::wait},
        "wait for another rank", t.stream, t.scope);
  add({.begin_ns = begin_ns, .end_ns = t.end_ns, .bytes = t.wire_bytes}, t.name, t.stream, t.scope);
  if (!t.messages) return;
  // An arrow leads from the begin of the send to the end of the receive. Viewers attach an end to
  // the span around it, and a span does not include its last moment.
  const int64_t last_ns = std::max(begin_ns, t.end_ns - 1);
  for (const device::MessageEnd& m : *t.messages) {
    const int64_t at = m.sent ? begin_ns : last_ns;
    add({.begin_ns = at,
         .end_ns = at,
         .bytes = int64_t(m.id),
         .kind = m.sent ? Entry::Kind::send : Entry::Kind::receive},
        "message", t.stream, t.scope);
  }
}

void ChromeTrace::waited(const device::Waiting& w) {
  if (w.end_ns - w.begin_ns >= kShortestWait)
    add({.begin_ns = w.begin_ns, .end_ns = w.end_ns, .kind = Entry::Kind::wait},
        "wait for " + stream_name(w.waits_for), w.stream, w.scope);
}

void ChromeTrace::record_step(std::string_view name, int64_t begin_ns, int64_t end_ns) {
  add({.begin_ns = begin_ns, .end_ns = end_ns}, name, {}, "");
}

void ChromeTrace::record_bytes(std::string_view name, int64_t at_ns, int64_t bytes) {
  add({.begin_ns = at_ns, .end_ns = at_ns, .bytes = bytes, .kind = Entry::Kind::counter}, name, {},
      "");
}

size_t ChromeTrace::events() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}
size_t ChromeTrace::dropped() const {
  std::lock_guard lock(mutex_);
  return dropped_;
}

std::string ChromeTrace::json(const Entry& e, int64_t origin_ns) const {
  if (e.kind == Entry::Kind::counter)
    return fmt::format(R"({{"name":{},"pid":{},"ts":{},"ph":"C","args":{{"bytes":{}}}}})",
                       json_text(*e.name), rank_, microseconds(e.begin_ns - origin_ns), e.bytes);
  if (e.kind == Entry::Kind::send || e.kind == Entry::Kind::receive)
    return fmt::format(
        R"({{"name":"message","cat":"message","pid":{},"tid":{},"ts":{},{},"id":"0x{:016x}"}})",
        rank_, e.track, microseconds(e.begin_ns - origin_ns),
        e.kind == Entry::Kind::send ? R"("ph":"s")" : R"("ph":"f","bp":"e")", e.message());
  std::string args = e.action ? arguments_of(*e.action) : "";
  if (e.bytes > 0) args += fmt::format(R"({}"bytes":{})", args.empty() ? "" : ",", e.bytes);
  if (!args.empty()) args = ",\"args\":{" + args + "}";
  return fmt::format(R"({{"name":{}{},"pid":{},"tid":{},"ts":{},"ph":"X","dur":{}{}}})",
                     json_text(*e.name), e.kind == Entry::Kind::wait ? R"(,"cat":"wait")" : "",
                     rank_, e.track, microseconds(e.begin_ns - origin_ns),
                     microseconds(std::max<int64_t>(0, e.end_ns - e.begin_ns)), args);
}

void ChromeTrace::write(const std::filesystem::path& path, const WroteTrace& wrote) const {
  std::vector<Entry> entries;
  std::vector<Track> tracks;
  size_t dropped = 0;
  int64_t full_at_ns = 0;
  {
    std::lock_guard lock(mutex_);
    entries = entries_;
    tracks = tracks_;
    dropped = dropped_;
    full_at_ns = full_at_ns_;
  }
  int64_t origin_ns = entries.empty() ? full_at_ns : entries.front().begin_ns;
  for (const Entry& e : entries) origin_ns = std::min(origin_ns, e.begin_ns);
  origin_ns = origin_ns_.value_or(origin_ns);

  AtomicFile file(path);
  std::string out = "{\"displayTimeUnit\":\"ms\",";
  if (dropped > 0)
    out += fmt::format(
        "\"otherData\":{{\"note\":\"{} later events were dropped: the trace holds "
        "at most {}\"}},",
        dropped, max_events_);
  out += "\"traceEvents\":[\n";
  const auto metadata = [&](const char* what, int tid, const std::string& args) {
    out += fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{{}}}}},)", what, rank_,
                       tid, args);
    out += '\n';
  };
  metadata("process_sort_index", 0, fmt::format(R"("sort_index":{})", rank_));
  for (size_t i = 0; i < tracks.size(); ++i)
    metadata("thread_name", int(i),
             R"("name":)" + json_text(tracks[i] ? stream_name(*tracks[i]) : kStepTrack));
  for (const Entry& e : entries) {
    out += json(e, origin_ns) + ",\n";
    if (out.size() > kMiB) {
      file.write(out);
      out.clear();
      if (wrote) wrote();
    }
  }
  if (dropped > 0)
    out += fmt::format(
        "{{\"name\":\"trace full: {} later events dropped\",\"pid\":{},\"tid\":0,\"ts\":{},"
        "\"ph\":\"i\",\"s\":\"p\"}},\n",
        dropped, rank_, microseconds(std::max(origin_ns, full_at_ns) - origin_ns));
  // This event is the last one, so no comma follows it.
  out += fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"rank {}"}}}})",
                     rank_, rank_);
  out += "\n]}\n";
  file.write(out);
  file.commit();
}

namespace {

// Calls use(line, first) for the lines of a part. The first line opens the list of events, and the
// last one, which is left out, closes it; each line between them is an event.
template <class F>
void for_lines(const std::filesystem::path& part, const WroteTrace& wrote, const F& use) {
  const MappedFile file_of_rank(part);
  std::string_view rest(reinterpret_cast<const char*>(file_of_rank.bytes().data()),
                        file_of_rank.bytes().size());
  size_t used = 0;
  for (bool first = true; !rest.empty(); first = false) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (!line.empty() && line != "]}") use(line, first);
    used += line.size();
    if (used > kMiB && wrote) wrote();
    if (used > kMiB) used = 0;
  }
}

// The end of an arrow that a line is.
struct ArrowEnd {
  std::string_view id;
  bool sent;
};
std::optional<ArrowEnd> arrow_end(std::string_view line) {
  constexpr std::string_view kBegin = R"({"name":"message","cat":"message",)", kId = R"("id":")";
  if (!line.starts_with(kBegin)) return {};
  const size_t at = line.find(kId);
  if (at == std::string_view::npos) return {};
  const std::string_view id = line.substr(at + kId.size());
  return ArrowEnd{id.substr(0, id.find('"')), line.find(R"("ph":"s")") != std::string_view::npos};
}

}  // namespace

void merge_traces(const std::filesystem::path& path,
                  const std::vector<std::filesystem::path>& parts, const WroteTrace& wrote) {
  std::set<std::string, std::less<>> sent, received;
  for (const auto& part : parts)
    for_lines(part, wrote, [&](std::string_view line, bool) {
      if (const auto end = arrow_end(line)) (end->sent ? sent : received).emplace(end->id);
    });
  AtomicFile file(path);
  std::string out;
  bool opened = false;
  for (const auto& part : parts)
    for_lines(part, wrote, [&](std::string_view line, bool first) {
      if (first && std::exchange(opened, true)) return;
      const auto end = arrow_end(line);
      if (end && !(end->sent ? received : sent).contains(end->id)) return;
      out += line;
      if (!first && line.back() != ',') out += ',';
      out += '\n';
      if (out.size() > kMiB) file.write(std::exchange(out, ""));
    });
  // All events so far end with a comma; the list needs a last event without one.
  file.write(out + "{\"ph\":\"M\",\"name\":\"merged\",\"pid\":0}\n]}\n");
  file.commit();
}

}  // namespace mtrain::observe
