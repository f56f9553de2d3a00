#include "launch/agent.h"

#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "base/usable_cores.h"
#include "launch/attempt.h"
#include "launch/console.h"
#include "launch/end_signals.h"
#include "launch/host_gpus.h"
#include "launch/job_folder.h"
#include "launch/job_observer.h"
#include "launch/job_store.h"
#include "launch/log_folders.h"
#include "launch/numa_binding.h"
#include "launch/rounds_together.h"
#include "launch/signals.h"
#include "launch/watchdog.h"

namespace mtrain::launch {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kRanWell = 60s;  // after this time a start counts as successful
// How long the end waits while nobody reads the output: after a normal end, after a signal.
constexpr auto kPatience = 5s, kPatienceAfterSignal = 1s;

}  // namespace

int ranks_per_node(const std::string& text) {
  if (text == "cpu") return usable_cores();
  const int gpus = int(visible_gpus().size());
  if (text == "gpu") {
    if (gpus == 0)
      throw UserError("--nproc_per_node=gpu: this host has no visible GPU", "use cpu or a number");
    return gpus;
  }
  if (text == "auto") return gpus ? gpus : usable_cores();
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 1 || n > 4096)
    throw UserError(fmt::format("--nproc_per_node={}: not a number of ranks", text),
                    "use a number, auto, gpu or cpu");
  return n;
}

std::chrono::milliseconds restart_delay(int failures) {
  constexpr int kMaxDoublings = 5;
  if (failures <= 1) return 0s;
  return std::min<std::chrono::milliseconds>(1s * (1 << std::min(failures - 2, kMaxDoublings)),
                                             30s);
}

namespace {

// Waits before the next start. Returns false if a signal ends the job during the wait.
bool wait_to_restart(std::chrono::milliseconds delay, JobState& job) {
  const auto until = Clock::now() + delay;
  while (!job.ends.signal()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) return true;
    pollfd p{job.signals.fd(), POLLIN, 0};
    poll(&p, 1, int(left.count()));
    while (const int signal = job.signals.next())
      if (signal != SIGWINCH) job.ends.add(signal, Clock::now(), job.signals.from_keyboard());
  }
  return false;
}

int run_starts(const AgentOptions& o, JobState& job) {
  Console& console = job.console;
  const auto tell_unsaved = [&] {
    if (o.unsaved) console.say("mtrain-launch: " + o.unsaved());
  };
  const auto tell_failure = [&](const JobFailure& failure) {
    if (o.on_failure) o.on_failure(failure);
    for (JobObserver* observer : o.observers) observer->failed(failure);
  };
  LogFolders logs(o, console);
  RoundPlace place{.first_rank = o.node * o.ranks_per_node,
                   .ranks = o.ranks_per_node,
                   .world = o.ranks_per_node * o.nodes,
                   .group_rank = o.node,
                   .groups = o.nodes};
  for (int number = 0, failures = 0;; ++number) {
    const auto began = Clock::now();
    place.restarts_left = std::max(0, o.max_restarts - number);
    Attempt attempt(o, job, place, number, logs.make(place.first_rank, place.ranks));
    if (attempt.run()) return 0;
    const int signal = job.ends.signal();
    const bool interrupted = attempt.killed_by_user() || attempt.ended_by_user();
    const RoundCause cause = interrupted ? attempt.interruption() : attempt.cause();
    if (!cause.text.empty()) console.say(cause.text);
    JobFailure failure = failure_of(cause, job.id);
    if (interrupted) {
      tell_failure(failure);
      tell_unsaved();
      return failure.exit_code;
    }
    // Input that worked at the first start is not a user's mistake at a later one.
    if (number > 0) failure.exit_code = 1;
    const int code = failure.exit_code;
    failure.restarts = code != 2 && !signal && number < o.max_restarts;
    tell_failure(failure);
    if (!failure.restarts) {
      if (code != 2) tell_unsaved();
      return code;
    }
    failures = Clock::now() - began >= kRanWell ? 1 : failures + 1;
    const auto delay = restart_delay(failures);
    const double seconds = std::chrono::duration<double>(delay).count();
    console.say(fmt::format("mtrain-launch: restarting all ranks ({} of {}) {}", number + 1,
                            o.max_restarts,
                            seconds > 0 ? fmt::format("in {:.3g} s", seconds) : "now"));
    for (JobObserver* observer : o.observers) observer->restarting(number + 1, seconds);
    if (!wait_to_restart(delay, job)) {
      console.say("mtrain-launch: the job got a signal to end: the ranks are not restarted");
      failure.restarts = false;
      if (o.on_failure) o.on_failure(failure);
      tell_unsaved();
      return code;
    }
  }
}

// Throws before any rank starts if the CPUs do not suffice for a number of ranks that this host may
// have.
void check_binding(const AgentOptions& o) {
  if (o.numa_binding == NumaBinding::none) return;
  const HostCpus cpus = read_host_cpus(allowed_cpus(), visible_devices_of_ranks(o));
  const int fewest = o.is_elastic() ? 1 : o.ranks_per_node;
  for (int ranks = o.ranks_per_node; ranks >= fewest; --ranks)
    cpus_of_ranks(cpus, o.numa_binding, ranks);
}

}  // namespace

std::optional<std::string> visible_devices_of_ranks(const AgentOptions& o) {
  constexpr const char* kName = "CUDA_VISIBLE_DEVICES";
  if (!o.ranks_use_gpus) return "";
  if (const char* own = std::getenv(kName)) return own;  // overrides the recipe's
  const auto of_recipe = o.environment.find(kName);
  return of_recipe == o.environment.end() ? std::nullopt : std::optional(of_recipe->second);
}

int run_agent(const AgentOptions& options) {
  check_binding(options);
  remove_stale_job_folders();
  Signals signals;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string id = fmt::format("{}-{}-{}", host_name(), getpid(), now.count());
  const Watchdog watchdog(id);  // before the store and the console, which have threads
  JobStore store(options);
  Console console;
  for (JobObserver* observer : options.observers) observer->begin(id);
  JobState job{
      .id = id, .store = store, .signals = signals, .watchdog = watchdog, .console = console};
  const int code =
      options.acts_together() ? run_rounds_together(options, job) : run_starts(options, job);
  for (JobObserver* observer : options.observers) observer->ended(code);
  watchdog.dismiss();
  const auto patience = job.ends.signal() ? kPatienceAfterSignal : kPatience;
  const auto asked_to_end = [&] {
    const int signal = signals.next();
    return signal != 0 && signal != SIGWINCH;
  };
  console.out().finish(patience, asked_to_end);
  console.err().finish(patience, asked_to_end);
  return code;
}

}  // namespace mtrain::launch
