// Measures what one token of generation costs a GPT-2 of 124M parameters: with the cache of keys
// and values, and by a forward of the full sequence.
//   bench_generate [threads] [fp32|bf16] [rounds] [positions...]
//   bench_generate latent|expanded [threads] [fp32|bf16] [rounds] [positions...]
// The second form has four layers with the attention of DeepSeek-V2-Lite, and a cache of latents or
// of expanded keys and values.
// For each position it prints: the median milliseconds of a token with the cache, of a full
// forward, and of the prompt. Positions take turns within a round.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "device/device.h"
#include "generate/cached_model.h"

using namespace mtrain;

namespace {

constexpr int64_t kPaddedVocab = 50304, kContext = 1024;
constexpr int64_t kTokens = 8;  // tokens that are timed one by one in a round

spec::ModelSpec gpt2() {
  const spec::LayerSpec layer{
      .attention =
          spec::GroupedAttention{
              .heads = 12, .kv_heads = 12, .head_dim = 64, .qkv_bias = true, .proj_bias = true},
      .mlp = spec::DenseMlp{.ffn = 3072, .activation = spec::Activation::gelu_tanh, .bias = true}};
  return {.hidden = 768,
          .vocab = 50257,
          .max_positions = kContext,
          .learned_positions = true,
          .norm = {.kind = NormKind::layer, .bias = true},
          .layers = std::vector(12, layer),
          .tied_embeddings = true};
}

spec::ModelSpec latent_model() {
  const spec::GroupedAttention attention{
      .heads = 16,
      .kv_heads = 16,
      .head_dim = 192,
      .rotary = {.dims = 64},
      .value_head_dim = 128,
      .latent = spec::LatentProjections{.kv_rank = 512, .rope_dim = 64}};
  const spec::LayerSpec layer{.attention = attention, .mlp = spec::DenseMlp{.ffn = 2816}};
  return {.hidden = 2048, .vocab = 50257, .layers = std::vector(4, layer)};
}

enum class Cache { keys_values, latents, expanded };

double milliseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

double median(std::vector<double> all) {
  std::ranges::sort(all);
  return all[all.size() / 2];
}

struct Times {
  std::vector<double> prompt, token, whole;
};

class Bench {
 public:
  Bench(Cache cache, int threads, DType dtype)
      : model_(cache == Cache::keys_values ? gpt2() : latent_model()),
        device_(Device::cpu(threads)),
        stream_(device_->stream(device::StreamKind::compute)) {
    impls_.attention_core = cache_.cores();
    if (cache == Cache::latents) impls_.latent_core = cache_.latent_cores();
    impls_.padded_vocab = kPaddedVocab;
    cached_ = std::make_unique<model::Gpt>(stream_, params_, model_, kContext, model::Recompute{},
                                           impls_);
    params_.materialize(stream_, dtype, false);
    params_.initialize(stream_, 1);
    whole_ =
        std::make_unique<model::Gpt>(stream_, whole_params_, model_, kContext, model::Recompute{},
                                     model::ModelImpls{.padded_vocab = kPaddedVocab});
    whole_params_.materialize(stream_, dtype, false);
    whole_params_.initialize(stream_, 1);
    stream_.synchronize();
  }

  void round(int64_t position, Times& times, bool whole) {
    const auto prompt = ids(position);
    generate::CachedModel model(stream_, *cached_, cache_);
    times.prompt.push_back(milliseconds([&] {
      for (int64_t at = 0; at < position; at += 512)
        model.forward({{0, at,
                        std::span(prompt)
                            .subspan(size_t(at))
                            .first(size_t(std::min<int64_t>(512, position - at)))}});
    }));
    const auto next = ids(kTokens);
    for (int64_t i = 0; i < kTokens; ++i)
      times.token.push_back(milliseconds([&] {
        model.forward({{0, position + i, std::span(next).subspan(size_t(i), 1)}});
      }));
    if (whole) times.whole.push_back(milliseconds([&] { whole_forward(prompt); }));
  }

 private:
  static std::vector<int32_t> ids(int64_t count) {
    std::vector<int32_t> x;
    for (int64_t i = 0; i < count; ++i) x.push_back(int32_t(i * 7919 % 50257));
    return x;
  }
  void whole_forward(const std::vector<int32_t>& prompt) {
    const auto S = int64_t(prompt.size());
    std::vector<int32_t> position(prompt.size());
    std::iota(position.begin(), position.end(), 0);
    model::MicroBatch batch;
    batch.input_T = Tensor::from_host(stream_, {S}, prompt);
    batch.seq = {.B = 1, .S = S, .position_T = Tensor::from_host(stream_, {S}, position)};
    model::WgradQueue wgrad;
    model::Stash stash;
    model::Step step{
        .compute = stream_, .wgrad = wgrad, .stash = &stash, .seq = batch.seq, .training = false};
    whole_->logits(step, batch).rows(S - 1, S).to_host<float>(stream_);
  }

  const spec::ModelSpec model_;
  std::unique_ptr<Device> device_;
  Stream& stream_;
  generate::KeyValueCache cache_{1, kContext};
  model::ModelImpls impls_;
  model::ParamStore params_, whole_params_;
  std::unique_ptr<model::Gpt> cached_, whole_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  const Cache cache = first == "latent"     ? Cache::latents
                      : first == "expanded" ? Cache::expanded
                                            : Cache::keys_values;
  if (cache != Cache::keys_values) --argc, ++argv;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const DType dtype = argc > 2 && std::string(argv[2]) == "bf16" ? DType::bf16 : DType::f32;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  std::vector<int64_t> positions;
  for (int i = 4; i < argc; ++i) positions.push_back(std::atoll(argv[i]));
  if (positions.empty()) positions = {10, 100, 500, 1000};
  Bench bench(cache, threads, dtype);
  std::vector<Times> times(positions.size());
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < positions.size(); ++i) bench.round(positions[i], times[i], round < 3);
  std::printf("%s, %d threads: milliseconds\n", std::string(dtype_name(dtype)).c_str(), threads);
  std::printf("%8s %10s %14s %10s\n", "position", "a token", "whole forward", "prompt");
  for (size_t i = 0; i < positions.size(); ++i)
    std::printf("%8lld %10.2f %14.1f %10.1f\n", static_cast<long long>(positions[i]),
                median(times[i].token), median(times[i].whole), median(times[i].prompt));
}
