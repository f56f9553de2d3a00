#include "generate/key_value_cache.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "ops/attention.h"
#include "ops/attention_block.h"
#include "ops/attention_decode.h"
#include "ops/blocks.h"

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
    const int64_t AD = heads_.A * heads_.D, width = heads_.kv_width();
    if (!cache_RN_)
      cache_RN_ = Tensor::empty(stream, {state_->slots * state_->positions, width}, qkv_TN.dtype(),
                                device::MemoryCategory::buffers);
    std::vector<ops::CopyBlock> blocks;
    int64_t row = 0;
    for (const NewTokens& r : state_->rows) {
      blocks.push_back({.from_row = row,
                        .from_column = AD,
                        .to_row = r.slot * state_->positions + r.first,
                        .to_column = 0,
                        .rows = r.count,
                        .columns = width});
      row += r.count;
    }
    MT_CHECK(row == qkv_TN.dim(0), "a cache expects {} rows and is given {}", row, qkv_TN.dim(0));
    ops::copy_blocks(stream, qkv_TN, cache_RN_, std::move(blocks));
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
