// What the operations can do on this machine, for code that chooses among ways to compute or
// reports how near the ceiling a run is.
#pragma once
#include "base/bf16_arithmetic.h"
#include "device/device.h"

namespace mtrain::ops {

// How this CPU can multiply two bf16 operands, and the fastest way to do so. Finding it may
// measure, which takes 40 ms; Device::set_bf16_arithmetic then tells a device.
bool supports(Bf16Arithmetic arithmetic);
Bf16Arithmetic fastest_bf16_arithmetic();

// Returns the device's peak in FLOP/s: on a CPU the measured rate of multiply-adds in registers on
// all its threads, for fp32 or for the fastest GEMM of bf16 operands; for a GPU its vendor's
// rating, or 0 where that is unknown.
double measured_peak_flops(Device& device, DType dtype);

}  // namespace mtrain::ops
