// The machine's arithmetic peak, the denominator of MFU.
#pragma once
#include "base/dtype.h"

namespace mtrain::kernels::cpu {

// fp32 FLOP/s of fused multiply-adds (two operations each) on registers alone, on all threads of
// the current pool. Takes about 150 ms.
//
// Of bf16: the larger of that and of the rate of bf16 dot products, or of AMX tiles, where the CPU
// has them; 0, which is unknown, where it has tiles that this build or process cannot use.
double measure_peak_flops(DType dtype = DType::f32);

}  // namespace mtrain::kernels::cpu
