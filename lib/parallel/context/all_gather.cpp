#include "ops/attention.h"
#include "ops/attention_block.h"
#include "ops/blocks.h"
#include "ops/elementwise.h"
#include "parallel/context/context_attention.h"

namespace mtrain::parallel {

namespace {

class AllGatherAttention : public model::AttentionCore {
 public:
  AllGatherAttention(std::shared_ptr<ContextComm> comm, Group cp, const model::HeadConfig& heads,
                     int64_t head_chunks)
      : comm_(std::move(comm)), cp_(std::move(cp)), heads_(heads), pieces_(head_chunks) {}

  model::CoreResult forward(model::Step& step, const Tensor& qkv_TN,
                            const ops::Destination&) override {
    Stream& compute = step.compute;
    const ContextSequence seq = sequence(compute, step);
    const Tensor out = Tensor::empty(compute, {seq.T(), heads_.out_width()}, qkv_TN.dtype());
    // One block for each piece of heads.
    const Tensor lse = Tensor::empty(compute, {pieces_, seq.B, A(), seq.S}, DType::f32);
    Gather gather(*this, compute, seq, qkv_TN);
    for (int64_t p = 0; p < pieces_; ++p) {
      const Tensor kv = gather.next();
      attend(compute, seq, p, qkv_TN, kv, {out, lse_of(lse, p)});
    }
    return {out, Kept{qkv_TN, lse}};
  }

  ops::Written backward(model::Step& step, const model::CoreResult& forward, const Tensor& dout_TN,
                        const ops::Destination&, bool) override {
    Stream& compute = step.compute;
    const ContextSequence seq = sequence(compute, step);
    const auto& [qkv_TN, lse] = std::any_cast<const Kept&>(forward.kept);
    const DType dtype = qkv_TN.dtype();
    const Tensor dqkv = Tensor::empty(compute, qkv_TN.shape(), dtype);
    const Tensor dq =
        dtype == DType::f32 ? dqkv : Tensor::empty(compute, {seq.T(), heads_.A * D()}, DType::f32);
    const Shape whole{rows(seq), kv_width()};
    const Tensor dkv = comm_->named_buffer(compute, ContextBuffer::gather_dkv, whole, DType::f32);
    // The gradients of a piece, rank after rank. One piece is reduced while the next is computed.
    const Tensor sent[2] = {
        comm_->named_buffer(compute, {ContextBuffer::gather_dkv_sent, 0}, whole, DType::f32),
        comm_->named_buffer(compute, {ContextBuffer::gather_dkv_sent, 1}, whole, DType::f32)};
    const Tensor own = comm_->named_buffer(compute, ContextBuffer::gather_dkv_own,
                                           {pieces_ * seq.T(), kv_width()}, DType::f32);
    Gather gather(*this, compute, seq, qkv_TN);
    Event reduced;
    for (int64_t p = 0; p < pieces_; ++p) {
      const Tensor kv = gather.next();
      ops::fill(compute, dkv, 0);  // keys after this rank's last query are in no block
      for (const int half : {0, 1})
        ops::attention_block_backward(
            compute, block(seq, p, half), {qkv_TN, p * A()}, {kv}, {kv, 0, G() * D()},
            {forward.out_TN.plain, lse_of(lse, p)}, dout_TN,
            {{dq, p * A()}, {dkv}, {dkv, 0, G() * D()}, chunks_ && half, true});
      ops::copy_blocks(compute, dkv, sent[p % 2], ops::inverse(order(seq)));
      reduced = comm_->enqueue(compute, [&](Stream& stream) {
        cp_.reduce_scatter(sent[p % 2], own.rows(p * seq.T(), (p + 1) * seq.T()), comm::Reduce::sum,
                           stream);
      });
    }
    if (dtype != DType::f32) put_columns(compute, dq, dqkv, 0);
    compute.wait(reduced);  // edge: the last reduction, after all others -> use of the gradients
    ops::copy_blocks(compute, ops::in_dtype(compute, own, dtype), dqkv,
                     ops::inverse(kv_by_piece(seq.T())));
    return dqkv;
  }
  bool set_input(model::CoreResult& forward, const Tensor& qkv_TN) override {
    std::any_cast<Kept&>(forward.kept).qkv_TN = qkv_TN;
    return true;
  }

