#include "device/graph.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/error.h"
#include "device/device.h"

namespace mtrain::device {

namespace {
uint64_t next_id() {
  static std::atomic<uint64_t> last{0};  // ids need only differ within the process
  return ++last;
}
}  // namespace

Graph::~Graph() {
  if (!pool_) return;  // moved from
  try {
    origin_->synchronize();
  } catch (...) {  // a failure is reported to the code that waits for the work
  }
}

void Graph::replay() {
  Device& device = origin_->device();
  MT_CHECK(!device.capture(), "a graph is replayed during a capture");
  device.allocator().await_users(*pool_);
  for (Stream* s : others_) origin_->wait(s->record());  // edge: the others' work -> the graph
  for (Stream* s : earlier_) origin_->wait(s->record());
  origin_->launch({.name = name_, .reads = named_reads_, .writes = named_writes_}, work_);
  if (others_.empty()) return;
  const Event done = origin_->record();
  for (Stream* s : others_) s->wait(done);  // edge: the graph -> the others' next work
}

Capture::Capture(Stream& origin, std::shared_ptr<MemoryPool> pool)
    : origin_(origin), id_(next_id()), open_(origin.device().allocator(), *pool) {
  Device& device = origin.device();
  MT_CHECK(!device.capture(), "a capture begins during another capture");
  device.allocator().await_users(*pool);
  graph_.origin_ = &origin;
  graph_.pool_ = std::move(pool);
  const std::lock_guard lock(origin.order_);
  origin.backend_->begin_capture();
  origin.capture_ = id_;
  device.capture_ = this;
  begin_ = origin.record();
}

Capture::~Capture() {
  if (finished_) return;
  try {
    (void)origin_.backend_->end_capture();
  } catch (...) {  // the capture is dropped anyway
  }
  end();
  origin_.device().allocator().free_dropped(*graph_.pool_);  // nothing has touched its memory
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
  for (Stream* s : others_) origin_.wait(s->record());  // edge: the others' work -> the graph's end
  try {
    const std::lock_guard lock(origin_.order_);
    graph_.work_ = origin_.backend_->end_capture();
  } catch (...) {
    end();
    origin_.device().allocator().free_dropped(*graph_.pool_);
    throw;
  }
  end();
  if (!others_.empty()) {
    const Event joined = origin_.record();
    for (Stream* s : others_) s->wait(joined);  // edge: the graph -> the others' next work
  }
  origin_.device().allocator().free_dropped(*graph_.pool_);
  graph_.name_ = name;
  graph_.others_ = others_;
  std::erase_if(graph_.earlier_, [&](Stream* s) { return std::ranges::count(others_, s) > 0; });
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
  keep(info.reads, graph_.reads_, graph_.named_reads_);
  keep(info.writes, graph_.writes_, graph_.named_writes_);
}

void Capture::add_wait(Stream& stream, uint64_t event_capture, const Stream& event_stream) {
  if (event_capture != id_)
    throw RunError(
        fmt::format("a wait of stream {} for work of {} in another graph cannot be part of a graph",
                    stream.name(), event_stream.name()));
  join(stream);
}

void Capture::add_earlier(Stream& stream, Stream& of) {
  if (stream.capture_ != id_) stream.wait(begin_);  // edge: the start of the graph -> its stream
  if (&of == &origin_ || std::ranges::count(graph_.earlier_, &of) > 0) return;
  graph_.earlier_.push_back(&of);
}

// The launch of a replay names only the memory that other streams may own. The pool's memory
// belongs only to the graph. The queue of the origin stream orders the memory that this stream
// owns; only the sanitizer needs to know these accesses.
void Capture::keep(const std::vector<Access>& accesses, std::vector<Access>& all,
                   std::vector<Access>& named) {
  for (const Access& a : accesses) {
    if (!a.data || (a.storage && a.storage->pool == graph_.pool_->id())) continue;
    const bool known = std::ranges::any_of(
        all, [&](const Access& k) { return k.data == a.data && k.bytes == a.bytes; });
    if (known) continue;
    all.push_back(a);
    const bool foreign = a.storage && a.storage->home != &origin_;
    if (foreign || origin_.device().sanitizer()) named.push_back(a);
  }
}

}  // namespace mtrain::device
