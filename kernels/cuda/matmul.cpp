// Matmul through cuBLASLt: fp32 accumulation, the algorithm that the library's heuristic names
// first, kept per shape.
#include "kernels/matmul.h"

#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "base/log.h"
#include "base/matmul_workspace.h"
#include "kernels/cuda/cublas_library.h"
#include "kernels/cuda/cublaslt_key.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/elementwise.h"
#include "kernels/matmul_unfused.h"

namespace mtrain::kernels::cuda {
namespace {

void check_blas(cublasStatus_t status, const Place& at) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const char* slash = std::strrchr(at.file, '/');
  throw RunError(fmt::format("{} failed at {}:{}: {} ({})", at.call, slash ? slash + 1 : at.file,
                             at.line, cublas().cublasLtGetStatusString(status),
                             cublas().cublasLtGetStatusName(status)));
}
#define MT_BLAS(call) check_blas(call, MT_PLACE(#call))

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    case DType::f8e4m3: return CUDA_R_8F_E4M3;
    case DType::f8e5m2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
  }
}

struct Destroy {
  void operator()(cublasLtMatmulDescOpaque_t* d) const { cublas().cublasLtMatmulDescDestroy(d); }
  void operator()(cublasLtMatrixLayoutOpaque_t* d) const {
    cublas().cublasLtMatrixLayoutDestroy(d);
  }
  void operator()(cublasLtMatmulPreferenceOpaque_t* d) const {
    cublas().cublasLtMatmulPreferenceDestroy(d);
  }
};
template <class T>
using Owned = std::unique_ptr<T, Destroy>;
using Layout = Owned<cublasLtMatrixLayoutOpaque_t>;

template <class T>
void set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  MT_BLAS(cublas().cublasLtMatmulDescSetAttribute(d, attribute, &value, sizeof value));
}
template <class T>
void set(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  MT_BLAS(cublas().cublasLtMatmulPreferenceSetAttribute(p, attribute, &value, sizeof value));
}

// Describes a row-major matrix, with `columns` elements in a row and `stride` from row to row, as
// the column-major matrix that the library sees.
Layout layout(DType dtype, int64_t columns, int64_t rows) {
  cublasLtMatrixLayout_t made = nullptr;
  MT_BLAS(cublas().cublasLtMatrixLayoutCreate(&made, type_of(dtype), uint64_t(columns),
                                              uint64_t(rows), columns));
  return Layout(made);
}

cublasLtEpilogue_t epilogue_of(Epilogue e) {
  switch (e) {
    case Epilogue::none: return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::bias: return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::gelu: return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::gelu_bias: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::dgelu: return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::sums: return CUBLASLT_EPILOGUE_BGRADB;  // the library's second operand is a
  }
  throw BugError("an epilogue without a name in cuBLASLt");
}

const char* name_of(Epilogue e) {
  switch (e) {
    case Epilogue::none: return "";
    case Epilogue::bias: return " with a bias";
    case Epilogue::gelu: return " with gelu";
    case Epilogue::gelu_bias: return " with a bias and gelu";
    case Epilogue::dgelu: return " with gelu's gradient";
    case Epilogue::sums: return " with the bias's gradient";
  }
  return "";
}

// Says which devices have a GEMM with such scales.
const char* devices_of(Float8Blocks blocks) {
  switch (blocks) {
    case Float8Blocks::none: return "";
    case Float8Blocks::rows_128:
    case Float8Blocks::square_128:
      return "; scales of 128 elements need a GPU of compute capability 9 (h100, h200)";
    case Float8Blocks::rows_32:
      return "; scales of 32 elements need a GPU of compute capability 10 or newer (b200, b300)";
  }
  return "";
}

#if CUBLAS_VERSION >= 120900
cublasLtMatmulMatrixScale_t scale_mode(Float8Blocks blocks) {
  switch (blocks) {
    case Float8Blocks::none: return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case Float8Blocks::rows_128: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case Float8Blocks::square_128: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case Float8Blocks::rows_32: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
  }
  throw BugError("scales of blocks without a name in cuBLASLt");
}
void set_scale_modes(cublasLtMatmulDesc_t operation, const MatmulKey& k) {
  set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(k.b_blocks));
  set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(k.a_blocks));
}
#else
[[noreturn]] void set_scale_modes(cublasLtMatmulDesc_t, const MatmulKey&) {
  throw UserError(fmt::format("this build's cuBLASLt ({}) has no 8-bit GEMMs with scales of blocks",
                              CUBLAS_VERSION),
                  "build with CUDA 12.9 or newer, or set mixed_precision.fp8_recipe: tensorwise");
}
#endif

// A plan for a matmul: everything but the addresses. Calls share it, and its descriptors may not
// change while it runs: a call sets the addresses of the bias, of the scales and of the epilogue's
// data in a copy.
struct Plan {
  Owned<cublasLtMatmulDescOpaque_t> operation;
  Layout first, second, c;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace = 0;
};

