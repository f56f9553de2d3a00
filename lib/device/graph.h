// A graph holds launches that are recorded once and then replayed as a single launch. On CUDA a
// replay costs the host one call, however many launches the graph has. Every replay uses the
// addresses and the values of arguments that the capture saw.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "device/allocator.h"
#include "device/stream.h"

namespace mtrain::device {

class Graph {
 public:
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;
  ~Graph();  // waits for replays that are still running

  // Runs all launches as one launch, in the order of the stream that the capture began on. The
  // other streams that took part wait for it, as they did during the capture.
  void replay();
  int64_t launches() const { return launches_; }

 private:
  friend class Capture;
  Graph() = default;

  Stream* origin_ = nullptr;
  std::vector<Stream*> others_;
  // Other streams for whose work before the capture the region waited: a replay waits for all their
  // work so far.
  std::vector<Stream*> earlier_;
  const char* name_ = "";
  // The launches' accesses to memory outside the pool. The graph keeps that memory and the pool
  // alive.
  std::vector<Access> reads_, writes_;
  // The subset of these accesses that the launch of a replay must name.
  std::vector<Access> named_reads_, named_writes_;
  std::shared_ptr<MemoryPool> pool_;
  Work work_;
  int64_t launches_ = 0;
};

// While a Capture lives, the device does not run but records what the rank's host thread enqueues
// on `origin`, and on streams that have waited for events. All memory comes from `pool`. A wait for
// work before the capture becomes one for all work of that stream before a replay. A stream's wait
// for an event of the capture is valid only within it. Throws RunError for what cannot be recorded:
// launches on other streams, and the host's own copies and waits. A device has one capture at a
// time.
class Capture {
 public:
  // Throws RunError if the device has no graphs.
  Capture(Stream& origin, std::shared_ptr<MemoryPool> pool);
  ~Capture();  // drops what was recorded, unless finish() was called
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Ends the capture; none of its work has run yet. The launch of a replay is named `name`, a
  // string literal. Throws RunError if the device could not record something.
  Graph finish(const char* name);

 private:
  friend class Stream;
  void add(Stream& stream, const LaunchInfo& info);
  void add_wait(Stream& stream, uint64_t event_capture, const Stream& event_stream);
  // Adds a wait of `stream` for work of `of` before the capture.
  void add_earlier(Stream& stream, Stream& of);
  void join(Stream& stream);
  void end();  // makes the streams run their work from now on
  // Adds accesses to memory outside the pool to `all`, and those that a replay must name to
  // `named`.
  void keep(const std::vector<Access>& accesses, std::vector<Access>& all,
            std::vector<Access>& named);

  Stream& origin_;
  const uint64_t id_;
  std::vector<Stream*> others_;
  Event begin_;  // the start of the graph
  Allocator::Open open_;
  Graph graph_;
  bool finished_ = false;
};

}  // namespace mtrain::device
