#include "model/attention_core.h"
#include "ops/attention.h"

#include <cmath>

namespace mtrain::model {

namespace {

class LocalAttention : public AttentionCore {
 public:
  explicit LocalAttention(const HeadConfig& heads) : heads_(heads) {}
  CoreResult forward(Step& step, const Tensor& qkv_TN, const ops::Destination& to) override {
    const auto r = ops::attention(step.compute, dims(step), qkv_TN, step.seq.cu_seqlens, to);
    return {r.written, Kept{qkv_TN, r.lse}};
  }
  ops::Written backward(Step& step, const CoreResult& forward, const Tensor& dout_TN,
                        const ops::Destination& to, bool qk_last) override {
    const auto& kept = std::any_cast<const Kept&>(forward.kept);
    return ops::attention_backward(step.compute, dims(step), kept.qkv_TN, step.seq.cu_seqlens,
                                   {forward.out_TN.plain, kept.lse}, dout_TN, to, qk_last);
  }
  bool set_input(CoreResult& forward, const Tensor& qkv_TN) override {
    std::any_cast<Kept&>(forward.kept).qkv_TN = qkv_TN;
    return true;
  }

 private:
  struct Kept {
    Tensor qkv_TN, lse;
  };

  ops::AttentionDims dims(const Step& step) const {
    return {.B = step.seq.B,
            .S = step.seq.S,
            .A = heads_.A,
            .G = heads_.G,
            .D = heads_.D,
            .window = heads_.window,
            .scale = heads_.scale(),
            .cap = heads_.score_cap,
            .longest_document = step.seq.longest_document,
            .Dv = heads_.Dv};
  }
  HeadConfig heads_;
};

}  // namespace

float HeadConfig::scale() const {
  return score_scale > 0 ? score_scale : 1.0f / std::sqrt(float(D));
}

std::unique_ptr<AttentionCore> local_attention(const HeadConfig& heads) {
  return std::make_unique<LocalAttention>(heads);
}

}  // namespace mtrain::model