 private:
  struct Kept {
    Tensor qkv_TN, lse;
  };

  // Gathers keys and values, one piece of the heads after the other. While one piece is in use, the
  // next is in flight.
  class Gather {
   public:
    Gather(AllGatherAttention& core, Stream& compute, const ContextSequence& seq,
           const Tensor& qkv_TN)
        : core_(core), compute_(compute), seq_(seq) {
      const DType dtype = qkv_TN.dtype();
      const Shape whole{core.rows(seq), core.kv_width()};
      own_ = core.comm_->named_buffer(compute, ContextBuffer::gather_own,
                                      {core.pieces_ * seq.T(), core.kv_width()}, dtype);
      gathered_[0] = core.comm_->named_buffer(compute, {ContextBuffer::gathered, 0}, whole, dtype);
      gathered_[1] = core.comm_->named_buffer(compute, {ContextBuffer::gathered, 1}, whole, dtype);
      kv_ = core.comm_->named_buffer(compute, ContextBuffer::gather_kv, whole, dtype);
      ops::copy_blocks(compute, qkv_TN, own_, core.kv_by_piece(seq.T()));
      arrived_ = start(0);
    }
    // Returns the keys and values of the next piece of heads: (rows of all ranks, G (D + Dv)), in
    // the sequence's order. The next call overwrites them.
    Tensor next() {
      const int64_t p = next_++;
      Event later;
      if (p + 1 < core_.pieces_) later = start(p + 1);
      compute_.wait(arrived_);  // edge: the piece's arrival -> its use
      arrived_ = std::move(later);
      ops::copy_blocks(compute_, gathered_[p % 2], kv_, core_.order(seq_));
      return kv_;
    }

   private:
    Event start(int64_t p) {
      return core_.comm_->enqueue(compute_, [&](Stream& stream) {
        core_.cp_.all_gather(own_.rows(p * seq_.T(), (p + 1) * seq_.T()), gathered_[p % 2], stream);
      });
    }
    AllGatherAttention& core_;
    Stream& compute_;
    const ContextSequence& seq_;
    Tensor own_, gathered_[2], kv_;
    Event arrived_;
    int64_t next_ = 0;
  };

  // Query heads and key-value heads of a piece, and the elements of a head.
  int64_t A() const { return heads_.A / pieces_; }
  int64_t G() const { return heads_.G / pieces_; }
  int64_t D() const { return heads_.D; }
  int64_t Dv() const { return heads_.value_dim(); }
  int64_t kv_width() const { return G() * (D() + Dv()); }

  ContextSequence sequence(Stream& compute, const model::Step& step) {
    ContextSequence seq{step.seq.B, step.seq.S, step.seq.documents};
    const bool same = seq.documents == documents_;
    chunks_.set(compute, seq, cp_.size());
    if (same) return seq;
    documents_ = seq.documents;
    // For each document: the keys that the first and the second half of this rank's queries attend
    // to.
    std::vector<int64_t> begin, end[2];
    int64_t at = 0;
    for (const int64_t length : documents_) {
      begin.push_back(at);
      for (const int half : {0, 1}) end[half].push_back(at + length / chunks() * keys_of(half));
      at += length;
    }
    for (const int half : {0, 1})
      seen_[half] = documents_.empty() ? ops::Documents{}
                                       : ops::Documents{row_numbers(compute, begin),
                                                        row_numbers(compute, end[half])};
    return seq;
  }

