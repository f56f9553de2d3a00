// Measures which algorithm of the library is the fastest.
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "kernels/cuda/gemm/gemm_memory.h"
#include "kernels/cuda/gemm/gemm_timing.h"
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

constexpr uint8_t kAny = 128;  // the alignment of memory whose alignment the key does not have

// Returns the key of the GEMM that run_apart() leaves to the library.
MatmulKey plain_key(MatmulKey key) {
  if (key.epilogue == Epilogue::gelu_bias) {
    key.epilogue = Epilogue::bias;
    key.c_alignment = kAny;  // C is gelu's input
    return key;
  }
  if (key.epilogue == Epilogue::gelu) key.c_alignment = kAny;
  key.epilogue = Epilogue::none;
  key.bias_alignment = alignment_of(nullptr);
  return key;
}

// Matmuls of a key on separate memory, which calls use in turn.
class Examples {
 public:
  Examples(const GemmDevice& device, const MatmulKey& key, int64_t count, CUstream_st* stream)
      : device_(device), stream_(stream), all_(size_t(count), sizes(key)) {
    const MatmulKey& k = key;
    fill(&Matmul::a, k.M * k.K, k.a, k.a_alignment),
        fill(&Matmul::b, k.K * k.N, k.b, k.b_alignment);
    fill(&Matmul::c_MN, k.M * k.N, k.c, k.c_alignment);
    const Epilogue e = k.epilogue;
    if (e == Epilogue::bias || e == Epilogue::gelu_bias)
      fill(&Matmul::bias_N, k.N, k.bias, k.bias_alignment);
    if (e == Epilogue::gelu || e == Epilogue::gelu_bias)
      fill(&Matmul::gelu_input_MN, k.M * k.N, k.c, kAny);
    if (e == Epilogue::dgelu) fill(&Matmul::dgelu_of_MN, k.M * k.N, k.c, kAny);
    if (e == Epilogue::sums) fill(&Matmul::a_sums_M, k.M, DType::f32, kAny);
    if (!is_float8(k.a)) return;
    scales(&Matmul::a_inverse, k.a_blocks, k.M, k.K);
    scales(&Matmul::b_inverse, k.b_blocks, k.N, k.K);
  }
  const Matmul& next() { return all_[turn_++ % all_.size()]; }

  // Returns the bytes of a matmul's operands and results.
  static int64_t bytes(const MatmulKey& k) {
    const bool beside = k.epilogue == Epilogue::gelu || k.epilogue == Epilogue::gelu_bias ||
                        k.epilogue == Epilogue::dgelu;
    return k.M * k.K * dtype_size(k.a) + k.K * k.N * dtype_size(k.b) +
           k.M * k.N * dtype_size(k.c) * (beside ? 2 : 1);
  }

 private:
  static Matmul sizes(const MatmulKey& k) {
    Matmul m{};
    m.M = k.M, m.N = k.N, m.K = k.K;
    m.trans_a = k.trans_a, m.trans_b = k.trans_b, m.accumulate = k.accumulate, m.fast = k.fast;
    m.sm_margin = k.sm_margin;
    if (is_float8(k.a)) m.a_blocks = k.a_blocks, m.b_blocks = k.b_blocks;
    return m;
  }
  // Gives a member of each matmul memory whose address is a multiple of `alignment`, and of no
  // larger power of 2 up to 128.
  template <class Member>
  void fill(Member Matmul::*member, int64_t count, DType dtype, int alignment) {
    constexpr int64_t kLargest = 256;
    const int64_t offset = alignment % 128,
                  step = round_up(count * dtype_size(dtype) + offset, kLargest);
    memory_.push_back(std::make_unique<GemmMemory>(device_, step * int64_t(all_.size()), stream_));
    char* const first = static_cast<char*>(memory_.back()->get()) + offset;
    for (size_t i = 0; i < all_.size(); ++i) {
      const Span one{first + step * int64_t(i), count, dtype};
      device_.fill_for_timing(one, stream_);
      all_[i].*member = one;
    }
  }
  template <class Member>
  void scales(Member Matmul::*member, ScaleBlocks blocks, int64_t rows, int64_t K) {
    if (blocks == ScaleBlocks::none) return fill(member, 1, DType::f32, kAny);
    fill(member, block_scales(blocks, rows, K), block_scale_type(blocks), kAny);
  }

