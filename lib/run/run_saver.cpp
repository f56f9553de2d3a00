#include "run/run_saver.h"

#include <algorithm>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "observe/progress.h"
#include "run/async_choice.h"
#include "run/early_end.h"
#include "run/fault_injection.h"
#include "run/reporter.h"

namespace mtrain::run {

class RunSaver::Stall {
 public:
  explicit Stall(RunSaver& saver) : saver_(saver) { ++saver_.stalls_; }
  ~Stall() {
    if (--saver_.stalls_ == 0 && saver_.reporter_) saver_.reporter_->stalled(Clock::now() - began_);
  }
  Stall(const Stall&) = delete;
  Stall& operator=(const Stall&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  RunSaver& saver_;
  const Clock::time_point began_ = Clock::now();
};

RunSaver::RunSaver(Parts parts)
    : p_(std::move(parts)),
      options_(p_.trainer.plan().checkpoint),
      root_(p_.trainer.plan().folders.checkpoint_dir),
      failures_(options_.stop_on_error) {}

std::string RunSaver::choose() {
  const checkpoint::CheckpointParts parts = p_.trainer.checkpoint_parts();
  Device& device = p_.trainer.device();
  // A device without memory of its own takes the host's.
  const int64_t comes = device.memory_bytes() > 0
                            ? 0
                            : std::max<int64_t>(0, int64_t(p_.trainer.plan().fullest().total()) -
                                                       device.allocator().reserved().current);
  const AsyncChoice choice =
      choose_async(p_.trainer.control(), options_, checkpoint::snapshot_bytes(parts), comes);
  if (!choice.on) return choice.text;
  // A host may refuse memory that looked free.
  std::string error;
  try {
    background_.emplace(device, parts, p_.trainer.world().mailbox());
  } catch (const RunError& e) {
    error = fmt::format("{}: {}", host_name(), e.message());
  }
  for (const std::string& of_rank : p_.trainer.control().texts(error)) {
    if (of_rank.empty()) continue;
    if (options_.async == plan::CheckpointOptions::Async::on)
      throw RunError("checkpoint.async: " + of_rank, "set checkpoint.async: auto or false");
    background_.reset();
    return fmt::format("training waits: {} (checkpoint.async: auto)", of_rank);
  }
  return choice.text;
}

void RunSaver::save(const Request& request) {
  const Stall stall(*this);
  if (writing() && !may_begin(request)) return;
  const int64_t step = p_.trainer.steps_done();
  p_.early_end.at(Doing::save, step);
  if (p_.before_save) p_.before_save();
  const auto& evaluation = request.evaluation;
  written_ = {.step = step,
              .last = request.last,
              .loss = evaluation ? std::optional(evaluation->loss) : std::nullopt,
              .began = std::chrono::steady_clock::now()};
  lost_ = {};
  RunSave of_run{
      .on_commit = moments(step),
      .exceeds_bytes = request.exceeds_bytes,
      .data = data_,
      .evaluation = evaluation.value_or(ValidationResult{.samples = request.validation_samples}),
      .job = {.id = p_.job.id, .attempt = p_.job.restarts},
      .added = request.added};
  if (background_) {
    begin_save(p_.trainer, root_, of_run, *background_);
    if (request.last) finish_write();
    return;
  }
  if (p_.screen) of_run.show = [this](const std::string& activity) { show(activity); };
  try {
    succeeded(save_run(p_.trainer, root_, of_run));
  } catch (const checkpoint::SaveError& e) {  // on all ranks
    failed(e);
  }
}

bool RunSaver::may_begin(const Request& request) {
  if (p_.trainer.control().any(ended())) {
    end_write();
    return true;
  }
  if (request.last || request.best || !options_.skip_when_busy) {
    finish_write();
    return true;
  }
  note(
      fmt::format("step {} is not saved: step {} is still being written (checkpoint.when_busy: "
                  "skip)",
                  p_.trainer.steps_done(), written_.step));
  if (reporter_) reporter_->save_skipped();
  return false;
}

void RunSaver::finish_write() {
  if (!writing()) return;
  const Stall stall(*this);
  p_.early_end.at(Doing::save, written_.step);
  const std::string activity = fmt::format("saving step {}", written_.step);
  constexpr std::chrono::milliseconds kHeartbeat{20};  // far below comm.timeout_s
  for (int64_t before = 0;;) {
    const bool ended = background_->ended(kHeartbeat);
    const int64_t written = background_->written_bytes();
    const auto any =
        p_.trainer.control().any_of({ended, written != std::exchange(before, written)});
    if (any[0]) break;
    if (any[1]) p_.early_end.pulse().wrote();  // a rank that has written its part waits for others
    show(background_->adding_files() ? activity + ": its Hugging Face form"
                                     : bytes_text(activity, written, background_->staged_bytes()));
  }
  end_write();
  p_.early_end.at(Doing::step_done, p_.trainer.steps_done());
}

void RunSaver::end_write() {
  try {
    const checkpoint::BackgroundSaver::Saved done = background_->take();
    if (reporter_)
      reporter_->written({.seconds = done.seconds,
                          .bytes = background_->total_bytes(),
                          .staged = background_->staged_bytes()});
    succeeded(done.checkpoint);
  } catch (const checkpoint::SaveError& e) {  // on all ranks
    failed(e);
  }
  if (p_.fault) p_.fault->after_step(written_.step);
}

std::function<void(std::string_view)> RunSaver::moments(int64_t step) {
  const auto fault = p_.fault ? p_.fault->in_save(step) : nullptr;
  return [this, fault](std::string_view moment) {
    p_.early_end.pulse().wrote();
    try {
      if (moment == "rename") p_.require_ours();
    } catch (...) {
      lost_ = std::current_exception();
      throw;
    }
    if (fault) fault(moment);
  };
}

void RunSaver::succeeded(const std::filesystem::path& checkpoint) {
  failures_.saved();
  newest_ = {.step = written_.step, .with_loss = written_.loss.has_value(), .path = checkpoint};
  if (written_.loss) lowest_loss_ = std::min(lowest_loss_, *written_.loss);
  report_progress();
  shown_no_more();
  note(fmt::format("saved {}", checkpoint.string()));
  if (reporter_) reporter_->saved(written_.began);
  if (p_.on_saved) p_.on_saved();
}

void RunSaver::failed(const checkpoint::SaveError& error) {
  if (lost_) std::rethrow_exception(lost_);
  shown_no_more();
  newest_.with_loss = false;
  const std::string line =
      failures_.failed(error, written_.step, written_.last, newest_.path.string());
  if (!reporter_) return;
  log::warn(line);
  reporter_->save_failed();
}

void RunSaver::report_progress() {
  if (p_.screen) p_.early_end.progress(newest_.step, p_.trainer.steps_done(), newest_.path);
}

void RunSaver::note(const std::string& text) {
  if (reporter_) reporter_->note(text);
}
void RunSaver::show(const std::string& activity) {
  if (p_.screen) p_.screen->activity(activity);
}
void RunSaver::shown_no_more() {
  if (p_.screen) p_.screen->idle();
}

}  // namespace mtrain::run
