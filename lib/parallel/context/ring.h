// Attention over a ring of ranks. p2p consists of it; a2a+p2p uses it between its two exchanges.
#pragma once
#include "comm/group.h"
#include "ops/attention.h"
#include "ops/attention_block.h"
#include "parallel/context/context_comm.h"
#include "parallel/context/sequence.h"

namespace mtrain::parallel {

class RingAttention {
 public:
  RingAttention(ContextComm& comm, Group ring, const model::HeadConfig& heads);
  // qkv_TN is (T, (A + G) D + G Dv), for this rank's positions.
  ops::AttentionResult forward(Stream& compute, const ContextSequence& seq, const Tensor& qkv_TN);
  // Returns dL/dqkv (T, (A + G) D + G Dv).
  Tensor backward(Stream& compute, const ContextSequence& seq, const Tensor& qkv_TN,
                  const ops::AttentionResult& forward, const Tensor& dout_TN);

 private:
  int64_t rank() const { return ring_.rank(); }
  int64_t size() const { return ring_.size(); }
  int64_t kv_width() const { return heads_.kv_width(); }

  // Describes the attention of this rank's queries to the keys of rank `from`.
  ops::AttentionBlock block(const ContextSequence& seq, int64_t from) const;
  // Returns the messages that send `sent` to the next rank, and receive into `received` from the
  // rank before.
  std::vector<Group::Message> pass_on(const Tensor& sent, const Tensor& received) const;

  ContextComm& comm_;
  const Group ring_;
  const model::HeadConfig heads_;
  DocumentChunks chunks_;
};

}  // namespace mtrain::parallel