  const GemmDevice& device_;
  CUstream_st* stream_;
  std::vector<std::unique_ptr<GemmMemory>> memory_;
  std::vector<Matmul> all_;
  size_t turn_ = 0;
};

// Returns as many examples as a cold cache takes, or one if there is no memory for them.
std::unique_ptr<Examples> examples_of(const GemmDevice& device, const MatmulKey& key,
                                      CUstream_st* stream) {
  const int64_t sets = sets_in_turn(Examples::bytes(key), device.cache_bytes());
  if (sets > 1) try {
      return std::make_unique<Examples>(device, key, sets, stream);
    } catch (const RunError&) {
      device.require_healthy(stream);
    }
  return std::make_unique<Examples>(device, key, 1, stream);
}

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

// Measures the algorithms of a key. Returns the fastest and its seconds, and the seconds of the one
// that the library prefers; empty if the library refuses the key.
std::optional<LibraryMatmul::Fastest> LibraryMatmul::fastest_of(const MatmulKey& key,
                                                                CUstream_st* stream) {
  const auto examples = examples_of(device_, key, stream);
  const PlanRef plan = plan_of(key);
  const auto run = [&](size_t i) {
    return run_one(*plan, plan->algorithms[i], examples->next(), stream);
  };
  const auto require = [](const GemmAnswer& answer) {
    if (answer.status != Status::done) throw RunError(answer.text);
  };
  const auto seconds_of = [&](size_t i, int calls) {
    return device_.seconds([&] { require(run(i)); }, calls, stream);
  };
  std::vector<double> seconds(plan->algorithms.size(), kRefused);
  int calls = 0;
  for (size_t i = 0; i < seconds.size(); ++i) {
    if (const GemmAnswer answer = run(i); answer.status == Status::refused) {
      device_.require_healthy(stream);
      continue;
    } else {
      require(answer);
    }
    if (calls == 0) calls = calls_at_once(seconds_of(i, 1), GemmTiming::kFirstCalls);
    seconds[i] = seconds_of(i, calls);
  }
  const std::vector<size_t> last = finalists(seconds);
  if (last.empty()) return std::nullopt;
  std::vector<double> least(last.size(), kRefused);
  for (int round = 0; round < GemmTiming::kRounds; ++round)
    for (size_t i = 0; i < last.size(); ++i)
      least[i] = std::min(
          least[i], seconds_of(last[i], calls_at_once(seconds[last[i]], GemmTiming::kFinalCalls)));
  size_t best = 0;
  for (size_t i = 1; i < last.size(); ++i)
    if (least[i] < least[best] && least[i] < kMargin * least[0]) best = i;
  return Fastest{plan->algorithms[last[best]].bits, least[best]};
}

// Returns the seconds of a GEMM whose epilogue mtrain's own kernels compute.
double LibraryMatmul::seconds_apart(const MatmulKey& key, CUstream_st* stream) {
  const auto examples = examples_of(device_, key, stream);
  const auto seconds_of = [&](int calls) {
    return device_.seconds([&] { run_apart(examples->next(), stream); }, calls, stream);
  };
  const int calls = calls_at_once(seconds_of(1), GemmTiming::kFinalCalls);
  double least = kRefused;
  for (int round = 0; round < GemmTiming::kRounds; ++round)
    least = std::min(least, seconds_of(calls));
  return least;
}

void LibraryMatmul::time_one(const MatmulKey& key, std::vector<GemmChoice>& found,
                             CUstream_st* stream) {
  if (is_chosen(key)) return;
  const auto fused = fastest_of(key, stream);
  GemmChoice choice{.key = key, .bits = fused ? fused->bits : GemmAlgorithm::Bits{}};
  if (has_other_way(key)) {
    time_one(plain_key(key), found, stream);
    const double apart = seconds_apart(key, stream);
    if (!fused || apart <= fused->seconds) choice.apart = true, choice.bits = {};
  }
  if (!fused && !choice.apart) return;  // the library refuses it
  use({choice});
  found.push_back(choice);
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
