// What the steps of a calibration have shown, and the figures that follow.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "device/stream_id.h"
#include "plan/calibration.h"

namespace mtrain::run {

struct Quartiles {
  double median = 0, spread = 0;  // spread: of the middle half, relative
};
Quartiles quartiles(std::vector<double> samples);

// The size of a launch, and what it does.
struct LaunchKey {
  std::string name;
  DType dtype = DType::f32;
  double flops = 0, read = 0, written = 0;
  auto operator<=>(const LaunchKey&) const = default;  // NOLINT(modernize-use-nullptr): false alarm
};

// A kind of communication in the steps of a stream.
struct StepLinkKey {
  device::StreamKind stream;
  std::string kind;
  DType dtype;
  int64_t ranks;
  auto operator<=>(const StepLinkKey&) const = default;  // NOLINT(modernize-use-nullptr): the same
};

struct SumOfTimes {
  double seconds = 0;
  int64_t count = 0;
  void add(double s) { seconds += s, ++count; }
  double mean() const { return count > 0 ? seconds / double(count) : 0; }
};

// Communications of one size in a step.
struct StepLink {
  double seconds = 0;  // without waits for other ranks
  double beside = 0;   // of them beside computations
  int64_t count = 0;
};

// A launch that ran while its rank communicated.
struct Disturbed {
  LaunchKey key;
  double seconds, overlap_s;
};

// A step of ranks that work together.
struct StepTogether {
  std::string parallelism;                      // "tp", "cp", "ep", "pp" or "dp"
  std::map<LaunchKey, SumOfTimes> undisturbed;  // computations beside which nothing communicated
  std::map<device::StreamKind, std::vector<Disturbed>> disturbed;
  std::map<StepLinkKey, std::map<double, StepLink>> links;  // by bytes
  // For each kind of stream, the times of its communication over those of the same alone, and how
  // long compute was idle because that waited for later ranks, over the rank's computing.
  std::map<device::StreamKind, double> stretch, idle_share;
  // Compute waited for communication so often, had so many launches, and was idle for so many
  // seconds without a wait.
  int64_t waits = 0, launches = 0;
  double idle_s = 0;
};

struct MeasuredSteps {
  std::map<LaunchKey, std::vector<double>> alone;  // by ranks that work alone: means over a step
  std::vector<double> gaps, hosts;                 // seconds of each launch, of a step
  std::vector<StepTogether> together;
};

// Adds the times of launches, and all figures but those of communication alone.
void summarize(const MeasuredSteps& samples, plan::Calibration& out);

}  // namespace mtrain::run
