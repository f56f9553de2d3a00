#include "parallel/context/ring.h"
#include "ops/attention.h"
#include "ops/attention_block.h"
#include "ops/blocks.h"
#include "ops/elementwise.h"

#include <algorithm>

namespace mtrain::parallel {

namespace {
constexpr int64_t kHomeParts = 4;  // parts in which the final gradients are sent to their owner
}

RingAttention::RingAttention(ContextComm& comm, Group ring, const model::HeadConfig& heads)
    : comm_(comm), ring_(std::move(ring)), heads_(heads) {
  MT_CHECK(heads.window == 0, "ring attention supports no sliding window, but got one of {}",
           heads.window);
}

// Attention to this rank's own keys has a causal mask. All queries attend to the first half of an
// earlier rank's keys and none to the second half, whose positions are after all queries of this
// rank. Only the second half of the queries attends to a later rank's keys, to all of them.
ops::AttentionBlock RingAttention::block(const ContextSequence& seq, int64_t from) const {
  ops::AttentionBlock b{.B = seq.B,
                        .q = {0, seq.S},
                        .kv = {0, seq.S},
                        .A = heads_.A,
                        .G = heads_.G,
                        .D = heads_.D,
                        .causal = from == rank(),
                        .scale = heads_.scale(),
                        .cap = heads_.score_cap,
                        .Dv = heads_.Dv};
  if (chunks_) {
    b.q_documents = from > rank() ? chunks_.second() : chunks_.both();
    b.kv_documents = from < rank() ? chunks_.first() : chunks_.both();
  } else if (from < rank()) {
    b.kv.end = seq.S / 2;
  } else if (from > rank()) {
    b.q.begin = seq.S / 2;
  }
  return b;
}

std::vector<Group::Message> RingAttention::pass_on(const Tensor& sent,
                                                   const Tensor& received) const {
  const int next = int((rank() + 1) % size()), before = int((rank() + size() - 1) % size());
  return {{comm::Transfer::Kind::send, sent, next},
          {comm::Transfer::Kind::receive, received, before}};
}

ops::AttentionResult RingAttention::forward(Stream& compute, const ContextSequence& seq,
                                            const Tensor& qkv_TN) {
  chunks_.set(compute, seq, size());
  const int64_t AD = heads_.A * heads_.D, N = heads_.out_width(), T = seq.T();
  const DType dtype = qkv_TN.dtype();
  // Step s computes with kv[s % 2] while the next keys arrive in the other.
  const Tensor kv[2] = {
      comm_.named_buffer(compute, {ContextBuffer::ring_kv, 0}, {T, kv_width()}, dtype),
      comm_.named_buffer(compute, {ContextBuffer::ring_kv, 1}, {T, kv_width()}, dtype)};
  ops::copy_blocks(compute, qkv_TN, kv[0], {{0, AD, 0, 0, T, kv_width()}});
  const ops::AttentionResult merged{Tensor::empty(compute, {T, N}, DType::f32),
                                    Tensor::empty(compute, {seq.B, heads_.A, seq.S}, DType::f32)};
  Event arrived;
  for (int64_t s = 0; s < size(); ++s) {
    Event next;
    if (s + 1 < size())
      next = comm_.enqueue(compute, [&](Stream& stream) {
        ring_.exchange(pass_on(kv[s % 2], kv[(s + 1) % 2]), stream);
      });
    compute.wait(arrived);  // edge: these keys' arrival -> their use
    ops::AttentionBlock b = block(seq, (rank() + size() - s) % size());
    const ops::Heads k{kv[s % 2]}, v{kv[s % 2], 0, heads_.G * heads_.D};
    if (s == 0) {
      ops::attention_block(compute, b, {qkv_TN}, k, v, merged);
    } else {
      const int64_t first = b.q.begin, S = b.q.end - first;
      const ops::AttentionResult part{Tensor::empty(compute, {S * seq.B, N}, DType::f32),
                                      Tensor::empty(compute, {seq.B, heads_.A, S}, DType::f32)};
      b.q = {0, S};
      const Tensor queries = qkv_TN.rows(first * seq.B, (first + S) * seq.B);
      ops::attention_block(compute, b, {queries}, k, v, part);
      ops::attention_merge(compute, part, merged, first);
    }
    arrived = std::move(next);
  }
  return {ops::in_dtype(compute, merged.out_TN, dtype), merged.lse};
}

// The gradients of a rank's keys follow the keys around the ring, one step later. Each rank adds
// its own share to the sum that has arrived. After the last step a sum is one rank before its
// owner.
Tensor RingAttention::backward(Stream& compute, const ContextSequence& seq, const Tensor& qkv_TN,
                               const ops::AttentionResult& forward, const Tensor& dout_TN) {
  chunks_.set(compute, seq, size());
  const int64_t AD = heads_.A * heads_.D, GD = heads_.G * heads_.D, T = seq.T(), n = size();
  const DType dtype = qkv_TN.dtype();
  const Shape shape{T, kv_width()};
  const Tensor kv[2] = {comm_.named_buffer(compute, {ContextBuffer::ring_kv, 0}, shape, dtype),
                        comm_.named_buffer(compute, {ContextBuffer::ring_kv, 1}, shape, dtype)};
  const Tensor sum[2] = {
      comm_.named_buffer(compute, {ContextBuffer::ring_dkv, 0}, shape, DType::f32),
      comm_.named_buffer(compute, {ContextBuffer::ring_dkv, 1}, shape, DType::f32)};
  const Tensor share =
      comm_.named_buffer(compute, ContextBuffer::ring_dkv_share, shape, DType::f32);
  ops::copy_blocks(compute, qkv_TN, kv[0], {{0, AD, 0, 0, T, kv_width()}});
  const Tensor dqkv = Tensor::empty(compute, qkv_TN.shape(), dtype);
  const Tensor dq = dtype == DType::f32 ? dqkv : Tensor::empty(compute, {T, AD}, DType::f32);
  const auto rows_of = [&](ops::Rows rows, const Tensor& x) {
    return x.rows(rows.begin * seq.B, rows.end * seq.B);
  };
  Event arrived, home;
  for (int64_t s = 0; s < n; ++s) {
    std::vector<Group::Message> messages;
    if (s + 1 < n) messages = pass_on(kv[s % 2], kv[(s + 1) % 2]);
    if (s > 0)
      for (auto& m : pass_on(sum[(s - 1) % 2], sum[s % 2])) messages.push_back(std::move(m));
    Event next;
    if (n > 1)
      next = comm_.enqueue(compute, [&](Stream& stream) { ring_.exchange(messages, stream); });
    compute.wait(arrived);  // edge: these keys' arrival -> their use
    // The last sums go to their owner part by part: each part travels while the next is computed.
    const bool last = s + 1 == n && n > 1;
    const int64_t parts = last && !chunks_ ? std::min(kHomeParts, seq.S) : 1;
    const ops::AttentionBlock whole = block(seq, (rank() + n - s) % n);
    for (int64_t p = 0; p < parts; ++p) {
      const ops::Rows rows{seq.S * p / parts, seq.S * (p + 1) / parts};
      ops::AttentionBlock b = whole;
      b.kv = {std::min(rows.begin, whole.kv.end), std::min(rows.end, whole.kv.end)};
      if (b.kv.begin < b.kv.end) {
        const Tensor& into = s == 0 ? sum[0] : share;
        ops::attention_block_backward(compute, b, {qkv_TN}, {kv[s % 2]}, {kv[s % 2], 0, GD},
                                      forward, dout_TN,
                                      {{dq}, {into}, {into, 0, GD}, s > 0, false});
        if (s > 0) {
          compute.wait(next);  // edge: the sum's arrival -> the addition of this rank's share
          ops::add_into(compute, rows_of(b.kv, share), rows_of(b.kv, sum[s % 2]));
        }
      }
      if (last)
        home = comm_.enqueue(compute, [&](Stream& stream) {
          ring_.exchange(pass_on(rows_of(rows, sum[s % 2]), rows_of(rows, sum[n % 2])), stream);
        });
    }
    arrived = std::move(next);
  }
  compute.wait(home);  // edge: the last part's arrival, after all others -> their use
  if (dtype != DType::f32) put_columns(compute, dq, dqkv, 0);
  put_columns(compute, n == 1 ? sum[0] : sum[n % 2], dqkv, AD);
  return dqkv;
}

}  // namespace mtrain::parallel
