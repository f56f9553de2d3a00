// The choice of the GEMM that computes a matmul on the CPU. It follows from the operands' types,
// from how bf16 is multiplied in this run (Matmul::bf16) and from the instruction set: never from
// the shape, the number of threads or a measurement. Each backend gives an element of C the same
// bits however rows and columns of C are cut into calls (kernels/cpu/gemm.h), so that chunks of a
// product are bitwise the whole one.
#pragma once
#include <string_view>
#include <vector>

#include "kernels/matmul.h"

namespace mtrain::kernels::cpu {

enum class MatmulBackend : uint8_t {
  native,       // fp32 arithmetic; bf16 operands are widened while they are packed
  native_bf16,  // bf16 dot products: CPUs with AVX512_BF16
  native_amx,   // tiles of bf16: CPUs with AMX
};
std::string_view backend_name(MatmulBackend backend);

// Whether two bf16 operands can be multiplied this way here: `widened` always can. A cap on the
// instruction set (MTRAIN_CPU_ISA) counts.
bool supports(Bf16Arithmetic arithmetic);

MatmulBackend choose_backend(const Matmul& m);
std::vector<MatmulBackend> available_backends(const Matmul& m);  // `native` first

// Computes `m` by this backend; run(const Matmul&) is this with choose_backend(m).
void run(const Matmul& m, MatmulBackend backend);

}  // namespace mtrain::kernels::cpu
