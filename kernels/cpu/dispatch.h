// The instruction set that the vector kernels of this process use: the widest that the CPU has. The
// environment variable MTRAIN_CPU_ISA=generic|avx2|avx512 makes a CPU behave like one that has
// nothing wider (for tests, and to compare machines). avx512 includes AVX512_BF16 where the CPU has
// it; AMX tiles are used only where the variable is unset.
#pragma once

namespace mtrain::kernels::cpu {

enum class Isa { generic, avx2, avx512 };  // each has what those before it have

Isa isa();
const char* isa_name(Isa isa);
// Returns whether this CPU has an instruction set that was left out of this build, which is slower
// here than another would be.
bool build_lacks_wider_isa();

// Returns whether this build has the instruction set, this CPU can run it and MTRAIN_CPU_ISA allows
// it. Throws UserError where that variable names an unknown or unsupported one.
bool isa_supported(Isa isa);
bool tiles_allowed();   // whether MTRAIN_CPU_ISA allows AMX tiles
void set_isa(Isa isa);  // for tests and benchmarks; throws UserError where it is not supported

}  // namespace mtrain::kernels::cpu
