// Which of several ways computes a matmul on this machine: measured once per shape, and kept for
// the life of the process. Ways differ in the last bits, so a checkpoint carries the plan (save,
// load) where a resumed run must be bitwise equal, and a static rule needs no measurement where
// machines must agree.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "kernels/matmul.h"

namespace mtrain::kernels::cpu {

enum class MatmulWay : uint8_t {
  own,          // kernels/cpu/gemm.h; its bits do not depend on the number of threads
  openblas,     // bf16 operands are converted to fp32 first
  onednn,       // the same
  onednn_bf16,  // bf16 operands as they are: CPUs with bf16 matrix units
  own_bf16,     // `own` with bf16 operands as they are: CPUs with AVX512_BF16
  own_amx,      // the same on AMX tiles, where CPU and system grant them
};
const char* way_name(MatmulWay way);

// The ways that can do `m` here, `own` first.
std::vector<MatmulWay> ways_of(const Matmul& m);

// Does `m` in the given way; run(const Matmul&) is this with the plan's choice.
void run(const Matmul& m, MatmulWay way);

// The table of this process. All functions are thread safe.
namespace matmul_plan {

// The way for a matmul of this shape, transposes, dtypes and current_threads(). A shape that is new
// costs some milliseconds.
MatmulWay choose(const Matmul& m);

// On: `own` for every shape, whatever was measured or loaded.
void use_static_rule(bool on);

std::string save();  // one line per shape, in a fixed order
// Adds to the table and wins over it. A way that this machine does not have is measured anew when
// its shape comes, with one warning for all. Throws UserError on a line it cannot read.
void load(std::string_view text);
void clear();

// Takes `own_amx` where there is one. Else prefers `own`, then `own_bf16`, unless another way is
// faster by this factor: what looks a little faster is often noise.
inline constexpr double kWorthSwitching = 1.08;

}  // namespace matmul_plan

}  // namespace mtrain::kernels::cpu
