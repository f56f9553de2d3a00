// Implements the interfaces of kernels/cuda/gemm with cuBLASLt and CUDA: fp32 accumulation, and the
// algorithms that the library's heuristics rank.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "base/log.h"
#include "base/matmul_workspace.h"
#include "kernels/cuda/cublas_library.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/gemm/current_gpu.h"
#include "kernels/cuda/gemm/library_matmul.h"
#include "kernels/cuda/grouped/grouped_engine.h"
#include "kernels/fp8.h"
#include "kernels/gemm_choices.h"

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
// the library's column-major matrix.
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

#if CUBLAS_VERSION >= 120900
cublasLtMatmulMatrixScale_t scale_mode(ScaleBlocks blocks) {
  switch (blocks) {
    case ScaleBlocks::none: return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case ScaleBlocks::rows_128: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case ScaleBlocks::square_128: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case ScaleBlocks::rows_32: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
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

// Converts the status of one library call.
GemmAnswer answer_of(cublasStatus_t status, const char* call) {
  const auto text = [&] {
    return fmt::format("{}: {} ({})", call, cublas().cublasLtGetStatusString(status),
                       cublas().cublasLtGetStatusName(status));
  };
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return {};
    // The library checks its arguments before it enqueues anything.
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_INVALID_VALUE:
    case CUBLAS_STATUS_ARCH_MISMATCH: return {GemmAnswer::Status::refused, text()};
    default: return {GemmAnswer::Status::failed, text()};
  }
}

// Calls share the descriptors, which must not change while a GEMM runs. A call therefore sets the
// addresses of the bias, of the scales and of the epilogue's data in a copy.
class LtProblem final : public GemmProblem {
 public:
  LtProblem(cublasLtHandle_t handle, const MatmulKey& key, int multiprocessors)
      : handle_(handle),
        key_(key),
        first_(layout(key.b, key.b_stride(), key.trans_b ? key.N : key.K)),
        second_(layout(key.a, key.a_stride(), key.trans_a ? key.K : key.M)),
        c_(layout(key.c, key.N, key.M)) {
    cublasLtMatmulDesc_t operation = nullptr;
    MT_BLAS(cublas().cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    operation_.reset(operation);
    const MatmulKey& k = key_;
    set(operation, CUBLASLT_MATMUL_DESC_TRANSA, k.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(operation, CUBLASLT_MATMUL_DESC_TRANSB, k.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (k.sm_margin > 0)
      set(operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
          int32_t(std::max<int64_t>(multiprocessors - k.sm_margin, 1)));
    // The library has no algorithm for descriptors without addresses; each run replaces these by
    // its own.
    const auto any_address = [](int64_t alignment) {
      return reinterpret_cast<const void*>(uintptr_t(alignment));
    };
    const Epilogue e = k.epilogue;
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(e));
    // One value for each row of C^T, or for each of its columns.
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
      if (k.a_blocks != ScaleBlocks::none) set_scale_modes(operation, k);
    }
  }

  Offer offer(int most) const override {
    cublasLtMatmulPreference_t made = nullptr;
    MT_BLAS(cublas().cublasLtMatmulPreferenceCreate(&made));
    const Owned<cublasLtMatmulPreferenceOpaque_t> preference(made);
    set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(kMatmulWorkspace));
    set(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, fp32_split_sums(key_));
    set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(key_.b_alignment));
    set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(key_.a_alignment));
    set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(key_.c_alignment));
    set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(key_.c_alignment));
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
    int found = 0;
    const auto asked = cublas().cublasLtMatmulAlgoGetHeuristic(
        handle_, operation_.get(), first_.get(), second_.get(), c_.get(), c_.get(), made, most,
        results.data(), &found);
    Offer offer{.algorithms = {}, .why_none = cublas().cublasLtGetStatusName(asked)};
    if (asked != CUBLAS_STATUS_SUCCESS) return offer;
    for (int i = 0; i < found; ++i)
      if (const auto& r = results[size_t(i)]; r.state == CUBLAS_STATUS_SUCCESS)
        offer.algorithms.push_back(
            {bits_of(r.algo), int64_t(r.workspaceSize), split_sums_of(r.algo)});
    return offer;
  }

  std::optional<GemmAlgorithm> find(const GemmAlgorithm::Bits& bits) const override {
    const cublasLtMatmulAlgo_t algorithm = algorithm_of(bits);
    cublasLtMatmulHeuristicResult_t result{};
    const auto asked =
        cublas().cublasLtMatmulAlgoCheck(handle_, operation_.get(), first_.get(), second_.get(),
                                         c_.get(), c_.get(), &algorithm, &result);
    if (asked != CUBLAS_STATUS_SUCCESS || result.state != CUBLAS_STATUS_SUCCESS ||
        int64_t(result.workspaceSize) > kMatmulWorkspace)
      return std::nullopt;
    return GemmAlgorithm{bits, int64_t(result.workspaceSize), split_sums_of(algorithm)};
  }

  GemmAnswer run(const Matmul& m, const void* bias, const GemmAlgorithm& algorithm, void* workspace,
                 CUstream_st* stream) const override {
    cublasLtMatmulDescOpaque_t operation = *operation_;
    if (bias) set(&operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    const void* const beside = m.gelu_input_MN ? m.gelu_input_MN.data : m.dgelu_of_MN.data;
    if (beside) set(&operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, beside);
    if (is_float8(m)) {  // the library's first operand is b
      set(&operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, m.b_inverse.data);
      set(&operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, m.a_inverse.data);
    }
    const cublasLtMatmulAlgo_t chosen = algorithm_of(algorithm.bits);
    const float alpha = 1, beta = m.accumulate ? 1.0f : 0.0f;
    return answer_of(
        cublas().cublasLtMatmul(handle_, &operation, &alpha, m.b.data, first_.get(), m.a.data,
                                second_.get(), &beta, m.c_MN.data, c_.get(), m.c_MN.data, c_.get(),
                                &chosen, workspace, size_t(algorithm.workspace), stream),
        "cublasLtMatmul");
  }

 private:
  static GemmAlgorithm::Bits bits_of(const cublasLtMatmulAlgo_t& algorithm) {
    static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(GemmAlgorithm::Bits));
    GemmAlgorithm::Bits bits{};
    std::memcpy(bits.data(), &algorithm, sizeof bits);
    return bits;
  }
  static uint32_t split_sums_of(const cublasLtMatmulAlgo_t& algorithm) {
    static_assert(SplitSums::in_c == CUBLASLT_REDUCTION_SCHEME_INPLACE &&
                  SplitSums::in_fp32 == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE &&
                  SplitSums::in_type_of_c == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
    size_t bytes = 0;
    MT_BLAS(cublas().cublasLtMatmulAlgoConfigGetAttribute(
        &algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &bytes));
    return scheme;
  }
  static cublasLtMatmulAlgo_t algorithm_of(const GemmAlgorithm::Bits& bits) {
    cublasLtMatmulAlgo_t algorithm{};
    std::memcpy(&algorithm, bits.data(), sizeof algorithm);
    return algorithm;
  }

  const cublasLtHandle_t handle_;
  const MatmulKey key_;
  Owned<cublasLtMatmulDescOpaque_t> operation_;
  const Layout first_, second_, c_;
};

