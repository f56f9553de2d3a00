// What the operations can do on this machine, for code that chooses among ways to compute or
// reports how near the ceiling a run is.
#pragma once
#include <memory>
#include <string>

#include "base/bf16_arithmetic.h"
#include "device/device.h"

namespace mtrain::ops {

// Returns whether this CPU can multiply two bf16 operands in this way.
bool supports(Bf16Arithmetic arithmetic);
// Returns this CPU's fastest way; finding it may measure, which takes 40 ms.
// Device::set_bf16_arithmetic() makes a device use it.
Bf16Arithmetic fastest_bf16_arithmetic();

// Returns whether a CPU device runs narrower kernels than it could, since this build left out those
// for this CPU's widest instruction set.
bool built_for_narrower_cpu(const Device& device);

// Returns the device's peak in FLOP/s. On a CPU this is the highest rate of multiply-adds in
// registers on all its threads that was measured now or, as kept_peak.h keeps, by an earlier run on
// this host, for fp32 or for the fastest way to multiply bf16 operands. 0: not known. On a GPU
// nothing is measured: it is the vendor's rating, or 0 where that is unknown.
double measured_peak_flops(Device& device, DType dtype);

// A GemmTuner chooses the algorithms of GEMMs by measuring them. GEMMs and choices are text, which
// other ranks and later runs understand (kernels/gemm_choices.h).
class GemmTuner {
 public:
  virtual ~GemmTuner() = default;
  virtual std::string unchosen() = 0;  // GEMMs that have run without a choice
  // Measures GEMMs of any rank, and returns the choices. The host waits. No GEMM is begun after
  // `seconds`.
  virtual std::string time(const std::string& gemms, double seconds) = 0;
  virtual void use(const std::string& choices) = 0;  // throws RunError for text of another form
  virtual std::string choices() = 0;
};
// Returns null for a CPU, where nothing is chosen by measuring.
std::unique_ptr<GemmTuner> gemm_tuner(Device& device);

}  // namespace mtrain::ops
