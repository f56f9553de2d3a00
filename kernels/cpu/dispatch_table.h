// MT_DISPATCH defines a kernel's cpu::run() for all instruction sets. The file kernels/cpu/<op>.cpp
// has one line for each argument struct, inside namespace mtrain::kernels::cpu:
//
//     MT_DISPATCH(NormForward, check)  // check(const NormForward&) throws if they are wrong
//
// This defines cpu::run(const NormForward&): it checks the arguments, then calls the run() of the
// instruction set in use, which kernels/cpu/vector/<op>.cpp defines in namespace MTRAIN_ISA.
// MT_DISPATCH_UNLESS names a function that may run the kernel in a different way; it then returns
// true. The checks are in kernels/cpu/<op>.cpp, since fmt and std::string are templates that the
// vector files must not instantiate (see simd.h).
#pragma once
#include "kernels/cpu/dispatch.h"

namespace mtrain::kernels::cpu {

template <class Args>
void no_check(const Args&) {}

template <class Args>
bool computed_elsewhere(const Args&) {
  return false;
}

}  // namespace mtrain::kernels::cpu

#ifdef MTRAIN_HAS_AVX2
#define MT_CASE_AVX2(args) \
  case Isa::avx2:          \
    return avx2::run(args);
#else
#define MT_CASE_AVX2(args)
#endif
#ifdef MTRAIN_HAS_AVX512
#define MT_CASE_AVX512(args) \
  case Isa::avx512:          \
    return avx512::run(args);
#else
#define MT_CASE_AVX512(args)
#endif

// clang-format off
#define MT_DISPATCH(Args, check) MT_DISPATCH_UNLESS(Args, check, computed_elsewhere)
#define MT_DISPATCH_UNLESS(Args, check, elsewhere) \
  namespace generic { void run(const Args&); }     \
  namespace avx2 { void run(const Args&); }        \
  namespace avx512 { void run(const Args&); }      \
  void run(const Args& args) {                     \
    check(args);                                   \
    if (elsewhere(args)) return;                   \
    switch (isa()) {                               \
      MT_CASE_AVX512(args)                         \
      MT_CASE_AVX2(args)                           \
      default: return generic::run(args);          \
    }                                              \
  }
// clang-format on
