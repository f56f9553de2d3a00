// Launches that are recorded once and then replayed as a single one: on CUDA a graph, which costs
// the host one call however many launches it has. Whatever a launch was given by value, and every
// address, is at each replay what it was in the capture.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "device/allocator.h"
#include "device/stream.h"

namespace mtrain {

class Graph {
 public:
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;
  ~Graph();  // waits for the replays that are under way

  // Everything again, as one launch in the origin's order. Streams that took part wait, as they did
  // when it was captured.
  void replay();
  int64_t launches() const { return launches_; }

 private:
  friend class Capture;
  Graph() = default;

  Stream* origin_ = nullptr;
  std::vector<Stream*> others_;
  const char* name_ = "";
  // Memory that was there before and is there after; the graph keeps it, and its own in the pool.
  std::vector<Access> reads_, writes_;
  std::vector<Access> told_reads_,
      told_writes_;  // of these, what somebody must be told at a replay
  std::shared_ptr<MemoryPool> pool_;
  Work work_;
  int64_t launches_ = 0;
};

// From its construction on, what the rank's host thread gives to `origin`, and to streams that wait
// for events recorded meanwhile, is recorded instead of run, and all memory is drawn from `pool`.
// What cannot be recorded throws RunError: launches on other streams, waits for what is not
// recorded, and whatever the host itself must wait for or copy. One at a time per device.
class Capture {
 public:
  Capture(Stream& origin, std::shared_ptr<MemoryPool> pool);  // RunError where there are no graphs
  ~Capture();  // unless finished: nothing has happened
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // `name`, a string literal, is that of a replay's launch. Throws RunError where the device could
  // not record something. Nothing has run yet.
  Graph finish(const char* name);

 private:
  friend class Stream;
  void add(Stream& stream, const LaunchInfo& info);
  void add_wait(Stream& stream, uint64_t event_capture, const char* event_stream);
  void join(Stream& stream);
  void end();  // streams run again
  void keep(const std::vector<Access>& accesses, std::vector<Access>& all,
            std::vector<Access>& told);

  Stream& origin_;
  const uint64_t id_;
  std::vector<Stream*> others_;
  Allocator::Open open_;
  Graph graph_;
  bool finished_ = false;
};

}  // namespace mtrain
