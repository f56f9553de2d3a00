// The interface that each kind of device implements, in cpu/ and cuda/. Code above lib/device uses
// Stream and Device. From this header it uses only Work and LaunchContext, through device/stream.h.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/device_kind.h"
#include "device/stream_id.h"

struct CUstream_st;

namespace mtrain::device {

class EventBackend;
class TimingSink;

// Work that continues after its launch has returned reports its failure here, from any thread. The
// device's streams and events rethrow it.
class AsyncError {
 public:
  void set(std::exception_ptr failure) noexcept;  // keeps the first failure
  void rethrow() const;

 private:
  mutable std::mutex mutex_;
  std::exception_ptr failure_;
};

struct LaunchContext;

// Is called around each replay of a graph. A launch that was recorded in the graph has asked for it
// (LaunchContext::replays), since its own work on the host is not repeated.
class ReplayHook {
 public:
  virtual ~ReplayHook() = default;
  // Both enqueue on the stream of the replay; before() may throw.
  virtual void before(const LaunchContext& context) = 0;
  virtual void after(const LaunchContext& context) = 0;
};
using ReplayHooks = std::vector<std::shared_ptr<ReplayHook>>;

// The argument of a launch's work. On the CPU the work runs on the stream's worker thread; on CUDA
// it runs on the host and enqueues on `cuda`.
struct LaunchContext {
  CUstream_st* cuda = nullptr;
  // If not null, the launch is timed, and communication writes here how long it has waited for
  // another rank to begin its part; absent: unknown.
  std::optional<int64_t>* idle_ns = nullptr;
  // Gets failures after the work has returned; null on the CPU, where work ends before it returns.
  std::shared_ptr<AsyncError> late{};
  // On CUDA: records an event after what the work has enqueued so far. The event comes from the
  // device's pool. Returns null during a capture, since captured work runs only at replays.
  std::function<std::shared_ptr<EventBackend>()> record{};
  // Not null if the work is recorded for a graph: the hooks of its replays. Null on the CPU, where
  // a replay calls the work again.
  ReplayHooks* replays = nullptr;
};
using Work = std::function<void(const LaunchContext&)>;

// Copies within the device's memory, as part of a launch. The two ranges are the same or do not
// overlap.
void copy_on_device(const LaunchContext& context, void* to, const void* from, int64_t bytes);
// Does the same on CUDA.
void copy_by_cuda(CUstream_st* stream, void* to, const void* from, int64_t bytes);

// This rank's end of a message between two ranks. The other end has the same id.
struct MessageEnd {
  uint64_t id;
  bool sent;  // or received
};
using MessageEnds = std::vector<MessageEnd>;

// Identifies an item of a stream's queue, for failures and timings.
struct LaunchTag {
  const char* name = "";  // a string literal
  uint64_t number = 0;    // its place within its stream, from 1
  // The Device::Scope in which the item was enqueued; null: none.
  std::shared_ptr<const std::string> scope{};
  TimingSink* sink = nullptr;           // called when the item has run; may be null
  std::optional<StreamId> waits_for{};  // the stream that a wait is for; absent for other items
  int64_t wire_bytes = 0;
  bool paired = false;                            // enqueued under a Device::PairScope
  std::shared_ptr<const MessageEnds> messages{};  // null: none
};

// Returns the failure with the item appended to its message: "in `attention_bwd`, item 17 of stream
// compute, in layers.3.attention". An Error keeps its class; other exceptions become a RunError.
std::exception_ptr with_culprit(std::exception_ptr failure, const LaunchTag& tag, StreamId stream);

class EventBackend {
 public:
  virtual ~EventBackend() = default;
  virtual bool ready() const = 0;
  virtual void wait() const = 0;  // blocks, and rethrows the first failure of the work before it
};

class StreamBackend {
 public:
  virtual ~StreamBackend() = default;
  // Rethrows the first failure of earlier work.
  virtual void enqueue(LaunchTag tag, Work work) = 0;
  virtual std::shared_ptr<EventBackend> record() = 0;
  virtual void wait(LaunchTag tag, std::shared_ptr<EventBackend> event) = 0;
  virtual void upload(LaunchTag tag, void* device, std::shared_ptr<const void> keep,
                      const void* host, int64_t bytes) = 0;
  // The host memory is valid after synchronize().
  virtual void download(LaunchTag tag, void* host, const void* device, int64_t bytes) = 0;
  // Rethrows the first failure of this stream's work.
  virtual void synchronize() = 0;
  // From this call on the device records the items of this stream, and of streams that wait for
  // events of the capture, and does not run them. The default throws RunError: such a device has no
  // graphs.
  virtual void begin_capture();
  // Ends the capture, and returns the recorded items as the work of one launch of this stream. This
  // stream must have waited for all streams that joined. Throws if something could not be recorded.
  virtual Work end_capture();
  // The number of items (launches, copies, waits) that are known to have succeeded. Any thread may
  // call it.
  virtual uint64_t completed() const = 0;
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  virtual std::string description() const = 0;  // "CPU, 2 threads" or "NVIDIA H200, 139 GiB, ..."
  virtual bool is_cuda() const = 0;
  virtual int threads() const = 0;                    // intra-op threads; 1 on CUDA
  virtual int64_t memory_bytes() const { return 0; }  // of a GPU; 0 on the CPU, which ranks share
  virtual std::unique_ptr<StreamBackend> make_stream(StreamId id) = 0;
  // Returns memory aligned to 512 bytes at least. Throws RunError when memory is short.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* memory, int64_t bytes) = 0;
  // Returns host memory into which the device can copy while the host does other work.
  virtual std::shared_ptr<void> host_memory(int64_t bytes);
  // Called before timings are taken, and again at the begin of each timed step.
  virtual void begin_timings() {}
  // Later work of the compute stream takes this many times its processor time, on a CPU.
  virtual void set_compute_slowdown(double /*factor*/) {}
  // Marks the host's work until pop_range() with a name, for a profiler that watches the process.
  // Ranges nest. A backend without a profiler ignores them.
  virtual void push_range(const char* /*name*/) {}
  virtual void pop_range() {}
};

std::unique_ptr<DeviceBackend> make_cpu_backend(int threads, double compute_slowdown = 1);
std::unique_ptr<DeviceBackend> make_cuda_backend(int ordinal);
std::unique_ptr<DeviceBackend> make_recording_backend(DeviceKind like);

}  // namespace mtrain::device
