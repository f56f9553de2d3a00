// What a kind of device must provide; cpu/ and cuda/ implement it. Code above lib/device uses
// Stream and Device; of this header it knows Work and LaunchContext, through device/stream.h.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

struct CUstream_st;

namespace mtrain {

class TimingSink;

// Where work that goes on behind its launch tells that it has failed: the device's streams and
// events throw it on. Any thread.
class AsyncError {
 public:
  void set(std::exception_ptr failure) noexcept;  // the first stays
  void rethrow() const;

 private:
  mutable std::mutex mutex_;
  std::exception_ptr failure_;
};

// Handed to the work of a launch. On the CPU the work runs on the stream's worker thread; on CUDA
// it runs on the host and enqueues on `cuda`.
struct LaunchContext {
  CUstream_st* cuda = nullptr;
  // Null, or where work says for how long it has waited for another rank to begin its part.
  int64_t* idle_ns = nullptr;
  std::shared_ptr<AsyncError> late{};  // null on the CPU, where work ends before it returns
};
using Work = std::function<void(const LaunchContext&)>;

// Within a launch: copies between ranges of the device's memory that are one, or apart.
void copy_on_device(const LaunchContext& context, void* to, const void* from, int64_t bytes);
void copy_by_cuda(CUstream_st* stream, void* to, const void* from, int64_t bytes);  // its CUDA part

// Which item of which queue: what a failure names.
struct LaunchTag {
  const char* name = "";  // a string literal
  uint64_t number = 0;    // of the item within its stream, from 1
  std::shared_ptr<const std::string>
      scope{};                      // what the rank worked on; null: nothing in particular
  TimingSink* sink = nullptr;       // told when the item has run; may be null
  const char* waits_for = nullptr;  // of a wait: the stream that it waits for
  int64_t wire_bytes = 0;
};

// The failure with its culprit behind the message: "in `attention_bwd`, item 17 of stream compute,
// in layers.3.attention". The class of an Error stays; other exceptions become a RunError.
std::exception_ptr with_culprit(std::exception_ptr failure, const LaunchTag& tag,
                                const std::string& stream);

class EventBackend {
 public:
  virtual ~EventBackend() = default;
  virtual bool ready() const = 0;
  virtual void wait() const = 0;  // blocks; rethrows the first failure of the work before it
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
  // Host memory is valid after synchronize().
  virtual void download(LaunchTag tag, void* host, const void* device, int64_t bytes) = 0;
  // Rethrows the first failure of this stream's work.
  virtual void synchronize() = 0;
  // From here on items of this stream, and of those that wait for events recorded meanwhile, are
  // recorded instead of run. The default throws RunError: nothing is recorded here.
  virtual void begin_capture();
  // Ends it. What was recorded, as the work of one launch of this stream; the streams that have
  // joined must have been waited for. Throws where something could not be recorded.
  virtual Work end_capture();
  // Items (launches, copies, waits) known to have finished well; any thread may ask.
  virtual uint64_t completed() const = 0;
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  virtual std::string description() const = 0;  // "CPU, 2 threads" or "NVIDIA H200, 139 GiB, ..."
  virtual bool is_cuda() const = 0;
  virtual int threads() const = 0;  // intra-op threads; 1 on CUDA
  virtual std::unique_ptr<StreamBackend> make_stream(const std::string& name) = 0;
  // Aligned to 512 bytes at least; throws RunError when memory is short.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* memory, int64_t bytes) = 0;
};

std::unique_ptr<DeviceBackend> make_cpu_backend(int threads, double compute_slowdown = 1);
std::unique_ptr<DeviceBackend> make_cuda_backend(int ordinal);

}  // namespace mtrain
