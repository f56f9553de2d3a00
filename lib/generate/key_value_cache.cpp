#include "generate/key_value_cache.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "ops/attention.h"
#include "ops/attention_block.h"
#include "ops/attention_decode.h"
#include "ops/blocks.h"
#include "ops/latent_heads.h"
#include "ops/matmul.h"

namespace mtrain::generate {

// The state that the cores of all layers share.
struct KeyValueCache::State {
  int64_t slots, positions;
  std::vector<int64_t> filled = {};  // positions of each slot that forwards have written
  std::vector<NewTokens> rows = {};  // rows of the next forward
  // The cache's rows [start_T[t], end_T[t]) that row t attends to. They are absent until the first
  // layer requests them, and unless all of `rows` are single tokens.
  Tensor start_T = {}, end_T = {};

  bool single() const {
    return std::ranges::all_of(rows, [](const NewTokens& r) { return r.count == 1; });
  }
  bool of_prompts() const {
    return std::ranges::any_of(rows, [](const NewTokens& r) { return r.of_prompt; });
  }
  // Copies the columns [from_column, from_column + width) of the new rows of x after those of their
  // sequences, to the columns of the cache that start at to_column.
  void append(Stream& stream, const Tensor& x_TN, int64_t from_column, int64_t width,
              const Tensor& cache_RN, int64_t to_column) const {
    std::vector<ops::CopyBlock> blocks;
    int64_t row = 0;
    for (const NewTokens& r : rows) {
      blocks.push_back({.from_row = row,
                        .from_column = from_column,
                        .to_row = r.slot * positions + r.first,
                        .to_column = to_column,
                        .rows = r.count,
                        .columns = width});
      row += r.count;
    }
    MT_CHECK(row == x_TN.dim(0), "a cache expects {} rows and is given {}", row, x_TN.dim(0));
    ops::copy_blocks(stream, x_TN, cache_RN, std::move(blocks));
  }
  Tensor memory(Stream& stream, int64_t width, DType dtype) const {
    return Tensor::empty(stream, {slots * positions, width}, dtype,
                         device::MemoryCategory::buffers);
  }
  void upload_ends(Stream& stream) {
    if (start_T) return;
    std::vector<int32_t> start, end;
    for (const NewTokens& r : rows) {
      start.push_back(int32_t(r.slot * positions));
      end.push_back(int32_t(r.slot * positions + r.first + 1));
    }
    const auto T = int64_t(rows.size());
    start_T = Tensor::from_host(stream, {T}, std::move(start));
    end_T = Tensor::from_host(stream, {T}, std::move(end));
  }
};

class KeyValueCache::Core : public model::AttentionCore {
 public:
  Core(const model::HeadConfig& heads, std::shared_ptr<State> state)
      : heads_(heads), state_(std::move(state)) {}

  model::CoreResult forward(model::Step& step, const Tensor& qkv_TN,
                            const ops::Destination&) override {
    MT_CHECK(!step.training && step.seq.B == 1, "a cache serves forwards of B = 1, not training");
    append(step.compute, qkv_TN);
    return {state_->single() ? decode(step.compute, qkv_TN) : prefill(step.compute, qkv_TN), {}};
  }
  ops::Written backward(model::Step&, const model::CoreResult&, const Tensor&,
                        const ops::Destination&, bool) override {
    throw BugError("attention to a cache has no backward");
  }

 private:
  // Copies the new keys and values, which are neighbours in a row, after those of their sequences.
  void append(Stream& stream, const Tensor& qkv_TN) {
    const int64_t width = heads_.kv_width();
    if (!cache_RN_) cache_RN_ = state_->memory(stream, width, qkv_TN.dtype());
    state_->append(stream, qkv_TN, heads_.A * heads_.D, width, cache_RN_, 0);
  }

  Tensor decode(Stream& stream, const Tensor& qkv_TN) {
    state_->upload_ends(stream);
    return ops::attention_decode(stream,
                                 {.A = heads_.A,
                                  .G = heads_.G,
                                  .D = heads_.D,
                                  .window = heads_.window,
                                  .scale = heads_.scale(),
                                  .cap = heads_.score_cap,
                                  .Dv = heads_.Dv},
                                 qkv_TN, cache_RN_, state_->start_T, state_->end_T);
  }

  // The queries of a sequence are the last of its positions. In a causal block each one therefore
  // attends to all keys up to its own.
  Tensor prefill(Stream& stream, const Tensor& qkv_TN) {
    const int64_t T = qkv_TN.dim(0);
    const ops::AttentionResult into{Tensor::empty(stream, {T, heads_.out_width()}, qkv_TN.dtype()),
                                    Tensor::empty(stream, {1, heads_.A, T}, DType::f32)};
    int64_t row = 0;
    for (const NewTokens& r : state_->rows) {
      const int64_t slot = r.slot * state_->positions;
      const ops::AttentionBlock block{.B = 1,
                                      .q = {row, row + r.count},
                                      .kv = {slot, slot + r.first + r.count},
                                      .A = heads_.A,
                                      .G = heads_.G,
                                      .D = heads_.D,
                                      .causal = true,
                                      .scale = heads_.scale(),
                                      .q_documents = {},
                                      .kv_documents = {},
                                      .window = heads_.window,
                                      .cap = heads_.score_cap,
                                      .Dv = heads_.Dv};
      ops::attention_block(stream, block, {qkv_TN, 0}, {cache_RN_, 0},
                           {cache_RN_, 0, heads_.G * heads_.D}, into);
      row += r.count;
    }
    return into.out_TN;
  }

