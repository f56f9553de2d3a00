#include "run/training.h"

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/pulse.h"
#include "base/terminal.h"
#include "checkpoint/train_checkpoint.h"
#include "device/flight_recorder.h"
#include "interchange/checkpoint_record.h"
#include "launch/end_signals.h"
#include "launch/error_file.h"
#include "observe/exposure.h"
#include "observe/progress.h"
#include "run/assumed_bytes.h"
#include "run/bf16_choice.h"
#include "run/chosen_start.h"
#include "run/consolidated_writer.h"
#include "run/data_identity.h"
#include "run/early_end.h"
#include "run/fault_injection.h"
#include "run/folder_probe.h"
#include "run/folder_watch.h"
#include "run/gemm_choice.h"
#include "run/host_clocks.h"
#include "run/local_copies.h"
#include "run/open_device.h"
#include "run/phase_of_memory.h"
#include "run/rank_consistency.h"
#include "run/rank_pulse.h"
#include "run/reporter.h"
#include "run/run_checkpoint.h"
#include "run/run_folder.h"
#include "run/run_lock.h"
#include "run/run_saver.h"
#include "run/run_status.h"
#include "run/run_trace.h"
#include "run/run_validation.h"
#include "run/start_choice.h"
#include "run/step_times.h"
#include "storage/damaged_checkpoint.h"
#include "storage/read_mark.h"
#include "train/build_trainer.h"
#include "train/data_setup.h"

namespace mtrain::run {

namespace {

// The run of one rank. Only rank 0 prints and writes files, apart from checkpoints and traces.
class Training {
 public:
  Training(const RunPlan& plan, const RunOptions& options, comm::World world, RankParts parts)
      : plan_(plan),
        job_(options.job),
        report_{.profile = options.profile, .verbose = options.verbose},
        continue_command_(options.continue_command),
        screen_(parts.screen),
        lock_(parts.lock),
        status_(parts.status),
        rendezvous_(parts.rendezvous),
        claimed_(std::move(parts.claimed)),
        device_(open_device(plan.device, options.job)),
        pulse_(*device_, parts.pulse),
        ids_(train::id_check(plan.dataset.tokenizer, plan.model.vocab)),
        data_(train::open_training_data(plan.dataset, ids_)),
        bytes_(plan.dataset.tokenizer.assumed, ids_),
        trainer_(train::build_trainer(*device_, plan, data_, std::move(world))),
        validation_(trainer_, train::open_validation_data(plan.dataset, ids_)) {
    if (!plan.debug.faults.empty() && options.job.restarts == 0)
      fault_.emplace(plan.debug.faults, trainer_);
    if (report_.profile && trainer_.graphs())
      trainer_.graphs()->turn_off("--profile times every launch");
    if (plan.checkpoint.consolidated != Consolidated::none)
      consolidated_.emplace(trainer_.control(), pulse_.shared());
  }

  void run() {
    try {
      with_phase_of_memory(*pulse_, [this] { run_steps(); });
    } catch (const std::exception& e) {
      trainer_.world().abort(e.what());  // peers then do not wait for their timeout
      constexpr int kLaunches = 20;
      const auto launches = device_->recorder().lines(kLaunches);
      launch::write_error_file(e, launches);
      if (!dynamic_cast<const UserError*>(&e)) tell_last_launches(launches);
      throw;
    }
  }

 private:
  using Consolidated = plan::CheckpointOptions::Consolidated;

