// Streams, events and launch(): the one choke point through which all work, compute and
// communication alike, is enqueued.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "device/backend.h"

namespace mtrain {

class Capture;
class Device;
struct Storage;

// A range of memory that a launch reads or writes. `storage` is null for memory that no Buffer
// owns: the launch's author then answers for its life.
struct Access {
  const void* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<Storage> storage{};
  DType dtype = DType::u8;
  // Of a write: it may leave parts as they were, or write infinities that mean something, so that
  // what is not finite there is no sign of trouble.
  bool partial = false;
};

struct LaunchInfo {
  const char* name;             // a string literal
  std::vector<Access> reads{};  // accesses with null data are skipped, for optional tensors
  std::vector<Access> writes{};
  int64_t wire_bytes = 0;  // that a communication puts on the link
};

// One launch as measured: nanoseconds of a steady clock.
struct Timing {
  const char* name;
  const char* stream;
  int64_t begin_ns, end_ns;
  int64_t wire_bytes = 0;
  int64_t idle_ns = 0;  // at its beginning: another rank had not begun its part
};

// A time in which a stream stood still for another.
struct Waiting {
  const char* stream;
  const char* waits_for;  // the stream
  int64_t begin_ns, end_ns;
};

// Told of every launch, and of every wait between streams, after it ran; called from the streams'
// threads.
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
  explicit operator bool() const { return backend_ != nullptr; }

 private:
  friend class Stream;
  std::shared_ptr<EventBackend> backend_;
  const char* stream_ = "";  // that recorded it; streams live as long as their device
  int stream_id_ = -1;
  uint64_t number_ = 0;          // of that stream's items before it
  uint64_t capture_ = 0;         // that it was recorded in; 0: none
  std::vector<uint64_t> clock_;  // the sanitizer's: what has happened before this moment
};

// An in-order queue of work. One host thread, the rank's, enqueues; record() and completed() may be
// called by any thread, for memory is released where work ends.
class Stream {
 public:
  Stream(Device& device, std::string name, int id, std::unique_ptr<StreamBackend> backend);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Enqueues `work`, which touches exactly the memory that `info` names. Memory owned by a Buffer
  // stays valid until the work has run, whatever the host drops meanwhile. Throws what earlier work
  // of this stream, or of a stream that it waited for, threw; after a failure nothing more runs.
  // While a graph is captured (device/graph.h) work is recorded; what cannot be throws RunError.
  void launch(LaunchInfo info, Work work);

  // An event after everything enqueued so far.
  Event record();
  // Later work of this stream runs after `event`; the host does not block.
  void wait(const Event& event);
  // Blocks the host until everything enqueued so far, or before `event`, has run; throws what
  // failed.
  void synchronize();
  void synchronize(const Event& event);

  // Copies between host and device memory, in the stream's order. `keep` holds the host memory
  // until the copy is done.
  void upload(const Access& device, std::shared_ptr<const void> keep, const void* host);
  void download(void* host, const Access& device);  // returns when the data is there

  uint64_t enqueued() const { return enqueued_; }  // items so far
  uint64_t completed() const;  // of which finished, as far as known; any thread may ask
  // Whether what is enqueued from now on runs after so many items of another stream, by an event of
  // that one which this one has waited for. Any thread.
  bool comes_after(const Stream& other, uint64_t items) const;
  void host_saw(const Event& event);  // the host has found `event` ready: tells the sanitizer

  Device& device() const { return device_; }
  const std::string& name() const { return name_; }
  int id() const { return id_; }

 private:
  friend class Capture;
  LaunchTag watch(const LaunchInfo& info);
  void refuse_capture(const char* what) const;

  Device& device_;
  std::string name_;
  int id_;
  uint64_t enqueued_ = 0;
  uint64_t capture_ = 0;  // that it is part of; 0: none
  // Makes one moment of an item's place in the sanitizer's clock and its place in the backend's
  // queue: an event recorded between the two would promise work that it does not wait for.
  // Recursive, since a closure that ends under it may release memory, which records events.
  std::recursive_mutex order_;
  mutable std::mutex reached_mutex_;
  std::vector<uint64_t> reached_;  // items of other streams that were waited for, by their id
  std::unique_ptr<StreamBackend> backend_;
};

}  // namespace mtrain
