#include "observe/exposure.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/strings.h"

namespace mtrain::observe {

namespace {
bool communicates(device::StreamId stream) {
  return stream.kind != device::StreamKind::compute && stream.kind != device::StreamKind::copy;
}

// The messages between stages count together with a pipeline's collectives.
device::StreamKind counted_as(device::StreamId stream) {
  const bool message =
      stream.kind == device::StreamKind::pp_send || stream.kind == device::StreamKind::pp_recv;
  return message ? device::StreamKind::pp : stream.kind;
}
}  // namespace

Communication& Communication::operator+=(const Communication& o) {
  busy_ns += o.busy_ns;
  exposed_ns += o.exposed_ns;
  bytes += o.bytes;
  return *this;
}

void Exposure::record(const device::Timing& t) {
  if (!communicates(t.stream)) return;
  std::lock_guard lock(mutex_);
  since_[counted_as(t.stream)] +=
      {.busy_ns = t.end_ns - t.begin_ns - t.idle_ns, .bytes = t.wire_bytes};
  if (t.idle_ns > 0) idle_[t.stream].push_back({t.begin_ns, t.begin_ns + t.idle_ns});
}

void Exposure::waited(const device::Waiting& w) {
  if (w.stream.kind != device::StreamKind::compute || !communicates(w.waits_for)) return;
  std::lock_guard lock(mutex_);
  int64_t exposed = w.end_ns - w.begin_ns;
  if (const auto at = idle_.find(w.waits_for); at != idle_.end()) {
    // The waits of the compute stream come in the order of time, so that idle times that ended
    // before this one are not needed any more.
    std::erase_if(at->second, [&](const Idle& i) { return i.end_ns <= w.begin_ns; });
    for (const Idle& i : at->second)
      exposed -=
          std::max<int64_t>(0, std::min(w.end_ns, i.end_ns) - std::max(w.begin_ns, i.begin_ns));
  }
  since_[counted_as(w.waits_for)] += {.exposed_ns = exposed};
}

Exposure::ByKind Exposure::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(since_, {});
}

std::string exposure_text(const Exposure::ByKind& communication) {
  std::string text;
  for (const auto& [kind, c] : communication) {
    const double busy = double(c.busy_ns) * 1e-9, exposed = double(c.exposed_ns) * 1e-9;
    text += fmt::format("{}{}: {:.3g} s at work, {:.3g} s exposed ({:.0f} %), {}",
                        text.empty() ? "" : "; ", stream_kind_name(kind), busy, exposed,
                        busy > 0 ? 100 * exposed / busy : 0.0, human_bytes(double(c.bytes)));
  }
  return text;
}

}  // namespace mtrain::observe
