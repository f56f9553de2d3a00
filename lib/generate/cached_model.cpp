#include "generate/cached_model.h"

namespace mtrain::generate {

CachedModel::CachedModel(Stream& stream, model::Gpt& model, KeyValueCache& cache)
    : stream_(stream), model_(model), cache_(cache) {}

std::vector<std::vector<float>> CachedModel::forward(const std::vector<Piece>& pieces) {
  std::vector<int32_t> ids, positions;
  std::vector<NewTokens> rows;
  std::vector<int64_t> last;
  for (const Piece& p : pieces) {
    rows.push_back({p.slot, p.first, int64_t(p.ids.size()), p.of_prompt});
    ids.insert(ids.end(), p.ids.begin(), p.ids.end());
    for (size_t i = 0; i < p.ids.size(); ++i) positions.push_back(int32_t(p.first + int64_t(i)));
    last.push_back(int64_t(ids.size()) - 1);
  }
  cache_.expect(rows);
  const auto T = int64_t(ids.size());
  model::MicroBatch batch;
  batch.input_T = Tensor::from_host(stream_, {T}, std::move(ids));
  batch.seq = {.B = 1, .S = T, .position_T = Tensor::from_host(stream_, {T}, std::move(positions))};
  model::WgradQueue wgrad;
  model::Stash stash;
  model::Step step{
      .compute = stream_, .wgrad = wgrad, .stash = &stash, .seq = batch.seq, .training = false};
  const Tensor logits_RV = model_.logits(step, batch, last);
  const std::vector<float> all = logits_RV.to_host<float>(stream_);
  std::vector<std::vector<float>> logits;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto row = all.begin() + int64_t(i) * logits_RV.dim(1);
    logits.emplace_back(row, row + vocabulary());  // padding follows the vocabulary
  }
  return logits;
}

}  // namespace mtrain::generate
