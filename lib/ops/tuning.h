// What the operations can do on this machine, for those who choose among it or want to know the
// ceiling.
#pragma once
#include "base/bf16_arithmetic.h"
#include "device/device.h"

namespace mtrain::ops {

// How this CPU can multiply two bf16 operands, and how it does so fastest (some are measured, which
// takes 40 ms; Device::set_bf16_arithmetic then tells a device).
bool supports(Bf16Arithmetic arithmetic);
Bf16Arithmetic fastest_bf16_arithmetic();

// The rate of multiply-adds in registers with the device's threads, FLOP/s: fp32's, or the fastest
// that a product of bf16 operands can have; of a GPU what its vendor rates it at. 0 where unknown.
double measured_peak_flops(Device& device, DType dtype);

}  // namespace mtrain::ops
