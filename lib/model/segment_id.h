// Names a segment of the model by kind and layer. The name in words is for people, and is part of
// the key of the segment's dropout.
#pragma once
#include <cstdint>
#include <string>

namespace mtrain::model {

enum class SegmentKind : uint8_t {
  embedding,
  attention,
  // A layer with experts has these around its mlp; kernels/permute.h has the words.
  route,     // chooses each token's experts
  dispatch,  // communication: brings tokens to their experts
  mlp,
  combine,            // communication: brings the experts' results back to their tokens
  merge,              // adds what all tokens meet: the shared expert
  head,               // final norm, output layer and loss
  prediction_input,   // of a layer of multi-token prediction (model/token_prediction.h)
  prediction_output,  // its norm, output layer and loss
  recompute,          // the second forward of a whole layer, in backward
  handoff,            // the end of a stage without a head: makes the tensor for the next stage
};

struct SegmentId {
  SegmentKind kind;
  int64_t layer = -1;  // layer of the model, from 0; -1: the segment lies outside the layers
  bool operator==(const SegmentId&) const = default;
};
// Whether the segment only enqueues communication, which overlaps with what other passes compute.
constexpr bool communicates(SegmentKind kind) {
  return kind == SegmentKind::dispatch || kind == SegmentKind::combine;
}
std::string segment_name(const SegmentId& id);  // "layers.3.attention", "embedding"

}  // namespace mtrain::model
