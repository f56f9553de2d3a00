// Carries keys, values and heads between the ranks of context parallelism, on a stream of its own.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <utility>

#include "tensor/tensor.h"

namespace mtrain::parallel {

// The buffers of the attention cores. The cores of a rank share them, since one core is done with
// them before the next begins. "x 2" marks double buffers.
enum class ContextBuffer : uint8_t {
  // RingAttention
  ring_kv,         // x 2: the keys and values in use, and those in flight
  ring_dkv,        // x 2: sums of gradients of keys and values, one in use and one in flight
  ring_dkv_share,  // the gradients that this rank adds to such a sum
  // AllGatherAttention; a piece is a part of the heads
  gather_own,       // keys and values of this rank's positions, piece after piece
  gathered,         // x 2: keys and values of a piece from all ranks, rank after rank
  gather_kv,        // keys and values of a piece, in the sequence's order
  gather_dkv,       // the gradient of gather_kv
  gather_dkv_sent,  // x 2: the gradient of `gathered`
  gather_dkv_own,   // the gradient of gather_own
  // SequenceToHeads
  to_heads_sent,
  to_heads_received,
  // HeadsToSequence
  to_sequence_sent,
  to_sequence_received,
};
// Names a buffer. The index is 0 or 1 if there are two, else 0.
struct ContextBufferKey {
  constexpr ContextBufferKey(ContextBuffer which_buffer, int64_t which_index = 0)
      : buffer(which_buffer), index(which_index) {}
  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm of clang-tidy 14
  auto operator<=>(const ContextBufferKey&) const = default;

  ContextBuffer buffer;
  int64_t index;
};

// The attention cores of a rank share one ContextComm. When a core's forward or backward returns,
// `compute` waits for all communication of that core. The next core may therefore use the same
// buffers.
class ContextComm {
 public:
  // Without `overlap`, compute waits for every communication immediately. The result bits are the
  // same.
  ContextComm(Stream& stream, bool overlap) : stream_(stream), overlap_(overlap) {}

  // Calls `communicate(stream)`, whose work runs after everything that is enqueued on `compute` so
  // far. Returns the event of its end.
  template <class F>
  Event enqueue(Stream& compute, const F& communicate) {
    // edge: what compute writes to send, and its last use of the receive buffer -> communication
    stream_.wait(compute.record());
    communicate(stream_);
    Event arrived = stream_.record();
    if (!overlap_) compute.wait(arrived);
    return arrived;
  }

  // Returns memory that is kept between calls; compute and communication use it. If each call
  // allocated memory, a host that runs ahead of the streams could not reuse it, and more and more
  // would be allocated.
  Tensor named_buffer(Stream& compute, ContextBufferKey key, const Shape& shape, DType dtype);

 private:
  Stream& stream_;
  const bool overlap_;
  std::map<std::pair<ContextBufferKey, DType>, Tensor> buffers_;
};

}  // namespace mtrain::parallel
