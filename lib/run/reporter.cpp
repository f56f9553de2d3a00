#include "run/reporter.h"

#include <cmath>
#include <deque>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "base/strings.h"
#include "observe/banner.h"
#include "observe/metrics.h"
#include "observe/profile.h"
#include "observe/progress.h"
#include "observe/tensorboard.h"
#include "ops/tuning.h"
#include "run/run_log.h"

namespace mtrain::run {

namespace {
double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

// What an allocator can see of the planned memory.
int64_t planned_memory(const RunPlan& plan) {
  const plan::MemoryEstimate& fullest = plan.fullest();
  return int64_t(fullest.total() - fullest.nccl);
}

// The tokens of the full run, those of earlier starts included. Rows have different lengths, and
// earlier starts have not kept their sum.
observe::Metric tokens_of_run(const train::StepStats& s, const RunPlan& plan) {
  if (plan.dataset.rows) return {"tokens", observe::StepProgress::kUnknown};
  return {"tokens", s.samples * plan.sample_length};
}

// The profile skips these first steps, since they access memory for the first time.
constexpr int64_t kWarmUpSteps = 2;
}  // namespace

Reporter::Reporter(train::Trainer& trainer, observe::ProgressLine& progress, const Options& options,
                   StepTimes& times)
    : trainer_(trainer), options_(options), progress_(progress), times_(times) {
  if (!options.profile) return;
  profile_ = std::make_unique<observe::Profile>();
  warm_profile_ = std::make_unique<observe::Profile>();
  times_.add_sink(*profile_);
  times_.add_sink(*warm_profile_);
}

Reporter::~Reporter() { trainer_.device().set_timing_sink(nullptr); }

void Reporter::banner(const RunStart& start) {
  std::vector<observe::BannerRow> rows = banner_rows(trainer_, start);
  const std::filesystem::path folder = trainer_.plan().folders.run_dir;
  rows.push_back({"run folder", folder.string()});
  rows.push_back({"log", RunLog::path(folder).string()});
  progress_.banner("mtrain", rows);
}

void Reporter::start() {
  const std::filesystem::path folder = trainer_.plan().folders.run_dir;
  write_file_atomic(folder / "recipe.yaml", trainer_.plan().text.recipe_with_origins);
  metrics_ =
      std::make_unique<observe::MetricsWriter>(folder / "metrics.jsonl", trainer_.steps_done());
  open_tensorboard();
  const DType dtype = trainer_.plan().compute_dtype;
  // The peak is measured without the slowdown of debug.compute_slowdown.
  const auto peak = [&](DType d) {
    return ops::measured_peak_flops(trainer_.device(), d) / trainer_.plan().device.compute_slowdown;
  };
  progress_.activity("measuring the peak rate of the device");
  const double fp32_peak = peak(DType::f32);
  peak_flops_ = dtype == DType::f32 ? fp32_peak : peak(dtype);
  progress_.idle();
  if (const std::string text = measured_text(trainer_, fp32_peak); !text.empty()) note(text);
  started_ = Clock::now();
}

// A run never fails for want of files that only show what metrics.jsonl has.
void Reporter::open_tensorboard() {
  const std::string& folder = trainer_.plan().folders.tensorboard_dir;
  if (folder.empty()) return;
  try {
    tensorboard_ = std::make_unique<observe::TensorboardWriter>(
        folder, trainer_.steps_done(), trainer_.plan().text.recipe_with_origins);
  } catch (const RunError& e) {
    log::warn(
        fmt::format("train.tensorboard_dir: {}; the training continues without files for "
                    "TensorBoard",
                    e.message()));
  }
}

void Reporter::record(int64_t step, const std::vector<observe::Metric>& metrics) {
  metrics_->write(step, metrics);
  if (tensorboard_) tensorboard_->write(step, metrics);
}

void Reporter::step(const train::StepStats& s, const StepFigures& figures) {
  const double step_s = figures.step_s(), rate = double(s.tokens) / step_s;
  const double flops = trainer_.plan().token_cost.flops(s.mean_document_length);
  const double mfu = peak_flops_ > 0 ? rate * flops / (peak_flops_ * trainer_.world().size())
                                     : observe::StepProgress::kUnknown;
  if (mfu > 1 && !reported_peak_) {
    reported_peak_ = true;
    progress_.note(fmt::format(
        "step {}: {:.0f} GFLOP/s are more than the measured peak of {:.0f}: the peak was "
        "measured too low, so such steps have no MFU",
        s.step, rate * flops * 1e-9, peak_flops_ * trainer_.world().size() * 1e-9));
  }
  tokens_ += s.tokens;
  ++steps_;
  const plan::TrainOptions& train = trainer_.plan().train;
  const int64_t last = trainer_.last_step();
  const bool stays = s.step % train.log_every == 0 || s.step == last;
  const bool scaled = trainer_.plan().loss_scale.on;
  if (const std::string text = clock_.look(); !text.empty()) note(text);
  note_skipped(s);
  progress_.update({.step = s.step,
                    .total = last,
                    .loss = s.loss,
                    .mtp_losses = s.mtp_losses,
                    .lr = s.lr,
                    .grad_norm = s.grad_norm,
                    .loss_scale = scaled ? s.loss_scale : observe::StepProgress::kUnknown,
                    .tokens_per_s = rate,
                    .mfu = mfu,
                    .step_s = step_s},
                   stays);
  std::vector<observe::Metric> metrics{{"loss", s.loss},
                                       {"lr", double(s.lr)},
                                       {"grad_norm", double(s.grad_norm)},
                                       tokens_of_run(s, trainer_.plan()),
                                       {"total_steps", last},
                                       {"step_ms", double(figures.step_ns) * 1e-6},
                                       {"tokens_per_s", rate},
                                       {"mfu", mfu > 1 ? observe::StepProgress::kUnknown : mfu},
                                       {"memory_peak", figures.memory},
                                       {"memory_planned", planned_memory(trainer_.plan())}};
  add_saves(metrics);
  std::deque<std::string> names;  // owns the names; a Metric holds a view
  add_memory(figures, metrics, names);
  for (size_t k = 0; k < s.mtp_losses.size(); ++k)
    metrics.push_back({names.emplace_back(fmt::format("mtp_loss.{}", k + 1)), s.mtp_losses[k]});
  if (scaled) metrics.push_back({"loss_scale", s.loss_scale});
  if (scaled || train.spikes.on())
    metrics.push_back({"skipped", int64_t(s.overflowed || s.skipped)});
  if (train.spikes.factor > 0)
    metrics.push_back(
        {"grad_norm_median", s.norm_median > 0 ? s.norm_median : observe::StepProgress::kUnknown});
  if (s.experts) {
    metrics.push_back({"moe.aux_loss", s.experts->balance_loss});
    metrics.push_back({"moe.z_loss", s.experts->z_loss});
    metrics.push_back({"moe.load_max", s.experts->load_max});
    metrics.push_back({"moe.load_cv", s.experts->load_variation});
    metrics.push_back({"moe.dead", s.experts->dead});
    if (trainer_.plan().layout.ep > 1) {
      metrics.push_back({"moe.rank_load_max", s.experts->rank_load_max});
      metrics.push_back({"moe.host_wait_ms", s.experts->host_wait_ms});
    }
    if (trainer_.plan().model.experts()->capacity_factor > 0)
      metrics.push_back({"moe.dropped", s.experts->dropped});
  }
  if (figures.timed) add_communication(figures, metrics, names);
  if (figures.stragglers) add_stragglers(*figures.stragglers, s.step, metrics);
  record(s.step, metrics);
  if (warm_profile_ && steps_ == kWarmUpSteps) warm_profile_->reset();
}

void Reporter::add_memory(const StepFigures& figures, std::vector<observe::Metric>& metrics,
                          std::deque<std::string>& names) {
  for (int i = 0; i < device::kMemoryCategories; ++i) {
    const auto category = device::MemoryCategory(i);
    const auto add = [&](const char* suffix, int64_t bytes) {
      // Only GPU kernels use workspace.
      if (category == device::MemoryCategory::workspace && bytes == 0) return;
      metrics.push_back({names.emplace_back(fmt::format("memory_peak.{}{}",
                                                        device::category_name(category), suffix)),
                         bytes});
    };
    add("", figures.memory_of[size_t(i)]);
    if (figures.largest) add(".max", figures.largest->memory_of[size_t(i)].value);
  }
}

void Reporter::add_stragglers(const observe::StragglerFinder::Check& check, int64_t step,
                              std::vector<observe::Metric>& metrics) {
  if (check.slowest) {
    metrics.push_back({"compute.speed.min", check.slowest->ratio});
    metrics.push_back({"compute.speed.min_rank", int64_t(check.slowest->rank)});
  }
  for (const observe::Straggler& s : check.found)
    log::warn(fmt::format("step {}: {} (train.straggler)", step, s.str()));
}

void Reporter::note_skipped(const train::StepStats& s) {
  if (s.overflowed)
    progress_.note(
        fmt::format("step {}: a gradient overflowed fp16 under the loss scale {}: "
                    "nothing is updated",
                    s.step, s.loss_scale));
  if (!s.skipped) return;
  ++spikes_;
  const std::string why =
      std::isfinite(s.loss) && std::isfinite(s.grad_norm)
          ? fmt::format("the gradient norm {:.4g} is {:.3g} times the median {:.4g}", s.grad_norm,
                        s.grad_norm / s.norm_median, s.norm_median)
          : fmt::format("the {} is not finite", std::isfinite(s.loss) ? "gradient" : "loss");
  progress_.note(fmt::format("step {}: {}: the step is skipped, nothing is updated", s.step, why));
}

void Reporter::add_saves(std::vector<observe::Metric>& metrics) {
  if (failed_saves_ > 0) metrics.push_back({"checkpoint.failed_saves", failed_saves_});
  if (failed_copies_ > 0) metrics.push_back({"checkpoint.local_failures", failed_copies_});
  if (const auto staged = std::exchange(staged_locally_, {}))
    metrics.push_back({"checkpoint.local_staged_bytes", *staged});
  if (skipped_saves_ > 0) metrics.push_back({"checkpoint.skipped_saves", skipped_saves_});
  if (const auto stalled = std::exchange(stalled_in_step_, {}); stalled.count() > 0)
    metrics.push_back({"checkpoint.stall_ms", 1e3 * seconds(stalled)});
  if (const auto save = std::exchange(last_written_, {})) {
    metrics.push_back({"checkpoint.write_s", save->seconds});
    metrics.push_back({"checkpoint.write_gb_per_s", double(save->bytes) * 1e-9 / save->seconds});
    metrics.push_back({"checkpoint.staged_bytes", save->staged});
  }
  if (newest_) metrics.push_back({"checkpoint.age_s", seconds(Clock::now() - *newest_)});
}

void Reporter::add_communication(const StepFigures& figures, std::vector<observe::Metric>& metrics,
                                 std::deque<std::string>& names) {
  const bool warm = steps_ > kWarmUpSteps;
  for (const auto& [kind, c] : figures.communication) {
    const auto add = [&, kind = kind](const char* what, auto value) {
      names.push_back(fmt::format("comm.{}.{}", stream_kind_name(kind), what));
      metrics.push_back({names.back(), value});
    };
    add("busy_ms", double(c.busy_ns) * 1e-6);
    add("exposed_ms", double(c.exposed_ns) * 1e-6);
    add("idle_ms", c.idle_ns ? double(*c.idle_ns) * 1e-6 : observe::StepProgress::kUnknown);
    if (c.paired()) {
      add("paired_busy_ms", double(c.paired_busy_ns) * 1e-6);
      add("paired_exposed_ms", double(c.paired_exposed_ns) * 1e-6);
    }
    add("bytes", c.bytes);
    if (warm) communication_[kind] += c;
  }
  metrics.push_back({"compute.busy_ms", double(figures.compute_ns) * 1e-6});
  metrics.push_back({"compute.starved_ms", double(figures.starved_ns) * 1e-6});
  if (const auto& largest = figures.largest) {
    const auto add = [&](const char* max, const char* rank, comm::HostCollectives::Largest of,
                         bool ms) {
      if (ms)
        metrics.push_back({max, double(of.value) * 1e-6});
      else
        metrics.push_back({max, of.value});
      metrics.push_back({rank, int64_t(of.rank)});
    };
    add("step_ms.max", "step_ms.max_rank", largest->step_ns, true);
    add("memory_peak.max", "memory_peak.max_rank", largest->memory, false);
    add("comm.exposed_ms.max", "comm.exposed_ms.max_rank", largest->exposed_ns, true);
    add("compute.busy_ms.max", "compute.busy_ms.max_rank", largest->compute_ns, true);
  }
  if (!warm) return;
  starved_ns_ += figures.starved_ns;
  ++timed_steps_;
  timed_ns_ += figures.step_ns;
}

void Reporter::validation(double loss, int64_t samples, bool best) {
  record(trainer_.steps_done(), {{"validation_loss", loss}, {"validation_samples", samples}});
  note(fmt::format(
      "step {}: validation loss {:.4f} nats per token (perplexity {:.2f}) over {} samples{}",
      trainer_.steps_done(), loss, std::exp(loss), samples,
      best ? " (best so far, kept as best)" : ""));
  times_.pause();
}

void Reporter::save_failed() {
  ++failed_saves_;
  times_.pause();
}

void Reporter::staged_locally(int64_t bytes) {
  staged_locally_ = staged_locally_.value_or(0) + bytes;
}

void Reporter::save_skipped() {
  ++skipped_saves_;
  times_.pause();
}

void Reporter::stalled(Clock::duration time) {
  stalled_ += time;
  stalled_in_step_ += time;
  times_.pause();
}

void Reporter::written(const Written& save) {
  ++saves_;
  all_written_.seconds += save.seconds;
  all_written_.bytes += save.bytes;
  all_written_.staged = save.staged;
  last_written_ = save;
}

std::string Reporter::saves_text() const {
  std::string text = fmt::format(
      "{} save{} in {:.3g} s ({:.3g} GB/s), for which training waited {:.0f} ms; a copy takes {} "
      "of "
      "host memory on a rank",
      saves_, saves_ == 1 ? "" : "s", all_written_.seconds,
      double(all_written_.bytes) * 1e-9 / all_written_.seconds, 1e3 * seconds(stalled_),
      human_bytes(double(all_written_.staged)));
  if (newest_)
    text += fmt::format("; the newest is {} old", human_duration(seconds(Clock::now() - *newest_)));
  return text;
}

void Reporter::note(const std::string& text) {
  progress_.note(text);
  times_.pause();
}

void Reporter::finish() {
  progress_.finish();
  const double elapsed = seconds(Clock::now() - started_);
  note(fmt::format("{} tokens in {}; peak memory {}", human_count(double(tokens_)),
                   human_duration(elapsed), trainer_.device().allocator().peaks()));
  if (spikes_ > 0)
    note(fmt::format("{} of {} steps skipped: their loss or gradient was not finite, or a spike",
                     spikes_, steps_));
  if (saves_ > 0) note(saves_text());
  if (profile_) {
    const bool warm = steps_ > kWarmUpSteps;
    progress_.note([&](int width) {
      std::string table = (warm ? warm_profile_ : profile_)->table(width);
      if (table.ends_with('\n')) table.pop_back();
      return fmt::format("steps profiled: {}, {}\n{}", warm ? steps_ - kWarmUpSteps : steps_,
                         warm ? "without the warm-up" : "the warm-up included", table);
    });
  }
  if (!communication_.empty()) {
    if (options_.verbose)
      note(fmt::format("communication of rank 0: {}; compute starved for {:.3g} s",
                       exposure_text(communication_), double(starved_ns_) * 1e-9));
    note(exposure_summary(communication_, timed_ns_, timed_steps_));
  }
}

}  // namespace mtrain::run
