#include "launch/rank_pulses.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"

namespace mtrain::launch {

namespace {

using namespace std::chrono_literals;

// If this process was stopped itself, as with all others of a suspended job, only this much counts.
constexpr std::chrono::duration<double> kLongestGap = 1s;
constexpr int kLaunchesOfCulprit = 20;

// Returns whether the kernel reports the process as stopped, by a signal or by a debugger.
bool is_stopped(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  // The name of the program, in parentheses, may contain anything.
  const size_t name = line.rfind(')');
  return name != std::string::npos && name + 2 < line.size() &&
         (line[name + 2] == 'T' || line[name + 2] == 't');
}

// Returns whether a thread of the process waits for a disk or a file server: the kernel reports an
// uninterruptible sleep.
bool waits_for_files(int64_t pid) {
  std::error_code error;
  const std::filesystem::path threads = fmt::format("/proc/{}/task", pid);
  for (const auto& thread : std::filesystem::directory_iterator(threads, error)) {
    std::ifstream file(thread.path() / "stat");
    std::string line;
    std::getline(file, line);
    const size_t name = line.rfind(')');
    if (name != std::string::npos && name + 2 < line.size() && line[name + 2] == 'D') return true;
  }
  return false;
}

const char* setting_of(PulsePhase phase) {
  switch (phase) {
    case PulsePhase::none:
    case PulsePhase::start: return "launch.start_timeout_s";
    case PulsePhase::step:
    case PulsePhase::evaluation: return "launch.step_timeout_s";
    case PulsePhase::save:
    case PulsePhase::end: return "launch.save_timeout_s";
  }
  throw BugError("a phase of a rank");
}

// In a step only its end is progress: a rank may launch work in a loop that never ends, and an
// earlier step may be saved meanwhile.
bool has_progressed(const PulseGlance& before, const PulseGlance& now) {
  const bool work_counts = now.phase != PulsePhase::step || now.in_slow_step;
  return now.progress != before.progress || (work_counts && now.work != before.work);
}

}  // namespace

// A rank as the report sees it.
struct RankPulses::Seen {
  PulseState state;
  double quiet_s = 0;
  bool stopped = false, waits_for_files = false;