  void run_steps() {
    // Before the ranks wait for each other: no rank then trains without these signal handlers.
    early_end_.emplace(screen_, plan_.checkpoint.at_end, pulse_.shared());
    agree_on_start();
    if (nothing_to_do()) return all_ranks_here();  // if rank 0 serves the store, it must end last
    open_reports();
    make_saver();
    const std::string saving = saver_->choose();
    const std::string local_text = local_ ? local_->prepare(reporter()) : "";
    if (reporter_)
      reporter_->banner({.steps_done = progress_.steps_done,
                         .samples_done = progress_.samples,
                         .last_step = last_step(),
                         .samples = data_->size(),
                         .from = start_ ? start_.text() : plan_.folders.weights_from,
                         .local_copies = local_text,
                         .saving = saving});
    resume();
    if (reporter_) bytes_.warn();
    const auto clocks = clock_differences(trainer_.control(), job_);
    if (reporter_) {
      reporter_->start();
      for (const std::string& text : clocks) note(text);
      note(data_->note());
      if (validation_) note(validation_.data()->note());
    }
    begin_timing();
    auto tuner = gemm_tuner(*device_, plan_);  // exists until it has chosen, after the first step
    if (tuner && trainer_.graphs()) trainer_.graphs()->hold(true);
    const auto started = std::chrono::steady_clock::now();
    const int64_t first = begun_after_ = trainer_.steps_done();
    profiled_ = trainer_.control().any(report_.profile);
    saver_->report_progress();
    pulse_->set_last_step(trainer_.last_step());
    if (status_) status_->at(trainer_.steps_done(), trainer_.last_step());
    std::string end = asked_to_end();  // why the run ends early; empty while it continues
    while (end.empty() && trainer_.steps_done() < trainer_.last_step()) {
      early_end_->at(Doing::step, trainer_.steps_done() + 1);
      if (fault_) fault_->before_step(trainer_.steps_done() + 1);
      if (trace_) trace_->step_begins(trainer_.steps_done() + 1);
      const train::StepStats stats =
          trainer_.step(may_run_ahead(trainer_.steps_done() + 1 - first));
      pulse_.step_done(stats.ended);
      if (trace_) trace_->step_done(stats.step);
      const StepFigures figures = times_->step(stats);
      if (trace_ && trace_->ends_after(stats.step)) end_trace();
      if (figures.timed) pulse_->set_exposed(double(figures.exposed_ns()) * 1e-9);
      if (stats.skipped) pulse_->set_spike(stats.step);
      if (figures.stragglers && !figures.stragglers->found.empty())
        pulse_->set_straggler(figures.stragglers->found.front().rank, stats.step);
      if (reporter_) reporter_->step(stats, figures);
      if (tuner && trainer_.steps_done() < trainer_.last_step())
        choose(std::exchange(tuner, nullptr));
      if (trainer_.graphs()) note(trainer_.graphs()->take_failure());
      if (reporter_) bytes_.warn();
      const int64_t step = trainer_.steps_done();
      early_end_->at(Doing::step_done, step);
      saver_->report_progress();
      // The last step is evaluated at the end, unless its checkpoint is ranked by the loss.
      const bool last = step == trainer_.last_step(),
                 saves = due(plan_.checkpoint.every_steps, step);
      if (last ? plan_.checkpoint.keep_best > 0 : due(plan_.validation.every_steps, step))
        evaluate();
      if (saves || new_best_) save(last && !plan_.checkpoint.at_end);
      if (local_ && !last && due(plan_.checkpoint.local.every_steps, step)) copy_locally(step);
      if (folder_) folder_->check();
      // A save in the background has its moments later.
      if (fault_ && !(saver_->writing() && saver_->written_step() == step))
        fault_->after_step(step);
      if (lock_) {
        lock_->require_held_lately();
        identity_->require_same();
      }
      end = why_end(std::chrono::steady_clock::now() - started);
    }
    if (end.empty() && !evaluated()) evaluate();
    end_run(end);
  }

  // `why` is empty if all steps are done.
  void end_run(const std::string& why) {
    if (screen_) screen_->keep();
    note(why);
    saver_->finish_write();
    early_end_->at(Doing::ending, trainer_.steps_done());
    if (fault_) fault_->at_end();
    // The checkpoint of a best step is saved again if it has no loss, as one from an earlier start.
    const RunSaver::Newest& newest = saver_->newest();
    const bool saved = newest.step == trainer_.steps_done() && (!new_best_ || newest.with_loss);
    if ((plan_.checkpoint.at_end || new_best_) && !saved) save(/*last=*/true);
    if (fault_) fault_->require_happened(begun_after_ + 1, trainer_.steps_done());
    if (consolidated_) consolidate(saver_->newest().path);
    if (local_) local_->end(/*saved=*/saver_->newest().step == trainer_.steps_done());
    if (trace_) end_trace();
    if (reporter_) reporter_->finish();
    if (!why.empty()) tell_how_to_continue();
    if (status_) status_->ended(trainer_.steps_done(), why);
    all_ranks_here();  // if rank 0 serves the store, it must end last
  }

  void begin_timing() {
    if (trace_) {
      trace_->add_start("rendezvous", rendezvous_);
      trace_->add_start("start", {rendezvous_.end, std::chrono::steady_clock::now()});
    }
    times_->begin();
    pulse_.pause();
  }

