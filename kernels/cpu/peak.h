// The machine's arithmetic peak, the denominator of MFU.
#pragma once
#include "base/bf16_arithmetic.h"
#include "base/dtype.h"

namespace mtrain::kernels::cpu {

// fp32 FLOP/s of fused multiply-adds (two operations each) on registers alone, on all threads of
// the current pool. Takes about 150 ms.
//
// For bf16 it is the larger of that and of the rate of bf16 dot products, or of AMX tiles, where
// they can be used.
double measure_peak_flops(DType dtype = DType::f32);

// The fastest way to multiply bf16 operands here: tiles where the CPU has them; else dot products
// where their rate in registers is clearly above that of fp32, which takes 40 ms to measure. On
// known CPUs that rate is either half of fp32's or twice, so that every measurement on one kind of
// CPU says the same.
Bf16Arithmetic fastest_bf16_arithmetic();

}  // namespace mtrain::kernels::cpu
