#include "model/segment_id.h"

#include <string_view>

#include <fmt/format.h>

#include "base/error.h"

namespace mtrain::model {

namespace {
std::string_view kind_name(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::embedding: return "embedding";
    case SegmentKind::attention: return "attention";
    case SegmentKind::route: return "route";
    case SegmentKind::dispatch: return "dispatch";
    case SegmentKind::mlp: return "mlp";
    case SegmentKind::combine: return "combine";
    case SegmentKind::merge: return "merge";
    case SegmentKind::head: return "head";
    case SegmentKind::prediction_input: return "prediction_input";
    case SegmentKind::prediction_output: return "prediction_output";
    case SegmentKind::recompute: return "recompute";
    case SegmentKind::handoff: return "handoff";
  }
  throw BugError("an unknown SegmentKind");
}
}  // namespace

std::string segment_name(const SegmentId& id) {
  const std::string_view kind = kind_name(id.kind);
  return id.layer < 0 ? std::string(kind) : fmt::format("layers.{}.{}", id.layer, kind);
}

}  // namespace mtrain::model