  int64_t chunks() const { return 2 * cp_.size(); }
  // The number of chunks of keys up to the end of this rank's first or second chunk.
  int64_t keys_of(int half) const { return half ? chunks() - cp_.rank() : cp_.rank() + 1; }
  int64_t rows(const ContextSequence& seq) const { return seq.T() * cp_.size(); }
  Tensor lse_of(const Tensor& lse, int64_t p) const {
    return lse.rows(p, p + 1).view({lse.dim(1), lse.dim(2), lse.dim(3)});
  }

  // Returns the blocks that copy rows from the order of ranks to the sequence's order.
  std::vector<ops::CopyBlock> order(const ContextSequence& seq) const {
    std::vector<int64_t> documents = seq.documents;
    if (documents.empty()) documents = {rows(seq)};
    return ops::balanced_to_sequence(documents, cp_.size(), kv_width());
  }
  // Returns the blocks that copy the keys and values of a qkv to (pieces * T, kv_width), piece
  // after piece.
  std::vector<ops::CopyBlock> kv_by_piece(int64_t T) const {
    auto blocks = ops::split_columns(T, {heads_.G * D(), heads_.G * Dv()}, pieces_);
    for (ops::CopyBlock& b : blocks) b.from_column += heads_.A * D();
    return blocks;
  }

  // Describes the attention of a half of this rank's queries to the keys up to its end, for the
  // heads of a piece.
  ops::AttentionBlock block(const ContextSequence& seq, int64_t p, int half) const {
    const int64_t S = seq.S, whole = S * cp_.size();
    ops::AttentionBlock b{.B = seq.B,
                          .q = half ? ops::Rows{S / 2, S} : ops::Rows{0, S / 2},
                          .kv = {0, whole / chunks() * keys_of(half)},
                          .A = A(),
                          .G = G(),
                          .D = D(),
                          .causal = true,
                          .scale = heads_.scale(),
                          .window = heads_.window,
                          .out_head = p * A(),
                          .cap = heads_.score_cap,
                          .Dv = heads_.Dv};
    if (chunks_) {
      b.q = {0, S};
      b.kv = {0, whole};
      b.q_documents = half ? chunks_.second() : chunks_.first();
      b.kv_documents = seen_[half];
    }
    return b;
  }

  void attend(Stream& compute, const ContextSequence& seq, int64_t p, const Tensor& qkv_TN,
              const Tensor& kv, const ops::AttentionResult& into) {
    const ops::Heads q{qkv_TN, p * A()}, k{kv}, v{kv, 0, G() * D()};
    if (!chunks_) {
      for (const int half : {0, 1})
        ops::attention_block(compute, block(seq, p, half), q, k, v, into);
      return;
    }
    // The halves of the documents alternate in the rows, so each block writes all rows. The rows of
    // the other half attend to no keys in this block.
    const ops::AttentionResult merged{Tensor::empty(compute, {seq.T(), A() * Dv()}, DType::f32),
                                      into.lse};
    const ops::AttentionResult second{Tensor::empty(compute, merged.out_TN.shape(), DType::f32),
                                      Tensor::empty(compute, into.lse.shape(), DType::f32)};
    for (const int half : {0, 1}) {
      ops::AttentionBlock b = block(seq, p, half);
      b.out_head = 0;
      ops::attention_block(compute, b, q, k, v, half ? second : merged);
    }
    ops::attention_merge(compute, second, merged, 0);
    put_columns(compute, merged.out_TN, into.out_TN, p * A() * Dv());
  }

  std::shared_ptr<ContextComm> comm_;
  const Group cp_;
  const model::HeadConfig heads_;
  const int64_t pieces_;
  DocumentChunks chunks_;
  std::vector<int64_t> documents_;
  ops::Documents seen_[2];
};

}  // namespace

std::unique_ptr<model::AttentionCore> all_gather_attention(std::shared_ptr<ContextComm> comm,
                                                           Group cp, const model::HeadConfig& heads,
                                                           int64_t head_chunks) {
  return std::make_unique<AllGatherAttention>(std::move(comm), std::move(cp), heads, head_chunks);
}

}  // namespace mtrain::parallel
