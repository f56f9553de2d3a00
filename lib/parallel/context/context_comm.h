// Carries keys, values and heads between the ranks of context parallelism, on a stream of its own.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <utility>

#include "tensor/tensor.h"

namespace mtrain::parallel {

// The buffers of the attention cores. The cores of a rank share them, since one core is done with
// them before the next begins.
enum class ContextBuffer : uint8_t {
  ring_kv,          // 2: keys and values that compute, and those that arrive
  ring_dkv,         // 2: sums of their gradients, as above
  ring_dkv_share,   // what this rank adds to such a sum
  gather_own,       // this rank's keys and values, one piece of heads after the other
  gathered,         // 2: a piece of all ranks, rank after rank
  gather_kv,        // the same in the sequence's order
  gather_dkv,       // its gradient, in the sequence's order
  gather_dkv_sent,  // 2: its gradient, rank after rank
  gather_dkv_own,   // the gradient of gather_own
  to_heads_sent,    // SequenceToHeads
  to_heads_received,
  to_sequence_sent,  // HeadsToSequence
  to_sequence_received,
};
// Buffers of which there are two take the index 0 or 1.
struct ContextBufferKey {
  constexpr ContextBufferKey(ContextBuffer which_buffer, int64_t which_index = 0)
      : buffer(which_buffer), index(which_index) {}
  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm of clang-tidy 14
  auto operator<=>(const ContextBufferKey&) const = default;

  ContextBuffer buffer;
  int64_t index;
};

// The attention cores of a rank share one. When a core's forward or backward returns, `compute` has
// been told to wait for everything that it sent, so that the next core may use the same memory.
class ContextComm {
 public:
  // Without `overlap` compute waits for every communication. The calls and the bits are the same.
  ContextComm(Stream& stream, bool overlap) : stream_(stream), overlap_(overlap) {}

  // Runs `communicate(stream)` after everything that `compute` has been given so far. Returns the
  // event of its end.
  template <class F>
  Event enqueue(Stream& compute, const F& communicate) {
    // edge: what is sent, and the last use of what is received into -> the communication
    stream_.wait(compute.record());
    communicate(stream_);
    Event arrived = stream_.record();
    if (!overlap_) compute.wait(arrived);
    return arrived;
  }

  // Returns memory that is kept between calls. Both streams touch it, and so memory that is
  // allocated for each call would be handed out anew for as long as the host runs ahead.
  Tensor named_buffer(Stream& compute, ContextBufferKey key, const Shape& shape, DType dtype);

 private:
  Stream& stream_;
  const bool overlap_;
  std::map<std::pair<ContextBufferKey, DType>, Tensor> buffers_;
};

}  // namespace mtrain::parallel