// Returns null where the library has no algorithm with the epilogue. Throws RunError where it has
// none at all.
std::shared_ptr<const Plan> make_plan(cublasLtHandle_t handle, const MatmulKey& k) {
  auto plan = std::make_shared<Plan>();
  cublasLtMatmulDesc_t operation = nullptr;
  MT_BLAS(cublas().cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  plan->operation.reset(operation);
  const cublasOperation_t first = k.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = k.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, first);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, second);
  // The library finds no algorithm without addresses; each run replaces these by its own.
  const auto any_address = [](int64_t alignment) {
    return reinterpret_cast<const void*>(uintptr_t(alignment));
  };
  const Epilogue e = k.epilogue;
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(e));
  // A value for each of C^T's rows, or of its columns.
  if (e == Epilogue::bias || e == Epilogue::gelu_bias || e == Epilogue::sums) {
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(k.bias));
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, any_address(k.bias_alignment));
  }
  if (e == Epilogue::gelu || e == Epilogue::gelu_bias || e == Epilogue::dgelu) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, k.N);
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, any_address(16));
  }
  if (is_float8(k.a)) {
    set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(k.fast));
    const void* const any = any_address(16);
    set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, any);
    set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, any);
    if (k.a_blocks != Float8Blocks::none) set_scale_modes(operation, k);
  }
  plan->first = layout(k.b, k.b_stride(), k.trans_b ? k.N : k.K);
  plan->second = layout(k.a, k.a_stride(), k.trans_a ? k.K : k.M);
  plan->c = layout(k.c, k.N, k.M);

  cublasLtMatmulPreference_t made = nullptr;
  MT_BLAS(cublas().cublasLtMatmulPreferenceCreate(&made));
  const Owned<cublasLtMatmulPreferenceOpaque_t> preference(made);
  set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(kMatmulWorkspace));
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(k.b_alignment));
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(k.a_alignment));
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(k.c_alignment));
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(k.c_alignment));
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const auto asked = cublas().cublasLtMatmulAlgoGetHeuristic(
      handle, operation, plan->first.get(), plan->second.get(), plan->c.get(), plan->c.get(), made,
      1, &result, &found);
  if (asked != CUBLAS_STATUS_SUCCESS || found == 0) {
    const std::string none =
        fmt::format("cuBLASLt has no algorithm for M {} N {} K {} of {} and {} to {}{} ({}){}", k.M,
                    k.N, k.K, dtype_name(k.a), dtype_name(k.b), dtype_name(k.c), name_of(e),
                    cublas().cublasLtGetStatusName(asked), devices_of(k.a_blocks));
    if (e == Epilogue::none || e == Epilogue::bias) throw RunError(none);
    log::info(none + ": mtrain's own kernels compute the epilogue");
    return nullptr;
  }
  plan->algorithm = result.algo;
  plan->workspace = result.workspaceSize;
  return plan;
}

// The handle and the plans of one GPU.
struct Library {
  cublasLtHandle_t handle = nullptr;
  PlanCache<MatmulKey, std::shared_ptr<const Plan>> plans;
};

Library& library_here() {
  constexpr int kMaxDevices = 64;
  static std::mutex mutex;
  // These are never destroyed: at the end of the process the library may be gone before them.
  static auto& libraries = *new std::array<std::unique_ptr<Library>, kMaxDevices>;
  int device = 0;
  MT_CUDA(cudaGetDevice(&device));
  MT_CHECK(device < kMaxDevices, "CUDA device {}", device);
  std::lock_guard lock(mutex);
  auto& library = libraries[size_t(device)];
  if (!library) {
    auto made = std::make_unique<Library>();
    MT_BLAS(cublas().cublasLtCreate(&made->handle));
    library = std::move(made);
  }
  return *library;
}

// The operand as `dtype`: itself, or a converted copy that lives as long as this object.
class Converted {
 public:
  Converted(ConstSpan s, int64_t count, DType dtype, bool convert, CUstream_st* stream)
      : memory_(convert ? count * dtype_size(dtype) : 0, stream), span_(s) {
    if (!convert) return;
    const Span to{memory_.get(), count, dtype};
    run(Cast{.x = {s.data, count, s.dtype}, .y = to}, stream);
    span_ = to;
  }
  ConstSpan span() const { return span_; }

 private:
  Scratch<char> memory_;
  ConstSpan span_;
};

// Sets C to the bias in every row, or to zero.
void run_empty_sum(const Matmul& m, CUstream_st* stream) {
  if (m.accumulate) return;
  run(Fill{.y = {m.c_MN.data, m.M * m.N, m.c_MN.dtype}}, stream);
  const int64_t size = dtype_size(m.c_MN.dtype);
  for (int64_t row = 0; m.bias_N && row < m.M; ++row)
    run(Cast{.x = {m.bias_N.data, m.N, m.bias_N.dtype},
             .y = {m.c_MN.as<char>() + row * m.N * size, m.N, m.c_MN.dtype}},
        stream);
}