  // What has happened since the last step counts for no step.
  void pause_times() {
    times_->pause();
    pulse_.pause();
  }

  void end_trace() {
    early_end_->during(
        Doing::save, [&] { note(trace_->finish([pulse = pulse_.shared()] { pulse->wrote(); })); });
    pause_times();
  }

  void choose(const std::unique_ptr<ops::GemmTuner>& tuner) {
    const auto began = std::chrono::steady_clock::now();
    choose_gemms(*tuner, trainer_.control(), plan_.comm.timeout_s);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    note(fmt::format("algorithms of GEMMs chosen in {:.1f} s", took.count()));
    if (trainer_.graphs()) trainer_.graphs()->hold(false);
    pause_times();
  }

  // Returns whether the next step may begin before the result of the current one is known; `n`
  // counts the steps of this start. All ranks decide alike. No step runs ahead of a save or an
  // evaluation, and none if one of the two is observed: what is measured is then work of a single
  // step.
  bool may_run_ahead(int64_t n) {
    const plan::TrainOptions& t = plan_.train;
    const int64_t step = trainer_.steps_done() + 1;
    const auto timed = [&](int64_t k) {
      return trainer_.world().size() > 1 && observe::samples_step(k, t.log_every, t.time_every);
    };
    const auto traced = [&](int64_t k) {
      return plan_.debug.trace && plan_.debug.trace_steps.contains(k);
    };
    const bool observed = profiled_ || traced(step) || traced(step + 1) || timed(n) ||
                          timed(n + 1) || !plan_.debug.faults.empty();
    const bool pauses = due(plan_.checkpoint.every_steps, step) ||
                        (local_ && due(plan_.checkpoint.local.every_steps, step)) ||
                        (validation_ && due(plan_.validation.every_steps, step)) ||
                        (t.exit_interval && due(*t.exit_interval, step));
    return n > 1 && !observed && !pauses;
  }

  // Returns why the run ends after this step; empty if it continues. All ranks agree whether it
  // ends.
  std::string why_end(std::chrono::duration<double> elapsed) {
    const plan::TrainOptions& t = plan_.train;
    if (t.exit_interval && due(*t.exit_interval, trainer_.steps_done()))
      return fmt::format("train.exit_interval={}: {}", *t.exit_interval, how_it_ends());
    const bool late = t.exit_minutes && elapsed.count() > *t.exit_minutes * 60;
    const std::string asked = asked_to_end(late);
    if (asked.empty() || !late) return asked;
    return fmt::format("train.exit_duration_in_mins={}: {}", *t.exit_minutes, how_it_ends());
  }

  const char* how_it_ends() const {
    return plan_.checkpoint.at_end && saver_->newest().step != trainer_.steps_done()
               ? "saving and ending"
               : "ending";
  }

  // Returns why the run ends if a signal has reached any rank, or if `late` is set on any. Ranks
  // also agree here whether a save in the background has ended, which only rank 0 knows.
  std::string asked_to_end(bool late = false) {
    const int signal = early_end_->signal();
    const auto agreed = trainer_.control().any_of({signal || late, saver_->ended()});
    if (agreed[1]) {
      saver_->end_write();
      pause_times();
    }
    if (!agreed[0]) return "";
    const std::string who = signal ? launch::name_of(signal) : "another rank ends the run";
    return fmt::format("{}: {}", who, how_it_ends());
  }

  void tell_how_to_continue() {
    if (!screen_ || trainer_.steps_done() >= trainer_.last_step()) return;
    if (saver_->newest().path.empty() && trainer_.steps_done() > 0) return;  // nothing is saved
    if (continue_command_.empty())
      return screen_->tell("to continue: the same command with checkpoint.load=latest");
    screen_->tell(
        [&](int columns) { return wrap_command("to continue: " + continue_command_, columns); });
  }

  static void tell_last_launches(const std::vector<std::string>& lines) {
    std::string text = "the run failed; the last launches were:";
    for (const std::string& line : lines) text += "\n  " + line;
    log::info(text);
  }

