// What the operations choose for themselves on this machine, for those who need runs to agree or
// want to know the ceiling.
#pragma once
#include <string>
#include <string_view>

#include "device/device.h"

namespace mtrain::ops {

// Loads the libraries that matmul may use. It changes environment variables for a moment: call it
// once, before the first Device starts threads. Without it matmul does without OpenBLAS.
void load_matmul_libraries();

// Which matmul implementation serves which shape is measured at first use; implementations differ
// in the last bits. A checkpoint carries the choices, so that a resumed run repeats them; a fixed
// choice is for runs that must agree bit by bit.
std::string matmul_choices();
void restore_matmul_choices(
    std::string_view choices);  // throws UserError on text that matmul_choices() did not write
void fix_matmul_choices(bool fixed);

// Whether attention's backward on a GPU adds in one order, at the price of time and memory.
void fix_attention_order(bool fixed);

// The rate of multiply-adds in registers with the device's threads, FLOP/s: fp32's, or the fastest
// that a product of bf16 operands can have; of a GPU what its vendor rates it at. 0 where unknown.
double measured_peak_flops(Device& device, DType dtype);

}  // namespace mtrain::ops
