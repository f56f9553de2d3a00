// Attention over a ring of ranks: what p2p is, and what a2a+p2p has across its exchanges.
#pragma once
#include "comm/group.h"
#include "parallel/context/lane.h"
#include "parallel/context/sequence.h"

namespace mtrain {

class RingAttention {
 public:
  RingAttention(ContextLane& lane, Group ring, const HeadConfig& heads);
  // qkv_TN: (T, (A + 2 G) D) of this rank's positions.
  ops::AttentionResult forward(Stream& compute, const ContextSequence& seq, const Tensor& qkv_TN);
  Tensor backward(Stream& compute, const ContextSequence& seq, const Tensor& qkv_TN,
                  const ops::AttentionResult& forward, const Tensor& dout_TN);  // dqkv

 private:
  int64_t rank() const { return ring_.rank(); }
  int64_t size() const { return ring_.size(); }
  int64_t kv_width() const { return 2 * heads_.G * heads_.D; }

  // This rank's queries against the keys of rank `from`.
  ops::AttentionBlock block(const ContextSequence& seq, int64_t from) const;
  // `sent` to the next rank, and what the one before sends.
  std::vector<Group::Message> pass_on(const Tensor& sent, const Tensor& received) const;
  Tensor memory(Stream& compute, const char* name, Shape shape, DType dtype) {
    return lane_.memory(compute, name, shape, dtype);
  }

  ContextLane& lane_;
  const Group ring_;
  const HeadConfig heads_;
  DocumentChunks chunks_;
};

}  // namespace mtrain
