#include "base/math.h"
#include "ops/attention.h"
#include "parallel/context/context_attention.h"
#include "parallel/context/head_exchange.h"
#include "parallel/context/ring.h"

namespace mtrain::parallel {

namespace {

class A2aP2pAttention : public model::AttentionCore {
 public:
  A2aP2pAttention(std::shared_ptr<ContextComm> comm, Group level, Group ring,
                  const model::HeadConfig& heads)
      : comm_(std::move(comm)),
        level_(std::move(level)),
        heads_(heads),
        ranks_(int64_t(level_.size()) * ring.size()),
        ring_(*comm_, std::move(ring), share_of(heads, level_.size())) {}

  model::CoreResult forward(model::Step& step, const Tensor& qkv_TN,
                            const ops::Destination&) override {
    const HeadExchange e = exchange(step);
    const Tensor qkv = SequenceToHeads(e, step.compute, qkv_TN, qkv_sections()).piece(0);
    auto result = ring_.forward(step.compute, ring_sequence(step), qkv);
    HeadsToSequence out(e, step.compute, {heads_.out_width()}, qkv_TN.dtype());
    out.put(0, result.out_TN);
    return {out.finish(), Kept{qkv, std::move(result)}};
  }

  ops::Written backward(model::Step& step, const model::CoreResult& forward, const Tensor& dout_TN,
                        const ops::Destination&, bool) override {
    const HeadExchange e = exchange(step);
    const auto& kept = std::any_cast<const Kept&>(forward.kept);
    const Tensor dout = SequenceToHeads(e, step.compute, dout_TN, {heads_.out_width()}).piece(0);
    HeadsToSequence out(e, step.compute, qkv_sections(), dout_TN.dtype());
    out.put(0, ring_.backward(step.compute, ring_sequence(step), kept.qkv_TN, kept.result, dout));
    return out.finish();
  }

 private:
  // Both tensors have this rank's share of the heads, for all positions of its level.
  struct Kept {
    Tensor qkv_TN;
    ops::AttentionResult result;
  };

  static model::HeadConfig share_of(model::HeadConfig heads, int64_t ranks) {
    heads.A = exact_div(heads.A, ranks);
    heads.G = exact_div(heads.G, ranks);
    return heads;
  }
  std::vector<int64_t> qkv_sections() const {
    return {heads_.A * heads_.D, heads_.G * heads_.D, heads_.G * heads_.value_dim()};
  }
  // The ranks of a level are neighbours. Rank r of the ring, together with its level, has chunks r
  // and 2 * ring.size() - 1 - r of 2 * ring.size() larger chunks. The exchange sorts the positions
  // of the level; the ring then has the balanced chunks that it expects.
  HeadExchange exchange(const model::Step& step) const {
    std::vector<int64_t> documents = step.seq.documents;
    for (int64_t& length : documents) length = exact_div(length * level_.size(), ranks_);
    return {*comm_, level_, 1, {step.seq.B, step.seq.S, std::move(documents)}};
  }
  ContextSequence ring_sequence(const model::Step& step) const {
    return {step.seq.B, step.seq.S * level_.size(), step.seq.documents};
  }

  std::shared_ptr<ContextComm> comm_;
  const Group level_;
  const model::HeadConfig heads_;
  const int64_t ranks_;
  RingAttention ring_;
};

}  // namespace

std::unique_ptr<model::AttentionCore> a2a_p2p_attention(std::shared_ptr<ContextComm> comm,
                                                        Group level, Group ring,
                                                        const model::HeadConfig& heads) {
  return std::make_unique<A2aP2pAttention>(std::move(comm), std::move(level), std::move(ring),
                                           heads);
}

}  // namespace mtrain::parallel
