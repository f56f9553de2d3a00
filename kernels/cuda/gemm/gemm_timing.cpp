// Measures which algorithm of the library is the fastest.
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "kernels/cuda/gemm/gemm_memory.h"
#include "kernels/cuda/gemm/library_matmul.h"
#include "kernels/matmul_unfused.h"

namespace mtrain::kernels::cuda {
namespace {

using Status = GemmAnswer::Status;

// A different algorithm replaces the first one only if it takes less than this fraction of its
// time: two measurements of one algorithm differ by as much.
constexpr double kMargin = 0.98;

bool has_other_way(const MatmulKey& key) {
  return key.epilogue != Epilogue::none && key.epilogue != Epilogue::bias;
}

// A matmul of this key on separate memory.
class Example {
 public:
  Example(const GemmDevice& device, const MatmulKey& k, CUstream_st* stream)
      : device_(device), stream_(stream) {
    m_.a = make(k.M * k.K, k.a, k.a_alignment), m_.b = make(k.K * k.N, k.b, k.b_alignment);
    m_.c_MN = make(k.M * k.N, k.c, k.c_alignment);
    m_.M = k.M, m_.N = k.N, m_.K = k.K;
    m_.trans_a = k.trans_a, m_.trans_b = k.trans_b, m_.accumulate = k.accumulate, m_.fast = k.fast;
    m_.sm_margin = k.sm_margin;
    const Epilogue e = k.epilogue;
    if (e == Epilogue::bias || e == Epilogue::gelu_bias)
      m_.bias_N = make(k.N, k.bias, k.bias_alignment);
    constexpr int kAny = 128;
    if (e == Epilogue::gelu || e == Epilogue::gelu_bias)
      m_.gelu_input_MN = make(k.M * k.N, k.c, kAny);
    if (e == Epilogue::dgelu) m_.dgelu_of_MN = make(k.M * k.N, k.c, kAny);
    if (e == Epilogue::sums) m_.a_sums_M = make(k.M, DType::f32, kAny);
    if (!is_float8(k.a)) return;
    m_.a_blocks = k.a_blocks, m_.b_blocks = k.b_blocks;
    m_.a_inverse = scales(k.a_blocks, k.M, k.K), m_.b_inverse = scales(k.b_blocks, k.N, k.K);
  }
  const Matmul& get() const { return m_; }

 private:
  // Returns memory whose address is a multiple of `alignment`, and of no larger power of 2 up to
  // 128.
  Span make(int64_t count, DType dtype, int alignment) {
    const int64_t offset = alignment % 128;
    memory_.push_back(
        std::make_unique<GemmMemory>(device_, count * dtype_size(dtype) + offset, stream_));
    const Span all{static_cast<char*>(memory_.back()->get()) + offset, count, dtype};
    device_.fill_for_timing(all, stream_);
    return all;
  }
  ConstSpan scales(ScaleBlocks blocks, int64_t rows, int64_t K) {
    if (blocks == ScaleBlocks::none) return make(1, DType::f32, 128);
    return make(block_scales(blocks, rows, K), block_scale_type(blocks), 128);
  }

  const GemmDevice& device_;
  CUstream_st* stream_;
  std::vector<std::unique_ptr<GemmMemory>> memory_;
  Matmul m_{};
};

}  // namespace

bool LibraryMatmul::is_chosen(const MatmulKey& key) const {
  const std::lock_guard lock(choosing_);
  return choices_.contains(key);
}

std::vector<MatmulKey> LibraryMatmul::unchosen() const {
  std::vector<std::pair<double, MatmulKey>> costly;
  plans_.each([&](const MatmulKey& k, const PlanRef& plan) {
    if (plan->runs > 0 && !plan->algorithms.empty() && !is_chosen(k))
      costly.push_back({double(plan->runs) * double(k.M) * double(k.N) * double(k.K), k});
  });
  std::sort(costly.begin(), costly.end(), std::greater<>());
  std::vector<MatmulKey> keys;
  for (const auto& [flops, key] : costly)
    if (keys.size() < kMaxTimed) keys.push_back(key);
  return keys;
}

void LibraryMatmul::time_one(const MatmulKey& key, std::vector<GemmChoice>& found,
                             CUstream_st* stream) {
  if (is_chosen(key)) return;
  const Example example(device_, key, stream);
  const Matmul& m = example.get();
  const PlanRef plan = plan_of(key);
  GemmChoice best{.key = key};
  double first = 0, least = 0;
  for (const GemmAlgorithm& algorithm : plan->algorithms) {
    const auto launch = [&] { return run_one(*plan, algorithm, m, stream); };
    const auto require = [](const GemmAnswer& answer) {
      if (answer.status != Status::done) throw RunError(answer.text);
    };
    if (const GemmAnswer answer = launch(); answer.status == Status::refused) {
      device_.require_healthy(stream);
      continue;
    } else {
      require(answer);
    }
    const double seconds = device_.seconds([&] { require(launch()); }, stream);
    if (first == 0) first = least = seconds, best.bits = algorithm.bits;
    if (seconds < least && seconds < kMargin * first) least = seconds, best.bits = algorithm.bits;
  }
  if (has_other_way(key)) {
    Matmul plain = m;
    plain.gelu_input_MN = {}, plain.dgelu_of_MN = {}, plain.a_sums_M = {};
    if (m.gelu_input_MN) plain.c_MN = m.gelu_input_MN;
    time_one(key_of(plain), found, stream);
    const double apart = device_.seconds([&] { run_apart(m, stream); }, stream);
    if (first == 0 || apart <= least) first = apart, best.apart = true, best.bits = {};
  }
  if (first == 0) return;  // the library refuses it
  use({best});
  found.push_back(best);
}

std::vector<GemmChoice> LibraryMatmul::time(const std::vector<MatmulKey>& keys, double seconds,
                                            CUstream_st* stream) {
  std::vector<GemmChoice> found;
  const double end = device_.now() + seconds;
  size_t begun = 0;
  for (; begun < keys.size() && device_.now() < end; ++begun) {
    const MatmulKey& key = keys[begun];
    try {
      time_one(key, found, stream);
    } catch (const RunError& e) {
      device_.require_healthy(stream);
      log::info(fmt::format("a GEMM of M {} N {} K {} is not measured: {}", key.M, key.N, key.K,
                            e.message()));
    }
  }
  if (begun < keys.size())
    log::info(
        fmt::format("{} of {} GEMMs were not measured within {:g} s: they use the algorithms that "
                    "the library prefers",
                    keys.size() - begun, keys.size(), seconds));
  return found;
}

void LibraryMatmul::use(const std::vector<GemmChoice>& choices) {
  for (const GemmChoice& c : choices) {
    {
      const std::lock_guard lock(choosing_);
      choices_[c.key] = c;
    }
    plans_.forget(c.key);
  }
}

std::vector<GemmChoice> LibraryMatmul::choices() const {
  const std::lock_guard lock(choosing_);
  std::vector<GemmChoice> all;
  for (const auto& [key, choice] : choices_) all.push_back(choice);
  return all;
}

}  // namespace mtrain::kernels::cuda
