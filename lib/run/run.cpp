#include "run/run.h"

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "base/ignore_sigpipe.h"
#include "base/log.h"
#include "base/pulse.h"
#include "launch/job_token.h"
#include "observe/progress.h"
#include "run/early_end.h"
#include "run/fault_injection.h"
#include "run/open_device.h"
#include "run/rank_pulse.h"
#include "run/run_folder.h"
#include "run/run_lock.h"
#include "run/run_log.h"
#include "run/run_status.h"
#include "run/start_choice.h"
#include "run/start_work.h"
#include "run/training.h"

namespace mtrain::run {

void run_training(const plan::MeetingPlan& meeting, const MakePlan& make_plan,
                  const RunOptions& options) {
  const IgnoreSigpipe pipes;
  const launch::TokenFileGuard token_file;
  const std::shared_ptr<Pulse> pulse = Pulse::of_process(options.job.rank);
  std::optional<observe::ProgressLine> screen;  // on one rank per host until ranks are connected
  if (options.job.rank == 0 || options.job.local_rank == 0) screen.emplace();
  const auto waiting = [&](const std::string& text) {
    screen->activity(text, comm::kWaitInSilence);
  };
  train::HostInterval rendezvous{.begin = std::chrono::steady_clock::now()};
  fail_in_rendezvous(meeting.faults, options.job);
  comm::World world = open_world(
      meeting, options.job,
      token_source(options.job, std::filesystem::path(meeting.folders.run_dir) / ".token"),
      screen ? std::function<void(const std::string&)>(waiting) : nullptr);
  rendezvous.end = std::chrono::steady_clock::now();
  if (screen) screen->idle();
  if (world.rank() != 0) screen.reset();
  // Until here comm.timeout_s is the limit.
  pulse->set_limits(meeting.limits);
  show_activity(*pulse, Doing::starting, 0);
  std::optional<RunLog> log;
  try {
    std::optional<RunLock> lock;
    if (world.rank() == 0) {
      lock.emplace(meeting, options.job, [&](const std::string& text) { screen->activity(text); });
      screen->idle();
    }
    // Other ranks read the folder after rank 0 has the lock: it may have to wait for an earlier
    // attempt.
    ClaimedStart start;
    if (lock) {
      // The log gets all later errors, and the error of a run that cannot continue from its
      // checkpoint. This run writes no line into the folder of another run.
      try {
        start = claim_start(meeting.folders, options.job);
      } catch (const RunError&) {
        const bool own =
            meeting.folders.load == plan::FolderOptions::Load::latest || options.job.restarts > 0;
        try {
          if (own) log.emplace(meeting.folders.run_dir);
        } catch (const Error&) {  // report the damaged checkpoint instead
        }
        throw;
      }
      log.emplace(meeting.folders.run_dir);
    }
    std::optional<RunStatus> status;
    if (lock)
      status.emplace(meeting.folders.run_dir, options.job, *pulse,
                     continues_run(meeting.folders, options.job));
    try {
      StartWork work(world, *pulse, std::chrono::duration<double>(meeting.comm.timeout_s));
      const RunPlan plan = make_plan([&] { work.progress(); });
      work.await_all([&](int64_t others) {
        if (screen) waiting(waits_text(others, world.size()));
      });
      if (screen) screen->idle();
      train_on_rank(plan, options, world,
                    {.pulse = pulse,
                     .rendezvous = rendezvous,
                     .screen = screen ? &*screen : nullptr,
                     .lock = lock ? &*lock : nullptr,
                     .status = status ? &*status : nullptr,
                     .claimed = std::move(start)});
      pulse->at(PulsePhase::none, 0);  // a program that has trained may do other things
    } catch (const std::exception& e) {
      if (status) status->failed(e);  // while the run has the lock
      throw;
    }
  } catch (const std::exception& e) {
    world.abort(e.what());  // peers then do not wait for this rank
    if (log) log::record(fmt::format("error: {}\n", e.what()));
    throw;
  }
}

void run_training(const RunPlan& plan, const RunOptions& options) {
  run_training(
      plan::meeting_plan(plan), [&](const auto&) { return plan; }, options);
}

}  // namespace mtrain::run
