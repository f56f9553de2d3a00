#include "generate/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"

namespace mtrain::generate {

namespace {

// Draws from softmax(logits / temperature) over the top k tokens; `index` numbers the draw.
int32_t sample(const std::vector<float>& logits, const GenerateOptions& o, uint64_t index) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto k = o.temperature <= 0 ? 1
                 : o.top_k > 0      ? std::min(size_t(o.top_k), ids.size())
                                    : ids.size();
  const auto likelier = [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; };
  std::partial_sort(ids.begin(), ids.begin() + int64_t(k), ids.end(), likelier);
  if (k == 1) return ids[0];
  std::vector<double> cumulative;
  double sum = 0;
  for (size_t i = 0; i < k; ++i)
    cumulative.push_back(
        sum += std::exp(double(logits[size_t(ids[i])] - logits[size_t(ids[0])]) / o.temperature));
  const double draw =
      double(uniform_below(rng_key(o.seed, "generate"), index, 1ull << 53)) * 0x1p-53 * sum;
  const auto at = std::ranges::upper_bound(cumulative, draw) - cumulative.begin();
  return ids[std::min(size_t(at), k - 1)];
}

}  // namespace

void generate(Stream& stream, model::Gpt& model, const data::Tokenizer& tokenizer,
              std::string_view prompt, const GenerateOptions& o,
              const std::function<void(std::string_view)>& emit) {
  std::vector<int32_t> ids;
  tokenizer.encode(prompt, ids);
  if (ids.empty())
    throw UserError("the prompt is empty", "give at least one character with --prompt");
  const auto V = size_t(model.config().vocab);
  for (int32_t id : ids)
    if (size_t(id) >= V)
      throw UserError(
          fmt::format("the tokenizer gives id {}, and the model's vocabulary is {}", id, V),
          "use the tokenizer with which the model was trained");
  emit(prompt);
  for (int64_t i = 0; i < o.tokens; ++i) {
    const auto S = std::min(int64_t(ids.size()), o.window);
    std::vector<int32_t> position(static_cast<size_t>(S));
    std::iota(position.begin(), position.end(), 0);
    model::MicroBatch batch;
    batch.input_T = Tensor::from_host<int32_t>(stream, {S}, {ids.end() - S, ids.end()});
    batch.seq = {.B = 1, .S = S, .position_T = Tensor::from_host(stream, {S}, position)};
    model::WgradQueue wgrad;
    model::Stash stash;
    model::Step step{stream, wgrad, stash, batch.seq, 0, 0, 0, false};
    auto logits = model.logits(step, batch).rows(S - 1, S).to_host<float>(stream);
    logits.resize(V);
    ids.push_back(sample(logits, o, uint64_t(i)));
    if (tokenizer.eod() == ids.back()) return;
    emit(tokenizer.decode(std::span(&ids.back(), 1)));
  }
}

}  // namespace mtrain::generate