  const model::HeadConfig heads_;
  const std::shared_ptr<State> state_;
  Tensor cache_RN_;  // the rows of slot s begin at s * positions: key heads, then value heads
};

// The cache of a layer with latent attention.
class KeyValueCache::Latents : public model::LatentCore {
 public:
  Latents(const model::LatentConfig& config, std::shared_ptr<State> state)
      : heads_(config.heads), dims_(config.dims), C_(config.C), state_(std::move(state)) {}

  Tensor forward(model::Step& step, const model::LatentRows& rows) override {
    MT_CHECK(!step.training && step.seq.B == 1, "a cache serves forwards of B = 1, not training");
    Stream& stream = step.compute;
    if (!cache_RN_) cache_RN_ = state_->memory(stream, C_ + dims_.R, rows.latent_TC.dtype());
    state_->append(stream, rows.latent_TC, 0, C_, cache_RN_, 0);
    state_->append(stream, rows.shared_TR, 0, dims_.R, cache_RN_, C_);
    return state_->single() && !state_->of_prompts() ? decode(stream, rows) : prefill(stream, rows);
  }

 private:
  Tensor decode(Stream& stream, const model::LatentRows& rows) {
    state_->upload_ends(stream);
    const Tensor q = ops::latent_queries(stream, dims_, rows.q_TN, rows.weight_NC);
    const Tensor sums = ops::attention_decode_latent(stream,
                                                     {.A = heads_.A,
                                                      .G = 1,
                                                      .D = C_ + dims_.R,
                                                      .window = heads_.window,
                                                      .scale = heads_.scale(),
                                                      .cap = heads_.score_cap,
                                                      .Dv = C_},
                                                     q, cache_RN_, state_->start_T, state_->end_T);
    return ops::latent_values(stream, dims_, sums, rows.weight_NC);
  }

  // Expands the latents of one sequence after the other. Its queries are the last of its positions.
  Tensor prefill(Stream& stream, const model::LatentRows& rows) {
    const int64_t T = rows.q_TN.dim(0);
    const DType dtype = rows.q_TN.dtype();
    const ops::AttentionResult into{Tensor::empty(stream, {T, heads_.out_width()}, dtype),
                                    Tensor::empty(stream, {1, heads_.A, T}, DType::f32)};
    int64_t row = 0;
    for (const NewTokens& r : state_->rows) {
      const int64_t end = r.first + r.count, slot = r.slot * state_->positions;
      const Tensor kv_TN = ops::matmul(stream, "matmul_qkv_fwd", columns(stream, slot, end, 0, C_),
                                       rows.weight_NC, {.b = true}, dtype);
      const Tensor heads =
          ops::latent_keys_values(stream, dims_, kv_TN, columns(stream, slot, end, C_, dims_.R));
      const ops::AttentionBlock block{.B = 1,
                                      .q = {row, row + r.count},
                                      .kv = {0, end},
                                      .A = heads_.A,
                                      .G = heads_.G,
                                      .D = heads_.D,
                                      .causal = true,
                                      .scale = heads_.scale(),
                                      .q_documents = {},
                                      .kv_documents = {},
                                      .window = heads_.window,
                                      .cap = heads_.score_cap,
                                      .Dv = heads_.Dv};
      ops::attention_block(stream, block, {rows.q_TN}, {heads}, {heads, 0, heads_.G * heads_.D},
                           into);
      row += r.count;
    }
    return into.out_TN;
  }

  Tensor columns(Stream& stream, int64_t slot, int64_t rows, int64_t first, int64_t width) const {
    const Tensor x = Tensor::empty(stream, {rows, width}, cache_RN_.dtype());
    ops::copy_blocks(stream, cache_RN_, x, {{slot, first, 0, 0, rows, width}});
    return x;
  }

  const model::HeadConfig heads_;
  const ops::LatentDims dims_;
  const int64_t C_;
  const std::shared_ptr<State> state_;
  Tensor
      cache_RN_;  // the rows of slot s begin at s * positions: a latent, then the shared elements
};

KeyValueCache::KeyValueCache(int64_t slots, int64_t positions)
    : state_(
          std::make_shared<State>(State{slots, positions, std::vector<int64_t>(size_t(slots))})) {
  if (slots * positions > std::numeric_limits<int32_t>::max())  // kernels use int32 row numbers
    throw UserError(fmt::format("a cache of {} texts of {} tokens has more than {} rows", slots,
                                positions, std::numeric_limits<int32_t>::max()),
                    "generate fewer texts together: --batch");
}

std::function<std::unique_ptr<model::AttentionCore>(const model::HeadConfig&, int64_t)>
KeyValueCache::cores() const {
  return [state = state_](const model::HeadConfig& heads, int64_t) {
    return std::make_unique<Core>(heads, state);
  };
}

std::function<std::unique_ptr<model::LatentCore>(const model::LatentConfig&, int64_t)>
KeyValueCache::latent_cores() const {
  return [state = state_](const model::LatentConfig& config, int64_t) {
    return std::make_unique<Latents>(config, state);
  };
}

void KeyValueCache::expect(const std::vector<NewTokens>& rows) {
  for (const NewTokens& r : rows) {
    MT_CHECK(r.slot >= 0 && r.slot < state_->slots && r.first >= 0 && r.count > 0 &&
                 r.first + r.count <= state_->positions,
             "a cache of {} x {} positions is given the positions [{}, {}) of slot {}",
             state_->slots, state_->positions, r.first, r.first + r.count, r.slot);
    int64_t& filled = state_->filled[size_t(r.slot)];
    MT_CHECK(r.first <= filled, "slot {} has {} positions and is given those from {} on", r.slot,
             filled, r.first);
    filled = r.first + r.count;
  }
  state_->rows = rows;
  state_->start_T = state_->end_T = {};
}

int64_t KeyValueCache::slots() const { return state_->slots; }
int64_t KeyValueCache::positions() const { return state_->positions; }

}  // namespace mtrain::generate
