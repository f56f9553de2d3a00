// What a kind of device must provide; cpu/ and cuda/ implement it. Only lib/device includes this.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

struct CUstream_st;

namespace mtrain {

class TimingSink;

// Handed to the work of a launch. On the CPU the work runs on the stream's worker thread; on CUDA
// it runs on the host and enqueues on `cuda`.
struct LaunchContext {
  CUstream_st* cuda = nullptr;
};
using Work = std::function<void(const LaunchContext&)>;

class EventBackend {
 public:
  virtual ~EventBackend() = default;
  virtual bool ready() const = 0;
  virtual void wait() const = 0;  // blocks; rethrows the first failure of the work before it
};

class StreamBackend {
 public:
  virtual ~StreamBackend() = default;
  // `name` is a string literal; `sink` may be null. Rethrows the first failure of earlier work.
  virtual void enqueue(const char* name, TimingSink* sink, Work work) = 0;
  virtual std::shared_ptr<EventBackend> record() = 0;
  virtual void wait(std::shared_ptr<EventBackend> event) = 0;
  virtual void upload(void* device, std::shared_ptr<const void> keep, const void* host,
                      int64_t bytes) = 0;
  // Host memory is valid after synchronize().
  virtual void download(void* host, const void* device, int64_t bytes) = 0;
  // Rethrows the first failure of this stream's work.
  virtual void synchronize() = 0;
  // Items (launches, copies, waits) known to have finished well; any thread may ask.
  virtual uint64_t completed() const = 0;
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  virtual std::string description() const = 0;  // "CPU, 2 threads, AVX-512" or "NVIDIA H200 141 GB"
  virtual bool is_cuda() const = 0;
  virtual int threads() const = 0;  // intra-op threads; 1 on CUDA
  virtual std::unique_ptr<StreamBackend> make_stream(const std::string& name) = 0;
  virtual void* allocate(
      int64_t bytes) = 0;  // aligned to 2 MiB; throws RunError when memory is short
  virtual void release(void* memory, int64_t bytes) = 0;
};

std::unique_ptr<DeviceBackend> make_cpu_backend(int threads);
std::unique_ptr<DeviceBackend> make_cuda_backend(int ordinal);

}  // namespace mtrain