  bool waits_for_others() const {
    const PulseState::Launch* at = state.current();
    return at && !at->done && state.stream_of(*at).communicates;
  }
};

// Returns the ranks that the others wait for: those that are stopped, else those that have made
// fewer steps, else those that do not communicate. Empty: all ranks are alike.
std::vector<const RankPulses::Seen*> RankPulses::late_ones(const std::vector<Seen>& all) {
  const auto those = [&](auto&& which) {
    std::vector<const Seen*> found;
    for (const Seen& s : all)
      if (which(s)) found.push_back(&s);
    return found.size() < all.size() || all.size() == 1 ? found : std::vector<const Seen*>();
  };
  std::vector<const Seen*> late = those([](const Seen& s) { return s.stopped; });
  if (!late.empty()) return late;
  // The rank of another host may be the late one.
  if (all.size() == 1) return those([](const Seen& s) { return !s.waits_for_others(); });
  int64_t first = all.front().state.step;
  for (const Seen& s : all) first = std::min(first, s.state.step);
  late = those([&](const Seen& s) { return s.state.step == first; });
  return late.empty() ? those([](const Seen& s) { return !s.waits_for_others(); }) : late;
}

int RankPulses::add(int rank) {
  ranks_.push_back({.rank = rank, .pulse = Pulse::make(rank)});
  errno = ranks_.back().pulse->error();
  return ranks_.back().pulse->descriptor();
}

void RankPulses::started(int rank, pid_t pid) {
  for (Rank& r : ranks_)
    if (r.rank == rank) r.pid = pid, r.alive = true;
}

void RankPulses::ended(int rank) {
  for (Rank& r : ranks_)
    if (r.rank == rank) r.alive = false;
}

std::vector<std::shared_ptr<const Pulse>> RankPulses::pages() const {
  std::vector<std::shared_ptr<const Pulse>> all;
  for (const Rank& r : ranks_) all.push_back(r.pulse);
  return all;
}

std::optional<Hang> RankPulses::look(Clock::time_point now) {
  const std::chrono::duration<double> gap = last_ ? now - *last_ : Clock::duration(0);
  last_ = now;
  bool hangs = false;
  for (Rank& r : ranks_) {
    if (!r.alive) continue;
    const PulseGlance seen = r.pulse->glance();
    const bool progressed = has_progressed(r.seen, seen);
    r.quiet = progressed ? 0s : r.quiet + std::min(gap, kLongestGap);
    if (progressed) r.stalled = 0s;
    r.seen = seen;
    hangs = hangs || (seen.limit_s > 0 && r.quiet.count() > seen.limit_s);
  }
  if (!hangs || forgive_stall()) return std::nullopt;
  return describe();
}

bool RankPulses::forgive_stall() {
  const std::vector<Seen> all = look_at_all();
  const std::vector<const Seen*> late = late_ones(all);
  const bool stall = !late.empty() && std::ranges::all_of(late, [](const Seen* s) {
    return !s->stopped && s->waits_for_files;
  });
  if (!stall) return false;
  for (const Rank& r : ranks_)
    if (r.alive && r.stalled + r.quiet > kLongestStall) return false;
  for (Rank& r : ranks_) r.stalled += std::exchange(r.quiet, 0s);
  return true;
}

std::vector<RankPulses::Seen> RankPulses::look_at_all() const {
  std::vector<Seen> all;
  for (const Rank& r : ranks_) {
    if (!r.alive) continue;
    Seen seen{.state = r.pulse->state(), .quiet_s = (r.stalled + r.quiet).count()};
    // The rank may be a program that the started one has started.
    if (seen.state.pid == 0) seen.state.pid = r.pid;
    seen.stopped = is_stopped(seen.state.pid) || is_stopped(r.pid);
    seen.waits_for_files = waits_for_files(seen.state.pid);
    all.push_back(std::move(seen));
  }
  return all;
}

Hang RankPulses::describe() const {
  const std::vector<Seen> all = look_at_all();
  Hang hang;
  const std::vector<const Seen*> late = late_ones(all);
  // The limit that is exceeded may be that of a rank that waits.
  const auto over = std::ranges::max_element(all, {}, [](const Seen& s) {
    return s.state.limit_s > 0 ? s.quiet_s - s.state.limit_s : -1e30;
  });
  const Seen& shown = late.empty() ? *over : *late.front();
  std::vector<int> names;
  if (late.empty())
    for (const Seen& s : all) names.push_back(s.state.rank);
  else
    for (const Seen* s : late) names.push_back(s->state.rank);
  hang.message =
      fmt::format("{} {} on {} {}: {}, without progress for {:.1f} s",
                  names.size() > 1 ? "ranks" : "rank", fmt::join(names, ", "), host_name(),
                  shown.stopped      ? names.size() > 1 ? "are stopped" : "is stopped"
                  : names.size() > 1 ? "hang"
                                     : "hangs",
                  phase_text(shown.state), shown.quiet_s);
  hang.hint = fmt::format("{} sets how long a rank may be without progress, here {:.3g} s",
                          setting_of(over->state.phase), over->state.limit_s);
  if (shown.stopped)
    hang.hint = "a signal (SIGSTOP), a debugger or the batch system has stopped it; " + hang.hint;
  if (shown.waits_for_files)
    hang.hint = "it waits for a disk or a file server (state D); " + hang.hint;
  if (late.empty())
    hang.hint = (all.size() > 1 ? "no rank of this host is later than the others; "
                                : "it waits for ranks of other hosts; ") +
                hang.hint;
  if (!late.empty()) {
    hang.culprit = late.front()->state.rank;
    hang.launches = launch_lines(late.front()->state, kLaunchesOfCulprit);
  }
  for (const Seen& s : all)
    hang.ranks.push_back(fmt::format("rank {} on {}{}: {} for {:.1f} s, at {}; {} launches",
                                     s.state.rank, host_name(), s.stopped ? ", stopped" : "",
                                     phase_text(s.state), s.quiet_s, current_text(s.state),
                                     s.state.launches));
  return hang;
}

std::optional<int64_t> RankPulses::new_spike() {
  if (ranks_.empty()) return std::nullopt;
  const int64_t step = ranks_.front().pulse->glance().spike_step;
  if (step == std::exchange(spike_, step) || step == 0) return std::nullopt;
  return step;
}

std::optional<int> RankPulses::new_straggler() {
  if (ranks_.empty()) return std::nullopt;
  const PulseGlance seen = ranks_.front().pulse->glance();
  const bool known = seen.straggler_step == std::exchange(straggler_, seen.straggler_step);
  if (known || seen.straggler < 0) return std::nullopt;
  return seen.straggler;
}

std::vector<int> RankPulses::stopped() const {
  std::vector<int> ranks;
  for (const Rank& r : ranks_) {
    const int64_t pid = r.pulse->state().pid;
    if (r.alive && (is_stopped(r.pid) || (pid > 0 && is_stopped(pid)))) ranks.push_back(r.rank);
  }
  return ranks;
}

PulseState RankPulses::state(int rank) const {
  for (const Rank& r : ranks_)
    if (r.rank == rank) return r.pulse->state();
  return {};
}

int64_t RankPulses::last_step() const {
  int64_t last = 0;
  for (const Rank& r : ranks_) last = std::max(last, r.pulse->glance().done_step);
  return last;
}

}  // namespace mtrain::launch
