// The machine's peak rate of arithmetic, the denominator of MFU.
#pragma once
#include "base/bf16_arithmetic.h"
#include "base/dtype.h"

namespace mtrain::kernels::cpu {

// Measures the FLOP/s of fp32 fused multiply-adds (two operations each) on registers only, on all
// threads of the current pool. For bf16 it returns the larger of that rate and the rate of AMX
// tiles or, without tiles, of bf16 dot products if the CPU has them. The result is the best of many
// short rounds (peak_rounds.h). Takes 0.15 to 0.6 s for each rate; 0 if the threads never had their
// cores at the same time.
double measure_peak_flops(DType dtype = DType::f32);

// Returns the fastest way to multiply bf16 operands on this CPU. It is tiles if the CPU has them;
// else dot products if their rate in registers is clearly above the rate of fp32; else widened. The
// measurement takes 40 ms. On known CPUs the rate of dot products is either half or twice the rate
// of fp32. Therefore every measurement on one kind of CPU gives the same answer.
Bf16Arithmetic fastest_bf16_arithmetic();

}  // namespace mtrain::kernels::cpu
