// Which instruction set the vector kernels of this process use: the widest that the CPU has. The
// environment variable MTRAIN_CPU_ISA=generic|avx2|avx512 makes a CPU behave as one that has
// nothing wider (for tests, and to compare machines). avx512 includes AVX512_BF16 where the CPU has
// it; AMX tiles are used where the variable is unset.
#pragma once

namespace mtrain::kernels::cpu {

enum class Isa { generic, avx2, avx512 };  // each has what those before it have

Isa isa();
const char* isa_name(Isa isa);

// This build has it, this CPU can run it and MTRAIN_CPU_ISA allows it. Throws UserError where that
// variable names what cannot be had.
bool isa_supported(Isa isa);
bool tiles_allowed();   // by MTRAIN_CPU_ISA
void set_isa(Isa isa);  // for tests and benchmarks; throws UserError where it is not supported

}  // namespace mtrain::kernels::cpu
