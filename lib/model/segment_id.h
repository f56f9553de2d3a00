// Which segment of the model is meant: it is chosen by kind and layer. Its name is for people, and
// seeds its dropout.
#pragma once
#include <cstdint>
#include <string>

namespace mtrain::model {

enum class SegmentKind : uint8_t {
  embedding,
  attention,
  mlp,
  head,       // final norm, output layer and loss
  recompute,  // in backward, the forward of a whole layer once more
  handoff,    // the end of a stage without a head: makes what the next stage takes
};

struct SegmentId {
  SegmentKind kind;
  int64_t layer = -1;  // of the model, from 0; -1: the segment lies outside the layers
  bool operator==(const SegmentId&) const = default;
};
std::string segment_name(const SegmentId& id);  // "layers.3.attention", "embedding"

}  // namespace mtrain::model
