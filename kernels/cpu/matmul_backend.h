// The choice of the GEMM that computes a matmul on the CPU. It depends on the operands' types, on
// how bf16 is multiplied in this run (Matmul::bf16) and on the instruction set. It never depends on
// the shape, the number of threads or a measurement. Each backend gives an element of C the same
// bits, however a caller splits the rows and columns of C into calls (kernels/cpu/gemm.h). A GEMM
// computed in chunks therefore equals the full one bit for bit.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "kernels/matmul.h"

namespace mtrain::kernels::cpu {

enum class MatmulBackend : uint8_t {
  native,       // fp32 arithmetic; bf16 operands are converted to fp32 while they are packed
  native_bf16,  // bf16 dot products: CPUs with AVX512_BF16
  native_amx,   // tiles of bf16: CPUs with AMX
};
std::string_view backend_name(MatmulBackend backend);

// Returns whether this CPU can multiply two bf16 operands in this way, as far as MTRAIN_CPU_ISA
// allows; `widened` is always possible.
bool supports(Bf16Arithmetic arithmetic);

MatmulBackend choose_backend(const Matmul& m);
std::vector<MatmulBackend> available_backends(const Matmul& m);  // `native` first

// Computes GEMMs of one kind in parallel. None may have an epilogue or 8-bit operands.
void run(std::span<const Matmul> list);

// Computes `m` with this backend; run(const Matmul&) does so with choose_backend(m).
void run(const Matmul& m, MatmulBackend backend);

}  // namespace mtrain::kernels::cpu
