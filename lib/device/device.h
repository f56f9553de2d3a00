// A rank's device: its streams, its memory, and the observers of every launch. Each rank has one
// Device; nothing here is global.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/bf16_arithmetic.h"
#include "base/device_kind.h"
#include "device/allocator.h"
#include "device/stream.h"

namespace mtrain::device {

class Capture;
class DeclaredValues;
class DeviceBackend;
class FlightRecorder;
class Records;
class Sanitizer;
class TimingSink;

struct DeviceOptions {
  // Turns the stream sanitizer on: it checks that events order all conflicting accesses of
  // different streams.
  bool stream_sanitizer = false;
  // On a CPU the work of the compute stream takes this many times the processor time that it needs,
  // to emulate a slower CPU.
  double compute_slowdown = 1;
  // Number of a GPU's multiprocessors that norms leave to other work.
  int64_t norm_sm_margin = 0;
  // The same for GEMMs.
  int64_t gemm_sm_margin = 0;
  // Allows some kernels of a GPU to begin before the previous kernel of their stream has ended
  // (kernels/cuda/device/dependent_launch.h).
  bool dependent_launch = false;
  // Makes attention's backward on a GPU add in a fixed order, which costs time and memory.
  bool fixed_attention_order = true;
  // Makes a GPU compute attention only with mtrain's own kernels, without cuDNN's.
  bool own_attention = false;
  // The same for GEMMs of experts, without CUTLASS's.
  bool own_grouped_gemm = false;
  // Shows scopes and launches to a profiler of NVIDIA's, as NVTX ranges. A CPU has none.
  bool nvtx = false;
};

class Device {
 public:
  // Opens a CPU device with `threads` threads, or the GPU of number `ordinal`.
  static std::unique_ptr<Device> open(DeviceKind kind, int threads, int ordinal,
                                      DeviceOptions options = {});
  static std::unique_ptr<Device> cpu(int threads, DeviceOptions options = {});
  static std::unique_ptr<Device> cuda(int ordinal, DeviceOptions options = {});
  // Makes a device over any backend; tests have backends of their own.
  static std::unique_ptr<Device> on(std::unique_ptr<DeviceBackend> backend,
                                    DeviceOptions options = {});
  // Makes a device that runs nothing and has no memory. The host enqueues the work of a model of
  // any size within microseconds a launch. set_records() keeps the launches, and allocator() counts
  // the memory. The host takes the paths of a device of kind `like`. What it reads from the device
  // is declared (device/recording/declared_values.h).
  static std::unique_ptr<Device> recording(DeviceKind like, DeviceOptions options = {});
  ~Device();  // waits for the streams
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  std::string description() const;
  bool is_cuda() const;  // true on a recording device that is like a GPU
  bool is_recording() const { return declared_ != nullptr; }
  int threads() const;
  int64_t memory_bytes() const;  // of a GPU; 0 on the CPU, which ranks share
  // Returns host memory for Stream::download_later(). Making it is slow, so keep it.
  std::shared_ptr<void> host_memory(int64_t bytes);
  int64_t norm_sm_margin() const { return norm_sm_margin_; }
  int64_t gemm_sm_margin() const { return gemm_sm_margin_; }
  bool dependent_launch() const { return dependent_launch_; }
  bool fixed_attention_order() const { return fixed_attention_order_; }
  bool own_attention() const { return own_attention_; }
  bool own_grouped_gemm() const { return own_grouped_gemm_; }
  bool ranges() const { return ranges_; }  // whether a profiler sees scopes and launches

  // On a CPU, makes later work of the compute stream take this many times its processor time.
  void set_compute_slowdown(double factor);

  // How matmuls and attention that are launched from now on multiply two bf16 operands. Absent on a
  // GPU, which has only one method.
  std::optional<Bf16Arithmetic> bf16_arithmetic() const {
    return is_cuda() ? std::nullopt : std::optional(bf16_arithmetic_);
  }
  void set_bf16_arithmetic(Bf16Arithmetic arithmetic) { bf16_arithmetic_ = arithmetic; }

  // Returns the stream, which is created at its first use.
  Stream& stream(StreamId id);
  // Waits until all streams have run their queues, and then rethrows the first failure.
  void synchronize();

  Allocator& allocator() { return *allocator_; }
  const Allocator& allocator() const { return *allocator_; }
  FlightRecorder& recorder() { return *recorder_; }
  Sanitizer* sanitizer() { return sanitizer_.get(); }  // null when off

