#include "ops/operand.h"
#include "parallel/context/context_attention.h"
#include "parallel/context/ring.h"

namespace mtrain::parallel {

namespace {

class P2pAttention : public model::AttentionCore {
 public:
  P2pAttention(std::shared_ptr<ContextComm> comm, Group cp, const model::HeadConfig& heads)
      : comm_(std::move(comm)), ring_(*comm_, std::move(cp), heads) {}

  model::CoreResult forward(model::Step& step, const Tensor& qkv_TN,
                            const ops::Destination&) override {
    const auto r = ring_.forward(step.compute, sequence(step), qkv_TN);
    return {r.out_TN, Kept{qkv_TN, r.lse}};
  }
  ops::Written backward(model::Step& step, const model::CoreResult& forward, const Tensor& dout_TN,
                        const ops::Destination&, bool) override {
    const auto& kept = std::any_cast<const Kept&>(forward.kept);
    return ring_.backward(step.compute, sequence(step), kept.qkv_TN,
                          {forward.out_TN.plain, kept.lse}, dout_TN);
  }
  bool set_input(model::CoreResult& forward, const Tensor& qkv_TN) override {
    std::any_cast<Kept&>(forward.kept).qkv_TN = qkv_TN;
    return true;
  }

 private:
  struct Kept {
    Tensor qkv_TN, lse;
  };

  static ContextSequence sequence(const model::Step& step) {
    return {step.seq.B, step.seq.S, step.seq.documents};
  }
  std::shared_ptr<ContextComm> comm_;
  RingAttention ring_;
};

}  // namespace

std::unique_ptr<model::AttentionCore> p2p_attention(std::shared_ptr<ContextComm> comm, Group cp,
                                                    const model::HeadConfig& heads) {
  return std::make_unique<P2pAttention>(std::move(comm), std::move(cp), heads);
}

}  // namespace mtrain::parallel
