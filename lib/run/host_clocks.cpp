#include "run/host_clocks.h"

#include <cmath>
#include <cstdlib>

#include <fmt/core.h>

#include "base/file.h"
#include "launch/host_checks.h"

namespace mtrain::run {

namespace {

template <class Clock>
std::chrono::duration<double> time_of() {
  return Clock::now().time_since_epoch();
}

}  // namespace

std::vector<std::string> clock_differences(const comm::HostCollectives& control,
                                           const launch::Job& job) {
  if (job.size == job.local_size) return {};  // a single host
  control.any(false);                         // all of them now read their clocks
  const double now = time_of<std::chrono::system_clock>().count();
  const bool first = job.local_rank == 0;
  const auto texts =
      control.texts_on_first(first ? fmt::format("{:.6f} {}", now, host_name()) : "");
  std::vector<launch::HostClock> clocks;
  for (const std::string& text : texts) {
    const size_t blank = text.find(' ');
    if (blank != std::string::npos)
      clocks.push_back({text.substr(blank + 1), std::strtod(text.c_str(), nullptr)});
  }
  std::vector<std::string> lines;
  for (const launch::HostCheck& c : launch::compare_clocks(clocks))
    if (c.verdict != launch::HostCheck::Verdict::good)
      lines.push_back(fmt::format("warning: the {} is {}: {}", c.name, c.value, c.hint));
  return lines;
}

std::string ClockWatch::look() {
  return look(time_of<std::chrono::system_clock>(), time_of<std::chrono::steady_clock>());
}

std::string ClockWatch::look(std::chrono::duration<double> clock,
                             std::chrono::duration<double> steady) {
  // A time service may change a clock by less, and need not be reported.
  constexpr double kLeast = 5;
  const double ahead = (clock - steady).count();
  const double by = ahead - ahead_s_.value_or(ahead);
  ahead_s_ = ahead;
  if (std::fabs(by) < kLeast) return "";
  return fmt::format(
      "warning: the clock of {} was set {} by {:.0f} s: times in the run's files jump, and the "
      "training is not affected",
      host_name(), by < 0 ? "back" : "forward", std::fabs(by));
}

}  // namespace mtrain::run