  // For diagnosis: makes the host call `check` after every launch, with the launch's name and
  // accesses. An empty check turns this off.
  using LaunchCheck = std::function<void(Stream&, const LaunchInfo&)>;
  void set_launch_check(LaunchCheck check) { launch_check_ = std::move(check); }
  const LaunchCheck& launch_check() const { return launch_check_; }

  // Enters everything that is enqueued from now on into `records`; null ends this.
  void set_records(Records* records) { records_ = records; }
  Records* records() const { return records_; }
  DeclaredValues* declared_values() const { return declared_.get(); }  // null on other devices

  // While a Range lives, a profiler shows what the host does under its name, if the options ask for
  // that. A range is the time in which the host enqueues work: profilers assign kernels to the
  // range of their launch. A replay of a graph is one launch, and has no ranges inside.
  class Range {
   public:
    Range(Device& device, const char* name) : device_(device.ranges_ ? &device : nullptr) {
      if (device_) device_->push_range(name);
    }
    ~Range() {
      if (device_) device_->pop_range();
    }
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;

   private:
    Device* const device_;
  };

  // While a Scope lives, failures and reports name it as the rank's current work
  // ("layers.3.attention"). Scopes nest, and the innermost is named last. A scope is also a range.
  class Scope {
   public:
    Scope(Device& device, const std::string& name);
    ~Scope() { device_.scope_ = std::move(outer_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Device& device_;
    std::shared_ptr<const std::string> outer_;
    const Range range_;
  };
  std::string scope() const { return scope_ ? *scope_ : ""; }  // "layers.3 > attention"
  std::shared_ptr<const std::string> shared_scope() const { return scope_; }  // null without one

  // While a PairScope lives, timings mark enqueued work as part of a pair: a forward and a backward
  // of different micro-batches that run together. The communication of each is hidden behind the
  // compute of the other.
  class PairScope {
   public:
    explicit PairScope(Device& device)
        : device_(device), outer_(std::exchange(device.pairs_, true)) {}
    ~PairScope() { device_.pairs_ = outer_; }
    PairScope(const PairScope&) = delete;
    PairScope& operator=(const PairScope&) = delete;

   private:
    Device& device_;
    const bool outer_;
  };
  bool pairs() const { return pairs_; }  // whether a PairScope lives

  // While a GemmMargin lives, GEMMs leave this number of multiprocessors to other work; 0: the
  // number of the options.
  class GemmMargin {
   public:
    GemmMargin(Device& device, int64_t multiprocessors)
        : device_(device), outer_(device.gemm_sm_margin_) {
      if (multiprocessors > 0) device.gemm_sm_margin_ = multiprocessors;
    }
    ~GemmMargin() { device_.gemm_sm_margin_ = outer_; }
    GemmMargin(const GemmMargin&) = delete;
    GemmMargin& operator=(const GemmMargin&) = delete;

   private:
    Device& device_;
    const int64_t outer_;
  };

  // Times every launch from now on and reports it to `sink`; null stops the timing. Waits for the
  // work that still reports to the previous sink, which is not called after this returns.
  void set_timing_sink(TimingSink* sink);
  TimingSink* timing_sink() const { return sink_; }

  Capture* capture() const { return capture_; }  // the capture in progress, or null

 private:
  friend class Capture;
  Device(std::unique_ptr<DeviceBackend> backend, DeviceOptions options);
  // Waits until all streams have run their queues; failures are not rethrown.
  void drain() noexcept;
  void push_range(const char* name);
  void pop_range();

  std::unique_ptr<DeviceBackend> backend_;
  const int64_t norm_sm_margin_;
  int64_t gemm_sm_margin_;
  const bool dependent_launch_, fixed_attention_order_, own_attention_, own_grouped_gemm_, ranges_;
  Bf16Arithmetic bf16_arithmetic_ = Bf16Arithmetic::widened;
  std::shared_ptr<Allocator> allocator_;  // its buffers hold weak pointers to it
  std::unique_ptr<FlightRecorder> recorder_;
  std::unique_ptr<Sanitizer> sanitizer_;
  std::map<StreamId, std::unique_ptr<Stream>> streams_;
  TimingSink* sink_ = nullptr;
  bool pairs_ = false;
  Capture* capture_ = nullptr;
  LaunchCheck launch_check_;
  Records* records_ = nullptr;
  std::unique_ptr<DeclaredValues> declared_;  // of a recording device
  // The names of all scopes. They are joined when a scope begins, since every launch keeps them.
  std::shared_ptr<const std::string> scope_;
};

}  // namespace mtrain::device

// Every folder may call it mtrain::Device.
namespace mtrain {
using device::Device;
}  // namespace mtrain
