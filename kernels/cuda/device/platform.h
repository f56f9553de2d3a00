// The CUDA features that kernels need beyond CUDA C++: checked launches, and instructions without
// an intrinsic. Kernels include CUDA only through this file. test/cuda_emulator has a second file
// of this name, with which the same kernels run, slowly, on a CPU.
#pragma once
#include <cstdint>

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "base/dtype.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/dependent_launch.h"

namespace mtrain::kernels::cuda {

// Whether code is compiled for Blackwell. There the compiler needs more registers for some kernels,
// and spills if it may choose how many blocks a multiprocessor runs.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
inline constexpr bool kBlackwell = true;
#else
inline constexpr bool kBlackwell = false;
#endif
// Launch bounds that leave the number of blocks to the compiler where that does not spill.
#define MT_BOUNDS(threads) __launch_bounds__(threads, kBlackwell ? 1 : 0)

// MT_LAUNCH((kernel<T, 4>), grid, block, bytes of dynamic shared memory, stream, arguments...)
#define MT_LAUNCH(kernel, grid, block, shared, stream, ...)                                      \
  ::mtrain::kernels::cuda::launch(MT_PLACE(#kernel), false, kernel, grid, block, size_t(shared), \
                                  stream, __VA_ARGS__)
// The same for a kernel that begins with wait_for_previous_kernel() (dependent_launch.h).
#define MT_LAUNCH_DEPENDENT(kernel, grid, block, shared, stream, ...)                           \
  ::mtrain::kernels::cuda::launch(MT_PLACE(#kernel), true, kernel, grid, block, size_t(shared), \
                                  stream, __VA_ARGS__)

template <class... Parameters, class... Args>
void launch(const Place& at, bool waits, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t shared, CUstream_st* stream, const Args&... args) {
  constexpr size_t kWithoutAsking = 48 * 1024;
  if (shared > kWithoutAsking)
    check_runtime(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)), at);
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = waits && launches_dependent(reinterpret_cast<const void*>(kernel)) ? 1 : 0;
  check_runtime(cudaLaunchKernelEx(&config, kernel, Parameters(args)...), at);
}

// The first statement of a kernel that MT_LAUNCH_DEPENDENT launches. Returns when all earlier
// kernels of the stream have ended, and then allows the next one to start. Elsewhere it has no
// effect.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Returns the launch's dynamic shared memory.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char mtrain_dynamic_shared[];
  return reinterpret_cast<T*>(mtrain_dynamic_shared);
}

// Packs two bf16, rounded to nearest even; the first goes into the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// The same for fp16, and the values of the two halves of a word.
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ float f16_low(uint32_t pair) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(uint16_t(pair)));
  return x;
}
__device__ __forceinline__ float f16_high(uint32_t pair) { return f16_low(pair >> 16); }

// Packs Y(low) and Y(high), rounded as by Y's constructor. Y is f8e4m3 or f8e5m2; the first goes
// into the low byte.
template <class Y>
__device__ __forceinline__ uint16_t pack_float8(float low, float high) {
  constexpr auto kFormat = Y::kBias == f8e5m2::kBias ? __NV_E5M2 : __NV_E4M3;
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, kFormat);
}

// Returns two packed e4m3 as fp16, which represents them exactly; the first is the low half.
__device__ __forceinline__ uint32_t f16_of_e4m3(uint32_t pair) {
  const __half2_raw x = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(pair), __NV_E4M3);
  return x.x | uint32_t(x.y) << 16;
}

// Stores 16 or 8 bytes as one access; p must be aligned to that size. The compiler splits a plain
// assignment into four (or two) accesses if there is other code between the computation of the
// words and the store.
__device__ __forceinline__ void store_words(void* p, uint4 x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)),
               "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}
__device__ __forceinline__ void store_words(void* p, uint2 x) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)), "r"(x.x),
               "r"(x.y)
               : "memory");
}

// 2^x to 2 ulp, one instruction; denormal results are 0.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x to 1 ulp, one instruction; denormals are 0.
__device__ __forceinline__ float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// c (16, 8) += a (16, 16) b (16, 8) over the warp's lanes, in the fragments of mma.m16n8k16.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lanes 8 i .. 8 i + 7 pass the
// rows of matrix i (16 bytes each, aligned). A lane gets elements 2 (lane % 4) and 2 (lane % 4) + 1
// of row lane / 4, of the transpose if TRANS.
template <bool TRANS>
__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], const void* row) {
  const uint32_t at = uint32_t(__cvta_generic_to_shared(row));
  if constexpr (TRANS)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}

// Starts an asynchronous copy of 16 bytes from global to shared memory, or writes zeros if not
// `valid`. Copies since the last commit form a group; wait<N> returns when at most the N newest
// groups are in flight.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   uint32_t(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

}  // namespace mtrain::kernels::cuda