class LtApi final : public GemmApi {
 public:
  LtApi(cublasLtHandle_t handle, int device) : handle_(handle) {
    cudaDeviceProp properties{};
    MT_CUDA(cudaGetDeviceProperties(&properties, device));
    version_ = fmt::format("cuBLASLt {}, {}", cublas().cublasLtGetVersion(), properties.name);
    multiprocessors_ = properties.multiProcessorCount;
  }
  std::string version() const override { return version_; }
  std::shared_ptr<const GemmProblem> describe(const MatmulKey& key) const override {
    return std::make_shared<LtProblem>(handle_, key, multiprocessors_);
  }

 private:
  const cublasLtHandle_t handle_;
  std::string version_;
  int multiprocessors_ = 0;
};

class ThisGpu final : public GemmDevice {
 public:
  void* take(size_t bytes, CUstream_st* stream) const override {
    return take_scratch(bytes, stream);
  }
  void give(void* memory, CUstream_st* stream) const noexcept override {
    give_scratch(memory, stream);
  }
  void run(const Cast& a, CUstream_st* s) const override { cuda::run(a, s); }
  void run(const Fill& a, CUstream_st* s) const override { cuda::run(a, s); }
  void run(const Add& a, CUstream_st* s) const override { cuda::run(a, s); }
  void run(const AddRow& a, CUstream_st* s) const override { cuda::run(a, s); }
  void run(const ColumnSum& a, CUstream_st* s) const override { cuda::run(a, s); }
  void run(const GeluForward& a, CUstream_st* s) const override { cuda::run(a, s); }
  void run(const GeluBackward& a, CUstream_st* s) const override { cuda::run(a, s); }
  bool capturing(CUstream_st* stream) const override { return is_capturing(stream); }
  void require_healthy(CUstream_st* stream) const override { cuda::require_healthy(stream); }

