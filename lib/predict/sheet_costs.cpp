#include "predict/sheet_costs.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "observe/launch_letters.h"
#include "predict/launch_class.h"

namespace mtrain::predict {

using device::StreamKind;

namespace {

// By how much communication slows down computations that share the device's memory with it.
constexpr double kSlowdown = 0.08;

}  // namespace

SheetCosts::SheetCosts(const plan::Cluster& cluster, const StackConstants& constants,
                       int64_t threads)
    : cluster_(cluster), constants_(constants), threads_(threads) {
  MT_CHECK(cluster_.memory_bytes_per_s > 0 && cluster_.bf16_flops > 0, "a cluster without rates");
}

double SheetCosts::compute(const LaunchWork& w) const {
  const StackConstants& c = constants_;
  const LaunchClass kind = class_of(w);
  const double memory = (w.read + w.written) / cluster_.memory_bytes_per_s /
                        (kind == LaunchClass::conversion ? c.conversion : c.memory);
  if (w.flops == 0) return memory;
  const double half = cluster_.peak_flops(w.dtype, threads_);
  double rate = 0;
  switch (kind) {
    case LaunchClass::gemm8:
      // A device without 8-bit GEMMs computes them in 16 bits.
      rate = cluster_.fp8_flops > 0 ? cluster_.fp8_flops * c.gemm8 : half * c.gemm;
      break;
    case LaunchClass::attention: rate = half * c.attention; break;
    default: rate = half * c.gemm;
  }
  if (kind == LaunchClass::attention) return std::max(w.flops / rate, memory);
  if (observe::letter_of(w.name) == 'e') rate *= c.experts;
  return std::max(w.flops / rate + c.traffic * memory, memory);
}

double SheetCosts::communication(const LaunchWork& w, const plan::GroupLink& link) const {
  const StackConstants& c = constants_;
  double efficiency = c.tp_link;
  switch (w.stream.kind) {
    case StreamKind::dp_grad:
    case StreamKind::dp_param:
    case StreamKind::pp:
    case StreamKind::pp_recv:
    case StreamKind::pp_send: efficiency = c.dp_link; break;
    default: break;
  }
  const double latency =
      link.link.latency_s * std::ceil(std::log2(double(std::max<int64_t>(link.ranks, 2))));
  const double own = link.link.bytes_per_s * efficiency;
  if (link.in_domain()) return latency + w.wire_bytes / own;
  const double domain = cluster_.domain.bytes_per_s * efficiency;
  if (w.name.starts_with("all_to_all")) {
    // Parts for ranks of the same domain do not leave it.
    const double inside =
        double(link.per_domain - 1) / double(std::max<int64_t>(link.ranks - 1, 1));
    return latency + std::max(w.wire_bytes * (1 - inside) / own, w.wire_bytes * inside / domain);
  }
  const bool shares = w.name.starts_with("all_reduce") || w.name.starts_with("all_gather") ||
                      w.name.starts_with("reduce_scatter") || w.name.starts_with("broadcast");
  const double rate = shares ? std::min(domain, own * double(link.per_domain)) : own;
  return latency + w.wire_bytes / rate;
}

LaunchCost SheetCosts::cost(const LaunchWork& w, const plan::GroupLink* link) const {
  // Streams that communicate also copy and cast.
  const bool sends = communicates(w.stream.kind) && link;
  return {.seconds = sends ? communication(w, *link) : compute(w)};
}

double SheetCosts::slowdown(StreamKind kind) const {
  switch (kind) {
    case StreamKind::control:
    case StreamKind::ep_counts: return 0;  // a few numbers
    default: return kSlowdown;
  }
}

}  // namespace mtrain::predict