  static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }
  Reporter* reporter() { return reporter_ ? &*reporter_ : nullptr; }
  void note(const std::string& text) {
    if (reporter_ && !text.empty()) reporter_->note(text);
  }
  // Shows a long activity on rank 0.
  void show(const std::string& activity) {
    if (screen_) screen_->activity(activity);
  }
  ShowActivity shown() {
    if (!screen_) return {};
    return [this](const std::string& activity) { show(activity); };
  }
  void shown_no_more() {
    if (screen_) screen_->idle();
  }
  void all_ranks_here() { trainer_.control().any(false); }

  // Throws UserError if a rank's text differs.
  void require_same(const char* what, const std::string& own) {
    require_same_on_all_ranks(trainer_.control(), what, own,
                              "give all ranks the same files: a folder that all hosts share");
  }

  void agree_on_start() {
    all_ranks_here();  // rank 0 has the lock: an earlier attempt no longer writes
    start_choice_.emplace(trainer_.control(), plan_.folders, job_, lock_,
                          patience_for_files(plan_.comm.timeout_s));
    start_ = ChosenStart(start_choice_->agree(std::move(claimed_)));
    if (plan_.checkpoint.local.on()) {
      local_.emplace(trainer_, pulse_.shared(), lock_ && continues_run(plan_.folders, job_));
      local_->improve(start_);
    }
    if (plan_.train.epochs)
      require_same("number of steps in train.epochs", std::to_string(plan_.train.steps));
    if (start_) progress_ = agreed_progress(trainer_, *start_);
  }

  // The last step, as far as it is known before the checkpoint is loaded.
  int64_t last_step() const {
    return plan::last_step(plan_.train, progress_.steps_done, progress_.samples);
  }

  // Returns whether all steps are already done; all ranks get the same result. The recipe then has
  // fewer steps than the checkpoint. This start must change nothing in the folder except log.txt,
  // not even the checkpoints of later steps.
  bool nothing_to_do() const {
    if (!start_ || start_->step <= last_step()) return false;
    if (lock_)
      log::info(fmt::format("nothing to do: {} has reached step {}, and train.steps is {}",
                            start_.text(), start_->step, last_step()));
    return true;
  }

  // These may write files.
  void open_reports() {
    if (plan_.debug.trace) trace_.emplace(trainer_, *plan_.debug.trace, plan_.debug.trace_steps);
    times_.emplace(trainer_);
    if (trace_) times_->add_sink(trace_->sink(), plan_.debug.trace_steps);
    if (trainer_.world().rank() == 0) reporter_.emplace(trainer_, *screen_, report_, *times_);
  }

  // All ranks read their files before any is changed.
  void require_same_files() {
    require_same("dataset.train", dataset_fingerprint(*data_));
    if (validation_) require_same("dataset.validation", dataset_fingerprint(*validation_.data()));
    // One rank of each host reads more of the data.
    if (job_.local_rank == 0 || trainer_.world().rank() == 0) identity_.emplace(plan_);
    require_same("content of the data", identity_ ? identity_->sampled() : "");
  }

  // Refuses a run that could not save before it trains.
  void make_folders() {
    make_run_folder(plan_.folders);
    folder_.emplace(plan_.folders.run_dir);
    if (plan_.checkpoint.saves())
      storage::require_writable(plan_.folders.checkpoint_dir, "checkpoint.dir");
  }

  void resume() {
    if (fault_) fault_->in_load();
    require_same_files();
    saver_->set(reporter(), identity_ ? &*identity_ : nullptr);
    require_same_exchange_order(trainer_.control(), plan_);
    if (reporter_) make_folders();
    if (plan_.checkpoint.saves())
      require_shared_folder(trainer_.control(), job_, plan_.folders.checkpoint_dir,
                            patience_for_files(plan_.comm.timeout_s));
    const std::string restart = job_.restarts ? fmt::format("restart {}: ", job_.restarts) : "";
    if (start_) {
      note(load_start());
      validation_.open(start_ ? std::optional(*start_) : std::nullopt);
      bytes_.continue_from(start_->path);
      if (const auto& saved = start_.saved())
        saver_->continue_from(saved->step, is_own_checkpoint(plan_.folders, *saved)
                                               ? saved->path
                                               : std::filesystem::path());
      note(fmt::format("{}continuing after step {} of {}", restart, trainer_.steps_done(),
                       start_.text()));
      tell_changes();
    } else {
      validation_.open(start_ ? std::optional(*start_) : std::nullopt);
      note(start_from_folder(trainer_, shown()));
      shown_no_more();
      choose_bf16_arithmetic(*device_, trainer_.control(), plan_);
      if (!plan_.folders.weights_from.empty())
        note(fmt::format("{}starting at step 1 with the weights of {}", restart,
                         plan_.folders.weights_from));
      else if (job_.restarts)
        note(restart + "nothing is saved yet, starting at step 1");
      else if (plan_.folders.load == plan::FolderOptions::Load::latest)
        note("checkpoint.load=latest: nothing to continue from, starting at step 1");
      else if (plan_.folders.load_or_start)
        note(fmt::format("checkpoint.load={}: no checkpoint there, starting at step 1",
                         plan_.folders.load_path));
    }
    const auto job_ids = trainer_.control().texts(job_.id);
    if (reporter_) begin_files(job_ids);
    if (local_) local_->accept_start();
    if (plan_.checkpoint.consolidated == Consolidated::every) consolidate(saver_->newest().path);
  }

