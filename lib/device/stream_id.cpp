#include "device/stream_id.h"

#include <fmt/format.h>

#include "base/error.h"

namespace mtrain::device {

std::string_view stream_kind_name(StreamKind kind) {
  switch (kind) {
    case StreamKind::compute: return "compute";
    case StreamKind::control: return "control";
    case StreamKind::copy: return "copy";
    case StreamKind::cp: return "cp";
    case StreamKind::dp_grad: return "dp_grad";
    case StreamKind::dp_param: return "dp_param";
    case StreamKind::ep: return "ep";
    case StreamKind::ep_counts: return "ep_counts";
    case StreamKind::pp: return "pp";
    case StreamKind::pp_recv: return "pp_recv";
    case StreamKind::pp_send: return "pp_send";
    case StreamKind::tp: return "tp";
  }
  throw BugError("an unknown kind of stream");
}

std::string stream_name(StreamId id) {
  if (id.peer < 0) return std::string(stream_kind_name(id.kind));
  return fmt::format("{}_{}", stream_kind_name(id.kind), id.peer);
}

}  // namespace mtrain::device
