// How long steps take on each rank, and what the longest and largest are over all ranks.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/step_range.h"
#include "comm/host_collectives.h"
#include "device/allocator.h"
#include "observe/exposure.h"
#include "observe/profile.h"
#include "observe/stragglers.h"
#include "train/trainer.h"

namespace mtrain::run {

// What a rank has measured of a step.
struct StepFigures {
  int64_t step_ns = 0;  // since the step before, or since the last pause
  int64_t memory = 0;   // the largest since the process began, in bytes
  // The same by category. The categories need not have been largest at the same time.
  std::array<int64_t, device::kMemoryCategories> memory_of{};
  double step_s() const { return double(step_ns) * 1e-9; }
  // The launches of the step were timed. The members below are empty otherwise.
  bool timed = false;
  observe::Exposure::ByKind communication;
  int64_t compute_ns = 0, starved_ns = 0;  // of the compute stream
  int64_t exposed_ns() const;              // communication during which the compute stream waits
  // Over all ranks; all of them have the same. None is below the rank's own figure, since both are
  // the same integers.
  struct Largest {
    comm::HostCollectives::Largest step_ns, memory, exposed_ns, compute_ns;
    std::array<comm::HostCollectives::Largest, device::kMemoryCategories> memory_of;
  };
  std::optional<Largest> largest;
  // The comparison of the last steps; on rank 0 alone, every StragglerFinder::kEvery steps.
  std::optional<observe::StragglerFinder::Check> stragglers;
};

// Every rank has one, and times the same steps.
class StepTimes {
 public:
  explicit StepTimes(train::Trainer& trainer);
  ~StepTimes();
  StepTimes(const StepTimes&) = delete;
  StepTimes& operator=(const StepTimes&) = delete;

  // Gives the times of all launches of these steps to `sink`, too, and some of other steps. Call it
  // before begin().
  void add_sink(device::TimingSink& sink, StepRange steps = {});
  void begin();  // before the first step
  // Ends a step. All ranks must call it: they compare their figures after a timed step.
  StepFigures step(const train::StepStats& stats);
  // Time and communication since the last step, such as those of a save, count for no step.
  void pause();

 private:
  void note_timed(StepFigures& figures);
  // Turns the timing of launches on or off for step n of this process; `step` is its number.
  void time_step(int64_t n, int64_t step);
  StepFigures::Largest largest(const StepFigures& own) const;
  // Compares the times in which the ranks have computed. All ranks call it.
  std::optional<observe::StragglerFinder::Check> find_stragglers();

  train::Trainer& trainer_;
  std::unique_ptr<observe::Exposure> exposure_;  // null for a single rank
  const bool finds_stragglers_;
  observe::OperationTimes operations_;
  observe::StragglerFinder finder_;
  std::vector<double> computed_s_;  // of the timed steps since the last comparison
  std::vector<device::TimingSink*> sinks_;
  std::unique_ptr<observe::TeeSink> tee_;  // of all sinks; null without any
  std::chrono::steady_clock::time_point last_;
  int64_t steps_ = 0;                 // of this process
  std::vector<StepRange> times_all_;  // the steps that are timed in any case
  bool timed_ = true;                 // whether the current step is
};

}  // namespace mtrain::run
