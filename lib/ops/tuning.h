// What the operations can do on this machine, for code that chooses between methods or compares a
// run with the machine's peak.
#pragma once
#include <memory>
#include <string>

#include "base/bf16_arithmetic.h"
#include "device/device.h"

namespace mtrain::ops {

// Returns whether this CPU supports this method for two bf16 operands.
bool supports(Bf16Arithmetic arithmetic);
// Returns this CPU's fastest method; it may make a measurement, which takes 40 ms.
// Device::set_bf16_arithmetic() makes a device use it.
Bf16Arithmetic fastest_bf16_arithmetic();

// Returns whether a CPU device runs narrower kernels than it could, since this build lacks those
// for this CPU's widest instruction set.
bool built_for_narrower_cpu(const Device& device);

// Returns the device's peak in FLOP/s; 0: not known. On a CPU this is the highest measured rate of
// multiply-adds in registers on all its threads, for fp32 or for the fastest bf16 method. The
// measurement is from now or from an earlier run on this host (kept_peak.h). On a GPU it is the
// vendor's rating, or 0 if that is unknown.
double measured_peak_flops(Device& device, DType dtype);

// A GemmTuner chooses the algorithms of GEMMs by measuring them. GEMMs and choices are text that
// other ranks and later runs can read (kernels/gemm_choices.h).
class GemmTuner {
 public:
  virtual ~GemmTuner() = default;
  virtual std::string unchosen() = 0;  // GEMMs that have run without a choice
  // Measures GEMMs of any rank, and returns the choices. The host waits. It starts no GEMM after
  // `seconds`.
  virtual std::string time(const std::string& gemms, double seconds) = 0;
  virtual void use(const std::string& choices) = 0;  // throws RunError for text of another format
  virtual std::string choices() = 0;
};
// Returns null for a CPU, where nothing is chosen by measuring.
std::unique_ptr<GemmTuner> gemm_tuner(Device& device);

}  // namespace mtrain::ops
