// Streams, events and launch(): the one choke point through which all work, compute and
// communication alike, is enqueued.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "device/backend.h"
#include "device/stream_id.h"

namespace mtrain::device {

class Capture;
class Device;
class Stream;
struct Storage;

// A range of memory that a launch reads or writes. `storage` is null for memory that no Buffer
// owns; the caller of launch() then keeps the memory valid until the work has run.
struct Access {
  const void* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<Storage> storage{};
  DType dtype = DType::u8;
  // True if a write may leave parts of the range unchanged, or writes infinities on purpose. Checks
  // for non-finite values then skip the range.
  bool partial = false;
};

// A launch may read what it writes; then `reads` need not name the range, too.
struct LaunchInfo {
  const char* name;             // a string literal
  std::vector<Access> reads{};  // accesses with null data (absent tensors) are skipped
  std::vector<Access> writes{};
  int64_t wire_bytes = 0;                         // bytes that a communication sends over the link
  int64_t flops = 0;                              // of GEMMs and attention (kernels/flops.h)
  std::shared_ptr<const MessageEnds> messages{};  // of a timed launch; null: none
};

// When a launch ran, in nanoseconds of a steady clock.
struct Timing {
  const char* name;
  StreamId stream;
  int64_t begin_ns, end_ns;
  int64_t wire_bytes = 0;
  // How long after begin_ns another rank had still not begun its part; absent: unknown.
  std::optional<int64_t> idle_ns = 0;
  bool paired = false;       // enqueued under a Device::PairScope
  std::string_view scope{};  // Device::scope() when it was enqueued; valid during record()
  std::shared_ptr<const MessageEnds> messages{};  // that the launch sends and receives
};

// An interval in which a stream was idle, waiting for another.
struct Waiting {
  StreamId stream;
  StreamId waits_for;
  int64_t begin_ns, end_ns;
  bool paired = false;       // enqueued under a Device::PairScope
  std::string_view scope{};  // as Timing's
};

// A sink gets every launch, and every wait between streams, after it ran. The streams' threads call
// it on a CPU, the rank's host thread on a GPU.
class TimingSink {
 public:
  virtual ~TimingSink() = default;
  virtual void record(const Timing& timing) = 0;
  virtual void waited(const Waiting&) {}
};

// A moment in a stream's queue.
class Event {
 public:
  Event() = default;
  bool ready() const { return !backend_ || backend_->ready(); }
  // Blocks this thread until the event has passed, and rethrows failures of the work before it. Any
  // thread may call it. The sanitizer does not count it; Stream::synchronize() does.
  void wait() const {
    if (backend_) backend_->wait();
  }
  explicit operator bool() const { return backend_ != nullptr; }

 private:
  friend class Stream;
  std::shared_ptr<EventBackend> backend_;
  Stream* stream_ = nullptr;     // recorded the event; a stream lives as long as its device
  uint64_t number_ = 0;          // how many items the stream has before it
  uint64_t capture_ = 0;         // id of the capture that it is part of; 0: none
  std::vector<uint64_t> clock_;  // the sanitizer's vector clock at this moment
};

// An in-order queue of work. Only the rank's host thread enqueues work. Any thread may call
// record() and completed(), since memory is released on the thread where work ends.
class Stream {
 public:
  Stream(Device& device, StreamId id, int index, std::unique_ptr<StreamBackend> backend);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Enqueues `work`, which accesses exactly the memory that `info` names. Memory owned by a Buffer
  // stays valid until the work has run, even if the host drops the buffer earlier. Rethrows
  // failures of earlier work of this stream, or of a stream that it waited for; after a failure
  // nothing more runs. While a graph is captured (device/graph.h), work is recorded and not run.
  // Work that cannot be recorded throws RunError.
  void launch(LaunchInfo info, Work work);

  // Returns an event after everything enqueued so far.
  Event record();
  // Later work of this stream runs after `event`. The host does not block.
  void wait(const Event& event);
  // Blocks the host until everything enqueued so far has run, or everything before `event`.
  // Rethrows failures of that work.
  void synchronize();
  void synchronize(const Event& event);

  // These copy between host and device memory, in the stream's order. `keep` owns the host memory
  // until the copy is done. download() returns when the data has arrived.
  void upload(const Access& device, std::shared_ptr<const void> keep, const void* host);
  void download(void* host, const Access& device);
  // Enqueues a copy to `host`, which is memory of Device::host_memory(). The data is valid when an
  // event that is recorded after this call has passed.
  void download_later(void* host, const Access& device);

  uint64_t enqueued() const { return enqueued_; }  // how many items were enqueued so far
  uint64_t completed() const;  // how many of them are known to have finished; for any thread
  // Returns whether work that is enqueued from now on runs after the first `items` items of another
  // stream, since this stream has waited for an event after them. Any thread may call it.
  bool comes_after(const Stream& other, uint64_t items) const;
  // Reports to the sanitizer that the host has seen that `event` is ready.
  void host_saw(const Event& event);

  Device& device() const { return device_; }
  StreamId id() const { return id_; }
  const std::string& name() const { return name_; }  // for messages
  int index() const { return index_; }  // the number of streams that the device made before

 private:
  friend class Capture;
  // Reports the next item to the sanitizer, its buffers and the flight recorder, and counts it.
  // Returns the item's tag.
  LaunchTag register_launch(const LaunchInfo& info);
  // Throws RunError during a capture: a replay would not repeat this action (`what`) of the host.
  void refuse_capture(const char* what) const;

  Device& device_;
  const StreamId id_;
  const std::string name_;
  const int index_;
  uint64_t enqueued_ = 0;
  uint64_t capture_ = 0;  // id of the capture that the stream is part of; 0: none
  // An item enters the sanitizer's clock and the backend's queue together, under this mutex. An
  // event recorded between the two would claim to come after work that it does not wait for. The
  // mutex is recursive, since a closure that ends under it may release memory, which records
  // events.
  std::recursive_mutex order_;
  mutable std::mutex reached_mutex_;
  // For each other stream, by its index, how many of its items this stream has waited for.
  std::vector<uint64_t> reached_;
  std::unique_ptr<StreamBackend> backend_;
};

}  // namespace mtrain::device

// Every folder may call them mtrain::Event and mtrain::Stream.
namespace mtrain {
using device::Event;
using device::Stream;
}  // namespace mtrain
