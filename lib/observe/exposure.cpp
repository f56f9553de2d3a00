#include "observe/exposure.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/strings.h"

namespace mtrain {

namespace {
constexpr std::string_view kCompute = "compute", kCopy = "copy";
}

Communication& Communication::operator+=(const Communication& o) {
  busy_ns += o.busy_ns;
  exposed_ns += o.exposed_ns;
  bytes += o.bytes;
  return *this;
}

void Exposure::record(const Timing& t) {
  if (t.stream == kCompute || t.stream == kCopy) return;
  std::lock_guard lock(mutex_);
  since_[t.stream] += {.busy_ns = t.end_ns - t.begin_ns, .bytes = t.wire_bytes};
}

void Exposure::waited(const Waiting& w) {
  if (w.stream != kCompute || w.waits_for == kCompute || w.waits_for == kCopy) return;
  std::lock_guard lock(mutex_);
  since_[w.waits_for] += {.exposed_ns = w.end_ns - w.begin_ns};
}

Exposure::ByStream Exposure::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(since_, {});
}

std::string exposure_text(const Exposure::ByStream& communication) {
  std::string text;
  for (const auto& [stream, c] : communication) {
    const double busy = double(c.busy_ns) * 1e-9, exposed = double(c.exposed_ns) * 1e-9;
    text += fmt::format("{}{}: {:.3g} s at work, {:.3g} s exposed ({:.0f} %), {}",
                        text.empty() ? "" : "; ", stream, busy, exposed,
                        busy > 0 ? 100 * exposed / busy : 0.0, human_bytes(double(c.bytes)));
  }
  return text;
}

}  // namespace mtrain
