// Which instruction set the vector kernels of this process use: the widest that the CPU has. The
// environment variable MTRAIN_CPU_ISA=generic|avx2|avx512 asks for a narrower one (tests; comparing
// machines).
#pragma once

namespace mtrain::kernels::cpu {

enum class Isa { generic, avx2, avx512 };

Isa isa();
const char* isa_name(Isa isa);

bool isa_supported(Isa isa);  // this build has it and this CPU can run it
void set_isa(Isa isa);  // for tests and benchmarks; throws UserError where it is not supported

}  // namespace mtrain::kernels::cpu