  // Continues, or begins, the files of the run.
  void begin_files(const std::vector<std::string>& job_ids) {
    identity_->read_rest();
    const auto place = start_.place(plan_.folders.checkpoint_dir);
    for (const auto& line : set_aside_abandoned(plan_.folders, place, [&] {
           if (lock_) lock_->hold_checkpoints();
         }))
      note(line);
    write_job(plan_.folders, job_ids, job_.restarts, start_.saved());
    if (local_)
      local_->record();
    else
      remove_local_run(plan_.folders.run_dir);  // this start is not in the copies of earlier ones
    if (plan_.checkpoint.keep_best > 0) find_best();
  }

  // Loads the checkpoint, or the one before it if it is damaged. Returns a note about the data.
  std::string load_start() {
    constexpr int kMostLoads = 8;
    for (int loads = 1;; ++loads) {
      if (reporter_) interchange::report_checkpoint(start_->path);
      const storage::ReadMark reading(start_->path);
      std::optional<storage::DamagedCheckpoint> damage;
      try {
        std::string about_data =
            resume_run(trainer_, start_->path, identity_ ? &*identity_ : nullptr, shown());
        shown_no_more();
        return about_data;
      } catch (const storage::DamagedCheckpoint& e) {  // on all ranks
        damage = e;
      }
      shown_no_more();
      if (loads == kMostLoads) throw *damage;
      if (start_.is_local())
        local_->leave(start_, *damage);
      else
        start_ = ChosenStart(start_choice_->replace(*start_, *damage));
    }
  }

  // Continues the ranking of an earlier start, which may have been killed before it made the link.
  void find_best() {
    storage::link_best(plan_.folders.checkpoint_dir);
    const auto best = storage::best_checkpoints(plan_.folders.checkpoint_dir);
    if (!best.empty() && validation_ && best.front().samples == validation_.samples())
      saver_->set_lowest_loss(best.front().loss);
  }

  // Reports which settings differ from those of the run that saved the checkpoint.
  void tell_changes() {
    if (!reporter_) return;
    note(changes_text(trainer_, start_->path, validation_.samples()));
  }

  RunTrace* trace() { return trace_ ? &*trace_ : nullptr; }

  // Whether nothing has changed since the last evaluation.
  bool evaluated() const {
    return trainer_.steps_done() == 0 || validation_.of_step(trainer_.steps_done());
  }

  void evaluate() {
    if (!validation_) return;
    early_end_->at(Doing::evaluation, trainer_.steps_done());
    show(fmt::format("evaluating after step {}", trainer_.steps_done()));
    if (fault_) fault_->before_evaluation(trainer_.steps_done());
    const RunTrace::Span span(trace(), "evaluation");
    const auto [loss, samples] = validation_.evaluate();
    shown_no_more();
    if (plan_.checkpoint.keep_best > 0) {
      saver_->finish_write();  // its loss counts only if it is saved
      // NaN is not lower.
      new_best_ = trainer_.control().any(reporter_ && loss < saver_->lowest_loss());
    }
    if (reporter_) reporter_->validation(loss, samples, new_best_);
    pause_times();
  }

  void make_saver() {
    saver_.emplace(RunSaver::Parts{.trainer = trainer_,
                                   .job = job_,
                                   .screen = screen_,
                                   .early_end = *early_end_,
                                   .fault = fault_ ? &*fault_ : nullptr,
                                   .require_ours = [this] { require_ours(); },
                                   .before_save = [this] { before_save(); },
                                   .on_saved = [this] { checkpoint_saved(); }});
  }

