#include "run/step_times.h"

#include <algorithm>

#include "base/file.h"

namespace mtrain::run {

namespace {

bool compares(const plan::TrainOptions& train, int64_t n) {
  return observe::samples_step(n, train.log_every, train.time_every);
}

}  // namespace

int64_t StepFigures::exposed_ns() const {
  int64_t sum = 0;
  for (const auto& [kind, c] : communication) sum += std::max<int64_t>(0, c.exposed_ns);
  return sum;
}

StepTimes::StepTimes(train::Trainer& trainer)
    : trainer_(trainer), finds_stragglers_(trainer.plan().train.find_stragglers) {
  if (trainer_.world().size() == 1) return;
  exposure_ = std::make_unique<observe::Exposure>();
  sinks_.push_back(exposure_.get());
  if (finds_stragglers_) sinks_.push_back(&operations_);
}

StepTimes::~StepTimes() { trainer_.device().set_timing_sink(nullptr); }

void StepTimes::add_sink(device::TimingSink& sink, StepRange steps) {
  sinks_.push_back(&sink);
  times_all_.push_back(steps);
}

void StepTimes::begin() {
  if (!sinks_.empty()) tee_ = std::make_unique<observe::TeeSink>(sinks_);
  trainer_.device().set_timing_sink(tee_.get());
  last_ = std::chrono::steady_clock::now();
}

StepFigures StepTimes::step(const train::StepStats& stats) {
  const std::chrono::nanoseconds time = stats.ended - last_;
  StepFigures figures{.step_ns = std::max<int64_t>(0, time.count()),
                      .memory = trainer_.device().allocator().total().peak,
                      .timed = exposure_ && timed_};
  for (int i = 0; i < device::kMemoryCategories; ++i)
    figures.memory_of[size_t(i)] =
        trainer_.device().allocator().usage(device::MemoryCategory(i)).peak;
  last_ = stats.ended;
  ++steps_;
  // Before the sums are read: turning the timing off waits for the last times.
  time_step(steps_ + 1, stats.step + 1);
  if (finds_stragglers_)
    operations_.end_step(figures.timed && compares(trainer_.plan().train, steps_));
  if (figures.timed) note_timed(figures);
  if (exposure_ && finds_stragglers_ && steps_ % observe::StragglerFinder::kEvery == 0)
    figures.stragglers = find_stragglers();
  return figures;
}

void StepTimes::note_timed(StepFigures& figures) {
  figures.communication = exposure_->take();
  figures.compute_ns = exposure_->take_compute_ns();
  figures.starved_ns = exposure_->take_starved_ns();
  // A rank with a profile times more steps than the others.
  if (!compares(trainer_.plan().train, steps_)) return;
  figures.largest = largest(figures);
  computed_s_.push_back(double(figures.compute_ns) * 1e-9);
}

std::optional<observe::StragglerFinder::Check> StepTimes::find_stragglers() {
  constexpr size_t kLeast = 3;  // steps, of which one may be disturbed
  if (computed_s_.size() < kLeast) return {};
  const auto middle = computed_s_.begin() + std::ptrdiff_t(computed_s_.size() / 2);
  std::nth_element(computed_s_.begin(), middle, computed_s_.end());
  const observe::RankWork own{.group = int(trainer_.pipeline().links().rank),
                              .step_s = *middle,
                              .host = host_name(),
                              .operations = operations_.take(int64_t(computed_s_.size()))};
  computed_s_.clear();
  std::vector<observe::RankWork> all;
  for (const std::string& text : trainer_.control().texts_on_first(print_work(own)))
    all.push_back(observe::parse_work(text));
  if (trainer_.control().rank() != 0) return {};
  return finder_.look(all);
}

void StepTimes::time_step(int64_t n, int64_t step) {
  const bool timed =
      compares(trainer_.plan().train, n) ||
      std::ranges::any_of(times_all_, [&](const StepRange& r) { return r.contains(step); });
  // At each timed step: a GPU then measures from a new origin.
  if (timed || timed_) trainer_.device().set_timing_sink(timed ? tee_.get() : nullptr);
  timed_ = timed;
}

StepFigures::Largest StepTimes::largest(const StepFigures& own) const {
  std::vector<int64_t> figures{own.step_ns, own.memory, own.exposed_ns(), own.compute_ns};
  figures.insert(figures.end(), own.memory_of.begin(), own.memory_of.end());
  const auto all = trainer_.control().largest(figures);
  StepFigures::Largest largest{
      .step_ns = all[0], .memory = all[1], .exposed_ns = all[2], .compute_ns = all[3]};
  std::copy(all.begin() + 4, all.end(), largest.memory_of.begin());
  return largest;
}

void StepTimes::pause() {
  last_ = std::chrono::steady_clock::now();
  operations_.end_step(false);
  if (!exposure_) return;
  exposure_->take();
  exposure_->take_compute_ns();
  exposure_->take_starved_ns();
}

}  // namespace mtrain::run
