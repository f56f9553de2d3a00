// The kernel of one kind of grouped GEMM. Only the sources of this folder include this file, since
// CUTLASS's headers take long to compile.
#pragma once
#include <array>
#include <bit>
#include <string>
#include <type_traits>

#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal_decl.h>
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/builders/sm90_gmma_builder.inl>
#include <cutlass/gemm/collective/collective_builder_decl.hpp>
#include <cutlass/gemm/collective/collective_mma_decl.hpp>
#include <cutlass/gemm/collective/sm90_mma_array_tma_gmma_ss_warpspecialized.hpp>
#include <cutlass/gemm/collective/sm90_mma_array_tma_gmma_ss_warpspecialized_fp8.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/sm90_gemm_array_tma_warpspecialized_cooperative.hpp>
#include <cutlass/gemm/kernel/sm90_gemm_array_tma_warpspecialized_pingpong.hpp>
#include <cutlass/gemm/kernel/tile_scheduler.hpp>

#include "kernels/cuda/cutlass/grouped_gemm.h"

namespace mtrain::kernels::cuda {

// What distinguishes the kernels. No sum is split, so results do not depend on timing.
//
// Rows in bf16 have tiles of 128 x 256: two groups of warps compute each together. Weights in bf16
// have tiles of 128 x 128. One group of warps writes its tile while the other computes the next,
// since the gradient is fp32 and its sums are short. In 8 bits Hopper's tensor cores add 128
// products with fewer bits; then these parts are added to fp32 sums. That takes twice the
// registers, so two groups of warps share a tile of 128 x 128.
template <class A, class B, class D, class ALayout, class BLayout>
struct CutlassKind {
  static constexpr bool kWeights = std::is_same_v<D, float>;
  static constexpr int kBytes = cutlass::sizeof_bits<A>::value / 8;
  static constexpr bool kWide = !kWeights && kBytes == 2, kTakeTurns = kWeights && kBytes == 2;
  using Depth = cute::Int<128 / kBytes>;  // 128 bytes: the widest row that a swizzle takes
  using Tile = cute::Shape<cute::_128, std::conditional_t<kWide, cute::_256, cute::_128>, Depth>;
  using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;
  using Schedule =
      std::conditional_t<kTakeTurns, cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong,
                         cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>;
  using Store =
      std::conditional_t<kTakeTurns, cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong,
                         cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>;
  using C = std::conditional_t<kWeights, D, void>;
  using RowMajor = cutlass::layout::RowMajor;
  static constexpr int kAlign = 16 / kBytes, kAlignD = 128 / cutlass::sizeof_bits<D>::value;

  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, C, RowMajor*, kAlignD, D,
      RowMajor*, kAlignD, Store,
      cutlass::epilogue::fusion::LinearCombination<D, float, C, float>>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, A, ALayout*, kAlign, B, BLayout*, kAlign,
      float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<int(
          sizeof(typename Epilogue::SharedStorage))>,
      Schedule>::CollectiveOp;
  using Shape = cute::Shape<int, int, int>;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<Shape>,
                                                      Mainloop, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
};

// The fill kernel writes shapes and strides as plain numbers (groups.h).
template <class Kind>
constexpr bool has_plain_arrays() {
  using Kernel = typename Kind::Kernel;
  const auto shape = std::bit_cast<std::array<int32_t, 3>>(typename Kind::Shape{1, 2, 3});
  return shape == std::array<int32_t, 3>{1, 2, 3} && sizeof(GroupShape) == sizeof shape &&
         sizeof(typename Kernel::InternalStrideA) == sizeof(int64_t) &&
         sizeof(typename Kernel::InternalStrideB) == sizeof(int64_t) &&
         sizeof(typename Kernel::InternalStrideD) == sizeof(int64_t);
}

template <class Kind>
std::string run_kind(const CutlassCall& call, CUstream_st* stream) {
  static_assert(has_plain_arrays<Kind>());
  using Gemm = typename Kind::Gemm;
  using Kernel = typename Kind::Kernel;
  const GroupArrays& g = call.groups;
  typename Gemm::Arguments args{};
  args.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
  args.problem_shape = {g.groups, reinterpret_cast<typename Kind::Shape*>(g.shape), nullptr};
  args.mainloop.ptr_A = reinterpret_cast<decltype(args.mainloop.ptr_A)>(g.a);
  args.mainloop.dA = reinterpret_cast<typename Kernel::StrideA>(g.a_stride);
  args.mainloop.ptr_B = reinterpret_cast<decltype(args.mainloop.ptr_B)>(g.b);
  args.mainloop.dB = reinterpret_cast<typename Kernel::StrideB>(g.b_stride);
  args.epilogue.ptr_D = reinterpret_cast<decltype(args.epilogue.ptr_D)>(g.c);
  args.epilogue.dD = reinterpret_cast<typename Kernel::StrideD>(g.c_stride);
  if constexpr (Kind::kWeights) {
    const void** const c = const_cast<const void**>(g.c);
    args.epilogue.ptr_C = reinterpret_cast<decltype(args.epilogue.ptr_C)>(c);
    args.epilogue.dC = reinterpret_cast<typename Kernel::StrideC>(g.c_stride);
    args.epilogue.thread.beta = call.accumulate ? 1.0f : 0.0f;
  }
  args.epilogue.thread.alpha = 1;
  args.epilogue.thread.alpha_ptr = call.alpha;
  args.hw_info.sm_count = call.multiprocessors;
  if (Gemm::get_workspace_size(args) > size_t(kCutlassWorkspace))
    return "it needs more workspace than it has";
  const auto text = [](const char* step, cutlass::Status status) {
    return std::string(step) + ": " + cutlass::cutlassGetStatusString(status) + " (" +
           cudaGetErrorString(cudaGetLastError()) + ")";
  };
  Gemm gemm;
  if (const auto status = gemm.can_implement(args); status != cutlass::Status::kSuccess)
    return text("can_implement", status);
  if (const auto status = gemm.initialize(args, call.workspace, stream);
      status != cutlass::Status::kSuccess)
    return text("initialize", status);
  if (const auto status = gemm.run(stream); status != cutlass::Status::kSuccess)
    return text("run", status);
  return "";
}

// The kinds of each source.
std::string run_float8_rows(const CutlassCall& call, CUstream_st* stream);
std::string run_bf16_weights(const CutlassCall& call, CUstream_st* stream);
std::string run_float8_weights(const CutlassCall& call, CUstream_st* stream);

using CutlassBf16 = cutlass::bfloat16_t;
using CutlassE4m3 = cutlass::float_e4m3_t;
using CutlassE5m2 = cutlass::float_e5m2_t;
// How the elements of an operand lie: A is (M, K), and B is (K, N).
using CutlassRows = cutlass::layout::RowMajor;
using CutlassColumns = cutlass::layout::ColumnMajor;

}  // namespace mtrain::kernels::cuda
