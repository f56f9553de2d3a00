#include "ops/attention.h"
#include "parallel/context/context_attention.h"
#include "parallel/context/head_exchange.h"

namespace mtrain::parallel {

namespace {

class A2aAttention : public model::AttentionCore {
 public:
  A2aAttention(std::shared_ptr<ContextComm> comm, Group cp, const model::HeadConfig& heads,
               int64_t head_chunks)
      : comm_(std::move(comm)), cp_(std::move(cp)), heads_(heads), pieces_(head_chunks) {}

  model::CoreResult forward(model::Step& step, const Tensor& qkv_TN,
                            const ops::Destination&) override {
    const HeadExchange e = exchange(step);
    SequenceToHeads in(e, step.compute, qkv_TN, qkv_sections());
    HeadsToSequence out(e, step.compute, {heads_.out_width()}, qkv_TN.dtype());
    std::vector<Piece> kept;
    for (int64_t p = 0; p < pieces_; ++p) {
      Piece piece{in.piece(p), {}};
      piece.result = ops::attention(step.compute, dims(step, e), piece.qkv_TN, step.seq.cu_seqlens);
      out.put(p, piece.result.out_TN);
      kept.push_back(std::move(piece));
    }
    return {out.finish(), std::move(kept)};
  }

  ops::Written backward(model::Step& step, const model::CoreResult& forward, const Tensor& dout_TN,
                        const ops::Destination&, bool) override {
    const HeadExchange e = exchange(step);
    const auto& kept = std::any_cast<const std::vector<Piece>&>(forward.kept);
    SequenceToHeads in(e, step.compute, dout_TN, {heads_.out_width()});
    HeadsToSequence out(e, step.compute, qkv_sections(), dout_TN.dtype());
    for (int64_t p = 0; p < pieces_; ++p) {
      const Piece& piece = kept[size_t(p)];
      out.put(p, ops::attention_backward(step.compute, dims(step, e), piece.qkv_TN,
                                         step.seq.cu_seqlens, piece.result, in.piece(p))
                     .plain);
    }
    return out.finish();
  }

 private:
  // What backward needs of a piece of the heads: its qkv and its output, for full sequences. The
  // caller also keeps the output as it is after the second exchange, which backward would otherwise
  // repeat. The qkv before the first exchange is not kept.
  struct Piece {
    Tensor qkv_TN;
    ops::AttentionResult result;
  };

  std::vector<int64_t> qkv_sections() const {
    return {heads_.A * heads_.D, heads_.G * heads_.D, heads_.G * heads_.value_dim()};
  }
  HeadExchange exchange(const model::Step& step) const {
    return {*comm_, cp_, pieces_, {step.seq.B, step.seq.S, step.seq.documents}};
  }
  ops::AttentionDims dims(const model::Step& step, const HeadExchange& e) const {
    return {.B = e.seq.B,
            .S = e.seq.S * cp_.size(),
            .A = heads_.A / e.parts(),
            .G = heads_.G / e.parts(),
            .D = heads_.D,
            .window = heads_.window,
            .scale = heads_.scale(),
            .cap = heads_.score_cap,
            .longest_document = step.seq.longest_document,
            .Dv = heads_.Dv};
  }

  std::shared_ptr<ContextComm> comm_;
  const Group cp_;
  const model::HeadConfig heads_;
  const int64_t pieces_;
};

}  // namespace

std::unique_ptr<model::AttentionCore> a2a_attention(std::shared_ptr<ContextComm> comm, Group cp,
                                                    const model::HeadConfig& heads,
                                                    int64_t head_chunks) {
  return std::make_unique<A2aAttention>(std::move(comm), std::move(cp), heads, head_chunks);
}

}  // namespace mtrain::parallel