std::shared_ptr<const Plan> plan_of(const Matmul& m) {
  Library& library = library_here();
  const MatmulKey key = key_of(m);
  return library.plans.get(key, [&] { return make_plan(library.handle, key); });
}

void multiply(const Plan& plan, const Matmul& m, CUstream_st* stream) {
  // The library overwrites sums; mtrain adds to them.
  const Scratch<float> sums(m.a_sums_M ? m.M : 0, stream);
  cublasLtMatmulDescOpaque_t operation = *plan.operation;
  const void* const bias = m.a_sums_M ? sums.get() : m.bias_N.data;
  if (bias) set(&operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const void* const beside = m.gelu_input_MN ? m.gelu_input_MN.data : m.dgelu_of_MN.data;
  if (beside) set(&operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, beside);
  if (is_float8(m)) {  // the library's first operand is b
    set(&operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, m.b_inverse.data);
    set(&operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, m.a_inverse.data);
  }
  const Scratch<char> workspace(plan.workspace > 0 ? kMatmulWorkspace : 0, stream);
  const float alpha = 1, beta = m.accumulate ? 1.0f : 0.0f;
  MT_BLAS(cublas().cublasLtMatmul(library_here().handle, &operation, &alpha, m.b.data,
                                  plan.first.get(), m.a.data, plan.second.get(), &beta, m.c_MN.data,
                                  plan.c.get(), m.c_MN.data, plan.c.get(), &plan.algorithm,
                                  workspace.get(), plan.workspace, stream));
  if (m.a_sums_M)
    run(Add{.a = {m.a_sums_M.data, m.M, DType::f32},
            .b = {sums.get(), m.M, DType::f32},
            .y = {m.a_sums_M.data, m.M, DType::f32}},
        stream);
}

// Returns whether the library computes the epilogue together with the GEMM.
bool run_whole(const Matmul& m, CUstream_st* stream) {
  if (!epilogue_fits_library(m)) return false;
  const auto plan = plan_of(m);
  if (plan) multiply(*plan, m, stream);
  return bool(plan);
}

}  // namespace

void run(const Matmul& m, CUstream_st* stream) {
  MT_CHECK(m.M >= 0 && m.N >= 0 && m.K >= 0 && m.a.count >= m.M * m.K && m.b.count >= m.K * m.N &&
               m.c_MN.count >= m.M * m.N,
           "matmul: M {} N {} K {} with {}, {} and {} elements", m.M, m.N, m.K, m.a.count,
           m.b.count, m.c_MN.count);
  MT_CHECK(!m.accumulate || (m.c_MN.dtype == DType::f32 && !m.bias_N),
           "matmul: accumulation needs an fp32 C and no bias");
  MT_CHECK(!is_float8(m) || float8_fits_library(m),
           "matmul: {} and {} of M {} N {} K {}, transposed {} {}, or their addresses",
           dtype_name(m.a.dtype), dtype_name(m.b.dtype), m.M, m.N, m.K, m.trans_a, m.trans_b);
  if (block_length(m.a_blocks) == 128 && m.M % 4 != 0)
    throw RunError(fmt::format(
        "8-bit GEMMs with scales of 128 elements take a multiple of 4 tokens, not {}", m.M));
  check_epilogue(m);
  if (m.M == 0 || m.N == 0) return;
  if (has_epilogue(m)) {
    if (!run_whole(m, stream)) run_unfused(m, [&](const auto& args) { run(args, stream); });
    return;
  }
  if (m.K == 0) return run_empty_sum(m, stream);
  const Conversions convert = conversions_of(m);
  const bool wide = needs_wide_c(m);
  const Converted a(m.a, m.M * m.K, DType::f32, convert.a, stream);
  const Converted b(m.b, m.K * m.N, DType::f32, convert.b, stream);
  const DType c_type = wide ? DType::f32 : m.c_MN.dtype;
  const DType bias_as = bias_type(m, c_type);
  const Converted bias(m.bias_N, m.N, bias_as, must_copy_bias(m, bias_as), stream);
  const Scratch<float> wide_c(wide ? m.M * m.N : 0, stream);
  Matmul same = m;
  same.a = a.span(), same.b = b.span(), same.bias_N = bias.span();
  if (wide) same.c_MN = {wide_c.get(), m.M * m.N, DType::f32};
  multiply(*plan_of(same), same, stream);
  if (wide) run(Cast{.x = same.c_MN, .y = {m.c_MN.data, m.M * m.N, m.c_MN.dtype}}, stream);
}

}  // namespace mtrain::kernels::cuda
