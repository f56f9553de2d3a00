#include "device/sanitizer.h"

#include <algorithm>

#include "base/error.h"
#include "device/allocator.h"

namespace mtrain::device {

namespace {
void merge(VectorClock& into, const VectorClock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}
}  // namespace

void Sanitizer::add_stream(int stream, StreamId id) {
  std::lock_guard lock(mutex_);
  MT_CHECK(size_t(stream) == ids_.size());
  ids_.push_back(id);
  clocks_.emplace_back(ids_.size());
}

void Sanitizer::on_launch(int stream, const LaunchInfo& info) {
  std::lock_guard lock(mutex_);
  VectorClock& clock = clocks_[stream];
  merge(clock, host_);
  clock.resize(ids_.size());
  Touch now{stream, ++clock[stream], info.name, 0};
  for (const Access& a : info.reads) touch(a, now, false);
  for (const Access& a : info.writes) touch(a, now, true);
}

VectorClock Sanitizer::on_record(int stream) const {
  std::lock_guard lock(mutex_);
  return clocks_[stream];
}
void Sanitizer::on_wait(int stream, const VectorClock& event) {
  std::lock_guard lock(mutex_);
  merge(clocks_[stream], event);
}
void Sanitizer::on_host_wait(const VectorClock& event) {
  std::lock_guard lock(mutex_);
  merge(host_, event);
}

std::map<uintptr_t, Sanitizer::Range>::iterator Sanitizer::split(uintptr_t at) {
  auto it = ranges_.upper_bound(at);
  if (it == ranges_.begin()) return ranges_.end();
  --it;
  if (it->first == at) return it;
  if (it->second.end <= at) return ranges_.end();
  Range right = it->second;
  it->second.end = at;
  return ranges_.emplace(at, std::move(right)).first;
}

void Sanitizer::split_at_ends(uintptr_t begin, uintptr_t end) {
  split(begin);
  split(end);
  uintptr_t at = begin;
  for (auto it = ranges_.lower_bound(begin); at < end;) {
    if (it == ranges_.end() || it->first >= end) {
      ranges_[at] = Range{.end = end};
      return;
    }
    if (it->first > at) ranges_[at] = Range{.end = it->first};
    at = it->second.end;
    ++it;
  }
}

void Sanitizer::check(const Touch& before, const Touch& now, const char* was,
                      const char* is) const {
  if (before.stream < 0 || before.stream == now.stream) return;
  const VectorClock& clock = clocks_[now.stream];
  if (size_t(before.stream) < clock.size() && clock[before.stream] >= before.clock) return;
  const bool reused = before.serial != now.serial && before.serial && now.serial;
  throw BugError(
      fmt::format("stream sanitizer: `{}` on stream {} {} memory that `{}` on stream {} {}, and no "
                  "event orders them{}",
                  now.launch, stream_name(ids_[now.stream]), is, before.launch,
                  stream_name(ids_[before.stream]), was,
                  reused ? " (the buffer was freed and its memory reused too early)" : ""));
}

void Sanitizer::touch(const Access& access, const Touch& as, bool write) {
  if (!access.data || access.bytes == 0) return;
  Touch now = as;
  now.serial = access.storage ? access.storage->serial : 0;
  const auto begin = reinterpret_cast<uintptr_t>(access.data),
             end = begin + uintptr_t(access.bytes);
  split_at_ends(begin, end);
  const auto first = ranges_.lower_bound(begin), last = ranges_.lower_bound(end);
  // An access without a buffer is assumed to be to the buffer that was written last.
  if (!now.serial) now.serial = first->second.write.serial;
  for (auto it = first; it != last; ++it) {
    Range& range = it->second;
    check(range.write, now, "wrote", write ? "writes" : "reads");
    if (write) {
      for (const Touch& r : range.reads) check(r, now, "reads", "writes");
      continue;
    }
    const auto mine = std::ranges::find(range.reads, now.stream, &Touch::stream);
    if (mine != range.reads.end())
      *mine = now;
    else
      range.reads.push_back(now);
  }
  if (write) {  // one range with one last writer replaces them, which keeps the map small
    ranges_.erase(first, last);
    ranges_[begin] = Range{.end = end, .write = now};
  }
}

}  // namespace mtrain::device
