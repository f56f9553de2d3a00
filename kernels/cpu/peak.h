// The machine's arithmetic peak, the denominator of MFU.
#pragma once

namespace mtrain::kernels::cpu {

// fp32 FLOP/s of fused multiply-adds (two operations each) on registers alone, on all threads of
// the current pool. Takes about 150 ms.
double measure_peak_flops();

}  // namespace mtrain::kernels::cpu
