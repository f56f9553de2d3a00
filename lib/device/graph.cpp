#include "device/graph.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/error.h"
#include "device/device.h"

namespace mtrain::device {

namespace {
uint64_t next_id() {
  static std::atomic<uint64_t> last{0};  // unique in the process; no state that anyone depends on
  return ++last;
}
}  // namespace

Graph::~Graph() {
  if (!pool_) return;  // moved from
  try {
    origin_->synchronize();
  } catch (...) {  // reported where it is awaited
  }
}

void Graph::replay() {
  Device& device = origin_->device();
  MT_CHECK(!device.capture(), "a graph within a graph");
  device.allocator().settle(*pool_);
  for (Stream* s : others_) origin_->wait(s->record());  // edge: their work so far -> the graph
  origin_->launch({.name = name_, .reads = told_reads_, .writes = told_writes_}, work_);
  if (others_.empty()) return;
  const Event done = origin_->record();
  for (Stream* s : others_) s->wait(done);  // edge: the graph -> what they are given next
}

Capture::Capture(Stream& origin, std::shared_ptr<MemoryPool> pool)
    : origin_(origin), id_(next_id()), open_(origin.device().allocator(), *pool) {
  Device& device = origin.device();
  MT_CHECK(!device.capture(), "a capture within a capture");
  device.allocator().settle(*pool);
  graph_.origin_ = &origin;
  graph_.pool_ = std::move(pool);
  const std::lock_guard lock(origin.order_);
  origin.backend_->begin_capture();
  origin.capture_ = id_;
  device.capture_ = this;
}

Capture::~Capture() {
  if (finished_) return;
  try {
    (void)origin_.backend_->end_capture();
  } catch (...) {  // it is given up anyway
  }
  end();
  origin_.device().allocator().joined(*graph_.pool_);  // nothing has touched its memory
}

void Capture::end() {
  finished_ = true;
  origin_.device().capture_ = nullptr;
  for (Stream* s : others_) {
    const std::lock_guard lock(s->order_);
    s->capture_ = 0;
  }
  const std::lock_guard lock(origin_.order_);
  origin_.capture_ = 0;
}

Graph Capture::finish(const char* name) {
  for (Stream* s : others_) origin_.wait(s->record());  // a graph ends where it began
  try {
    const std::lock_guard lock(origin_.order_);
    graph_.work_ = origin_.backend_->end_capture();
  } catch (...) {
    end();
    origin_.device().allocator().joined(*graph_.pool_);
    throw;
  }
  end();
  if (!others_.empty()) {
    const Event joined = origin_.record();
    for (Stream* s : others_) s->wait(joined);  // edge: the graph -> what they are given next
  }
  origin_.device().allocator().joined(*graph_.pool_);
  graph_.name_ = name;
  graph_.others_ = others_;
  return std::move(graph_);
}

void Capture::join(Stream& stream) {
  if (stream.capture_ == id_) return;
  others_.push_back(&stream);
  stream.capture_ = id_;
}

void Capture::add(Stream& stream, const LaunchInfo& info) {
  if (stream.capture_ != id_)
    throw RunError(fmt::format(
        "`{}` on stream {}, which has not waited for the graph's work, cannot be part of a graph",
        info.name, stream.name()));
  ++graph_.launches_;
  keep(info.reads, graph_.reads_, graph_.told_reads_);
  keep(info.writes, graph_.writes_, graph_.told_writes_);
}

void Capture::add_wait(Stream& stream, uint64_t event_capture, const Stream& event_stream) {
  if (event_capture != id_)
    throw RunError(
        fmt::format("a wait of stream {} for work of {} outside cannot be part of a graph",
                    stream.name(), event_stream.name()));
  join(stream);
}

// A replay's launch names what others may know of. The pool's memory is the graph's alone, and what
// its origin owns is in order anyway, so that only the sanitizer need hear of it.
void Capture::keep(const std::vector<Access>& accesses, std::vector<Access>& all,
                   std::vector<Access>& told) {
  for (const Access& a : accesses) {
    if (!a.data || (a.storage && a.storage->pool == graph_.pool_->id())) continue;
    const bool known = std::ranges::any_of(
        all, [&](const Access& k) { return k.data == a.data && k.bytes == a.bytes; });
    if (known) continue;
    all.push_back(a);
    const bool foreign = a.storage && a.storage->home != &origin_;
    if (foreign || origin_.device().sanitizer()) told.push_back(a);
  }
}

}  // namespace mtrain::device
