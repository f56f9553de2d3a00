// The instruction set that the vector kernels of this process use: the widest that the CPU has. The
// environment variable MTRAIN_CPU_ISA=generic|avx2|avx512 makes a CPU behave like one that has
// nothing wider (for tests, and to compare machines). avx512 includes AVX512_BF16 if the CPU has
// it; AMX tiles are used only if the variable is unset.
#pragma once

namespace mtrain::kernels::cpu {

enum class Isa { generic, avx2, avx512 };  // each includes those before it

Isa isa();
const char* isa_name(Isa isa);
// Returns whether this CPU has a wider instruction set that this build leaves out. A different
// build would be faster here.
bool build_lacks_wider_isa();

// Returns whether this build has the instruction set, this CPU can run it and MTRAIN_CPU_ISA allows
// it. Throws UserError if that variable names an unknown or unsupported one.
bool isa_supported(Isa isa);
bool tiles_allowed();   // whether MTRAIN_CPU_ISA allows AMX tiles
void set_isa(Isa isa);  // for tests and benchmarks; throws UserError if it is not supported

}  // namespace mtrain::kernels::cpu