  // 8-bit scales are exponents: bytes of 0 are the smallest scale.
  void fill_for_timing(const Span& memory, CUstream_st* stream) const override {
    if (memory.dtype == DType::u8) return cuda::run(Fill{.y = memory}, stream);
    constexpr int64_t kPiece = int64_t(1) << 20;
    const int64_t piece = std::min(memory.count, kPiece);
    const Scratch<float> normal(piece, stream), one(1, stream);
    cuda::run(FillNormal{.y = {normal.get(), piece, DType::f32}, .key = 1, .std = 1}, stream);
    const Span scale{one.get(), 1, DType::f32};
    cuda::run(Fill{.y = scale, .value = 1}, stream);
    for (int64_t done = 0; done < memory.count; done += piece) {
      const int64_t count = std::min(piece, memory.count - done);
      const ConstSpan from{normal.get(), count, DType::f32};
      const Span to{memory.as<char>() + done * dtype_size(memory.dtype), count, memory.dtype};
      if (is_float8(memory.dtype))
        cuda::run(Quantize{.x_TN = from, .scale = scale, .y_TN = to, .T = 1, .N = count}, stream);
      else
        cuda::run(Cast{.x = from, .y = to}, stream);
    }
  }

  double now() const override {
    const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since_start).count();
  }

  int64_t cache_bytes() const override {
    int device = 0, bytes = 0;
    MT_CUDA(cudaGetDevice(&device));
    MT_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device));
    return bytes;
  }

  double seconds(const std::function<void()>& launch, int calls,
                 CUstream_st* stream) const override {
    const Event begin, end;
    MT_CUDA(cudaEventRecord(begin.get(), stream));
    for (int i = 0; i < calls; ++i) launch();
    MT_CUDA(cudaEventRecord(end.get(), stream));
    MT_CUDA(cudaEventSynchronize(end.get()));
    float ms = 0;
    MT_CUDA(cudaEventElapsedTime(&ms, begin.get(), end.get()));
    return std::max(double(ms) * 1e-3, 1e-9) / calls;
  }

 private:
  class Event {
   public:
    Event() { MT_CUDA(cudaEventCreate(&event_)); }
    ~Event() { cudaEventDestroy(event_); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    cudaEvent_t get() const { return event_; }

   private:
    cudaEvent_t event_ = nullptr;
  };
};

// The library on one GPU, with its handle and its plans.
struct Library {
  explicit Library(cublasLtHandle_t handle, int device) : api(handle, device) {}
  LtApi api;
  ThisGpu gpu;
  LibraryMatmul matmul{api, gpu};
};

Library& library_here() {
  constexpr int kMaxDevices = 64;
  static std::mutex mutex;
  // These are never destroyed: at the end of the process the library may already be unloaded.
  static auto& libraries = *new std::array<std::unique_ptr<Library>, kMaxDevices>;
  int device = 0;
  MT_CUDA(cudaGetDevice(&device));
  MT_CHECK(device < kMaxDevices, "CUDA device {}", device);
  std::lock_guard lock(mutex);
  auto& library = libraries[size_t(device)];
  if (!library) {
    cublasLtHandle_t handle = nullptr;
    MT_BLAS(cublas().cublasLtCreate(&handle));
    library = std::make_unique<Library>(handle, device);
  }
  return *library;
}

}  // namespace

void run(const Matmul& m, CUstream_st* stream) { library_here().matmul.run(m, stream); }

const GemmDevice& current_gpu() {
  static const ThisGpu gpu;
  return gpu;
}

// Grouped GEMMs come first: they are few, and the experts of a model are most of its work.
std::string unchosen_gemms() {
  return unchosen_grouped_gemms() + print_gemm_keys(library_here().matmul.unchosen());
}

std::string time_gemms(const std::string& gemms, double seconds, CUstream_st* stream) {
  Library& library = library_here();
  const GemmLines lines = split_gemm_lines(gemms);
  const double end = current_gpu().now() + seconds;
  const std::string grouped = time_grouped_gemms(lines.grouped, seconds, stream);
  return print_gemm_choices(
             {library.api.version(), library.matmul.time(parse_gemm_keys(lines.others),
                                                         end - current_gpu().now(), stream)}) +
         grouped;
}

void use_gemm_choices(const std::string& text) {
  const GemmLines lines = split_gemm_lines(text);
  const GemmChoices all = parse_gemm_choices(lines.others);
  Library& library = library_here();
  if (all.choices.empty() && lines.grouped.empty()) return;
  if (all.version == library.api.version()) {
    library.matmul.use(all.choices);
    return use_grouped_gemm_choices(lines.grouped);
  }
  log::info(fmt::format("GEMMs were measured with {}, and this is {}: they are measured again",
                        all.version, library.api.version()));
}

std::string gemm_choices() {
  const Library& library = library_here();
  return print_gemm_choices({library.api.version(), library.matmul.choices()}) +
         grouped_gemm_choices();
}

}  // namespace mtrain::kernels::cuda
