// Identifies a stream of a rank by its purpose. The text name is for logs and traces.
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace mtrain::device {

// The kinds are in alphabetical order, since reports list streams in this order. A new kind also
// needs a name in stream_id.cpp; every kind but `compute` and `copy` counts as communication
// (observe/exposure.h).
enum class StreamKind : uint8_t {
  compute,    // computations; on the CPU its worker has the device's thread pool
  control,    // messages of a few numbers that the host waits for
  copy,       // copies between host and device
  cp,         // context parallelism
  dp_grad,    // data parallelism: reductions of gradients
  dp_param,   // data parallelism: gathers of parameters
  ep,         // expert parallelism
  ep_counts,  // the numbers of rows that travel over ep, concurrent with rows in flight
  pp,         // collectives of a pipeline's ranks
  pp_recv,    // messages from one other rank of the pipeline
  pp_send,    // messages to one other rank of the pipeline
  tp,         // tensor parallelism
};
std::string_view stream_kind_name(StreamKind kind);  // "compute", "dp_grad", ...

struct StreamId {
  // Converts implicitly: a kind without a peer has one stream per rank.
  constexpr StreamId(StreamKind stream_kind, int64_t peer_rank = -1)
      : kind(stream_kind), peer(peer_rank) {}
  auto operator<=>(const StreamId&) const = default;  // NOLINT(modernize-use-nullptr): false alarm

  StreamKind kind;
  int64_t peer;  // for pp_recv and pp_send the other rank's place in the pipeline; else -1
};
std::string stream_name(StreamId id);  // "compute", "pp_send_3", as traces and messages show it

}  // namespace mtrain::device