  // Copies this step on the hosts themselves, unless a checkpoint has it.
  void copy_locally(int64_t step) {
    if (saver_->newest().step == step && !saver_->writing()) return;
    show_activity(*pulse_, Doing::save, step);
    RunSave copy{.exceeds_bytes = bytes_.exceeded_on_any(trainer_.control()),
                 .data = identity_ ? &*identity_ : nullptr,
                 .evaluation = {.samples = validation_.samples()}};
    if (const auto result = validation_.of_step(step)) copy.evaluation = *result;
    local_->save(copy, saver_->staged(step));
    pause_times();
  }

  // `last`: no later save of this run can replace it.
  void save(bool last) {
    const RunTrace::Span span(trace(), "save");
    RunSaver::Request request{.last = last,
                              .best = new_best_,
                              .evaluation = validation_.of_step(trainer_.steps_done()),
                              .validation_samples = validation_.samples(),
                              .exceeds_bytes = bytes_.exceeded_on_any(trainer_.control()),
                              .added = added_files()};
    new_best_ = false;
    saver_->save(request);
    pause_times();
  }

  void before_save() {
    if (local_) local_->release_staged();  // the save stages another step
    if (folder_) folder_->check();
  }

  void checkpoint_saved() {
    if (status_) status_->at(saver_->newest().step, trainer_.last_step());
    if (plan_.checkpoint.consolidated != Consolidated::every) return;
    early_end_->during(Doing::save, [&] { consolidate({}); });  // those of earlier checkpoints
    consolidated_->committed(saver_->newest().path);
    note(consolidated_->take_note());
  }

  // Throws RunError on rank 0 if another run has taken the folder, or the data differ.
  void require_ours() {
    lock_->require_held();
    identity_->require_same();
  }

  // Returns what writes the Hugging Face form of a checkpoint before it is committed.
  checkpoint::AddedFiles added_files() {
    if (plan_.checkpoint.consolidated != Consolidated::every) return {};
    return consolidated_->files(fault_ ? fault_->in_save_consolidated(trainer_.steps_done())
                                       : nullptr);
  }

  // Writes the Hugging Face forms that are missing: of this checkpoint, and of earlier ones whose
  // form could not be written. An earlier start may have saved it.
  void consolidate(const std::filesystem::path& checkpoint) {
    show("writing the Hugging Face form of the checkpoint");
    consolidated_->complete(checkpoint);
    shown_no_more();
    note(consolidated_->take_note());
  }

  const RunPlan& plan_;
  const launch::Job job_;
  const Reporter::Options report_;
  const std::string continue_command_;
  observe::ProgressLine* screen_;  // null on all ranks but rank 0, like lock_ and status_
  RunLock* lock_;
  RunStatus* status_;
  const train::HostInterval rendezvous_;
  ClaimedStart claimed_;  // on rank 0, until all ranks have agreed on start_
  ChosenStart start_;
  checkpoint::TrainProgress progress_;  // of start_
  std::unique_ptr<Device> device_;
  DevicePulse pulse_;
  const data::IdCheck ids_;
  std::shared_ptr<const data::Dataset> data_;
  AssumedBytes bytes_;
  train::Trainer trainer_;
  RunValidation validation_;
  std::optional<StartChoice> start_choice_;
  std::optional<EarlyEnd> early_end_;
  std::optional<RunTrace> trace_;
  std::optional<FaultInjection> fault_;
  std::optional<StepTimes> times_;
  std::optional<Reporter> reporter_;  // set only on rank 0, like folder_
  std::optional<FolderWatch> folder_;
  int64_t begun_after_ = 0;  // the steps that were done when this start began to train
  std::optional<ConsolidatedWriter> consolidated_;
  std::optional<DataIdentity> identity_;  // set on the first rank of each host
  bool profiled_ = false;                 // a rank prints the time of each operation
  bool new_best_ = false;                 // this step's loss is lower: the step must be saved
  // The last members: saves in the background use the others.
  std::optional<RunSaver> saver_;
  std::optional<LocalCopies> local_;
};

}  // namespace

void train_on_rank(const RunPlan& plan, const RunOptions& options, comm::World world,
                   RankParts parts) {
  Training(plan, options, std::move(world), std::move(parts)).run();
}

}  // namespace mtrain::run
