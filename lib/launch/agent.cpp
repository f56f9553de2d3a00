#include "launch/agent.h"

#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/usable_cores.h"
#include "launch/attempt.h"
#include "launch/console.h"
#include "launch/end_signals.h"
#include "launch/host_gpus.h"
#include "launch/job_folder.h"
#include "launch/job_store.h"
#include "launch/signals.h"
#include "launch/watchdog.h"

namespace mtrain::launch {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr auto kRanWell = 60s;  // after this time a start counts as successful
// How long the end waits while nobody reads the output: after a normal end, after a signal.
constexpr auto kPatience = 5s, kPatienceAfterSignal = 1s;

// Returns the number of the first folder attempt_<number>, at or after `from`, that has no output
// of these ranks yet, and makes their folders in it: output of earlier launches is kept.
int make_log_folders(const fs::path& log_dir, int from, int first_rank, int ranks) {
  for (int number = from;; ++number) {
    const fs::path attempt = log_dir / fmt::format("attempt_{}", number);
    const auto folder = [&](int i) { return attempt / fmt::format("rank_{}", first_rank + i); };
    std::error_code error;
    bool taken = false;
    for (int i = 0; i < ranks && !taken; ++i) taken = fs::exists(folder(i), error);
    if (taken) continue;
    fs::create_directories(attempt, error);
    // If two launches start at the same time, only one of them makes the first rank's folder.
    if (!error && !fs::create_directory(folder(0), error) && !error) continue;
    for (int i = 1; i < ranks && !error; ++i) fs::create_directory(folder(i), error);
    if (error)
      throw UserError(fmt::format("cannot make {}: {}", attempt.string(), error.message()),
                      "give a folder that can be written with --log_dir");
    return number;
  }
}

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
  for (int number = 0, failures = 0, log_number = -1;; ++number) {
    if (!o.log_dir.empty() && (o.redirects.any() || o.tee.any())) {
      log_number =
          make_log_folders(o.log_dir, log_number + 1, o.node * o.ranks_per_node, o.ranks_per_node);
      console.say(fmt::format("mtrain-launch: the ranks' output is in {}",
                              (o.log_dir / fmt::format("attempt_{}", log_number)).string()));
    }
    const auto began = Clock::now();
    Attempt attempt(o, job, number, log_number);
    if (attempt.run()) return 0;
    const int signal = job.ends.signal();
    if (attempt.killed_by_user() || attempt.ended_by_user()) {
      const std::string why = attempt.killed_by_user()
                                  ? "second signal: the ranks were killed"
                                  : fmt::format("{} has ended the ranks", name_of(signal));
      console.say("mtrain-launch: " + why);
      JobFailure failure = attempt.failure(128 + signal, {}, why);
      failure.interrupted = true;
      if (o.on_failure) o.on_failure(failure);
      tell_unsaved();
      return 128 + signal;
    }
    JobFailure failure = attempt.report();
    // Input that worked at the first start is not a user's mistake at a later one.
    if (number > 0) failure.exit_code = 1;
    const int code = failure.exit_code;
    if (o.on_failure) o.on_failure(failure);
    const bool restarts = code != 2 && !signal && number < o.max_restarts;
    if (!restarts) {
      if (code != 2) tell_unsaved();
      return code;
    }
    failures = Clock::now() - began >= kRanWell ? 1 : failures + 1;
    const auto delay = restart_delay(failures);
    const double seconds = std::chrono::duration<double>(delay).count();
    console.say(fmt::format("mtrain-launch: restarting all ranks ({} of {}) {}", number + 1,
                            o.max_restarts,
                            seconds > 0 ? fmt::format("in {:.3g} s", seconds) : "now"));
    if (!wait_to_restart(delay, job)) {
      console.say("mtrain-launch: the job got a signal to end: the ranks are not restarted");
      tell_unsaved();
      return code;
    }
  }
}

}  // namespace

int run_agent(const AgentOptions& options) {
  remove_stale_job_folders();
  Signals signals;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string id = fmt::format("{}-{}-{}", host_name(), getpid(), now.count());
  const Watchdog watchdog(id);  // before the store and the console, which have threads
  JobStore store(options);
  Console console;
  JobState job{
      .id = id, .store = store, .signals = signals, .watchdog = watchdog, .console = console};
  const int code = run_starts(options, job);
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
