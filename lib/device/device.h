// A rank's device: its streams, its memory, and what watches every launch. One Device per rank;
// nothing here is global.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bf16_arithmetic.h"
#include "base/device_kind.h"
#include "device/allocator.h"
#include "device/stream.h"

namespace mtrain {

class Capture;
class DeviceBackend;
class FlightRecorder;
class Sanitizer;
class TimingSink;

struct DeviceOptions {
  bool stream_sanitizer =
      false;  // check that events order all conflicting accesses of different streams
  double compute_slowdown = 1;  // as DebugConfig says; of CPU devices
  int64_t norm_sm_margin = 0;   // multiprocessors of a GPU that norms leave to other work
};

class Device {
 public:
  // A CPU device with that many threads, or the GPU of that number.
  static std::unique_ptr<Device> open(DeviceKind kind, int threads, int ordinal,
                                      DeviceOptions options = {});
  static std::unique_ptr<Device> cpu(int threads, DeviceOptions options = {});
  static std::unique_ptr<Device> cuda(int ordinal, DeviceOptions options = {});
  static std::unique_ptr<Device> on(std::unique_ptr<DeviceBackend> backend,
                                    DeviceOptions options = {});  // tests bring their own
  ~Device();                                                      // waits for the streams
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  std::string description() const;
  bool is_cuda() const;
  int threads() const;
  int64_t norm_sm_margin() const { return norm_sm_margin_; }

  // How matmuls of two bf16 operands that are launched from now on are computed; none where the
  // device has one way alone, as a GPU.
  std::optional<Bf16Arithmetic> bf16_arithmetic() const {
    return is_cuda() ? std::nullopt : std::optional(bf16_arithmetic_);
  }
  void set_bf16_arithmetic(Bf16Arithmetic arithmetic) { bf16_arithmetic_ = arithmetic; }

  // The stream of that name ("compute", "tp", "dp", "copy", ...), created at its first use.
  Stream& stream(const std::string& name);
  void synchronize();  // all streams, to their ends; then rethrows the first failure

  Allocator& allocator() { return *allocator_; }
  const Allocator& allocator() const { return *allocator_; }
  FlightRecorder& recorder() { return *recorder_; }
  Sanitizer* sanitizer() { return sanitizer_.get(); }  // null when off

  // Called on the host after every launch of compute work, with its name and accesses; empty turns
  // it off. For diagnosis.
  using LaunchCheck = std::function<void(Stream&, const LaunchInfo&)>;
  void set_launch_check(LaunchCheck check) { launch_check_ = std::move(check); }
  const LaunchCheck& launch_check() const { return launch_check_; }

  // What the rank is working on ("layers.3.attention"), innermost last; failures and reports name
  // it.
  class Scope {
   public:
    Scope(Device& device, const std::string& name);
    ~Scope() { device_.scope_ = std::move(outer_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Device& device_;
    std::shared_ptr<const std::string> outer_;
  };
  std::string scope() const { return scope_ ? *scope_ : ""; }  // "layers.3 > attention"
  std::shared_ptr<const std::string> shared_scope() const { return scope_; }  // null: none

  // Every launch from now on is timed and told to `sink`; null stops it. Waits for the work that
  // still knows the sink of before, which is told nothing more once this returns.
  void set_timing_sink(TimingSink* sink);
  TimingSink* timing_sink() const { return sink_; }

  Capture* capture() const { return capture_; }  // that goes on; null: none

 private:
  friend class Capture;
  Device(std::unique_ptr<DeviceBackend> backend, DeviceOptions options);
  void drain() noexcept;  // all streams, to their ends; failures stay where they are

  std::unique_ptr<DeviceBackend> backend_;
  const int64_t norm_sm_margin_;
  Bf16Arithmetic bf16_arithmetic_ = Bf16Arithmetic::widened;
  std::shared_ptr<Allocator> allocator_;  // weakly held by its buffers
  std::unique_ptr<FlightRecorder> recorder_;
  std::unique_ptr<Sanitizer> sanitizer_;
  std::map<std::string, std::unique_ptr<Stream>> streams_;
  TimingSink* sink_ = nullptr;
  Capture* capture_ = nullptr;
  LaunchCheck launch_check_;
  std::shared_ptr<const std::string> scope_;  // joined once, since every launch keeps it
};

}  // namespace mtrain
