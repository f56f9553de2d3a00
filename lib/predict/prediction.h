// What a step of a plan is predicted to take, and how far that can be trusted.
#pragma once
#include <string>
#include <vector>

#include "plan/cluster.h"
#include "plan/run_plan.h"
#include "predict/replay.h"

namespace mtrain::predict {

// The true figure is expected within this share of the predicted one.
struct Band {
  double share = 0;
  std::string reason;
};

struct NamedTime {
  std::string name;
  double seconds = 0;
};

struct Prediction {
  double step_s = 0;
  double tokens_per_s = 0;  // of all ranks
  // Model FLOPs by PaLM's convention (plan/model_size.h), over the peak of the compute type.
  double mfu = 0;
  // What the pipeline rank that computes longest spends. `times.seconds` and `bubble_s`, in which
  // the rank waits for computations of other stages, add up to step_s.
  ReplayTimes times;
  double bubble_s = 0;
  std::vector<double> memory;  // bytes that a device needs, by pipeline rank
  Band band;

  // Returns the parts of the step that are above 0; they add up to step_s.
  std::vector<NamedTime> parts() const;
  // Sums over the streams of a parallelism: "tp", "cp", "ep", "dp", "pp", or "control".
  double exposed(std::string_view axis) const;
  double busy(std::string_view axis) const;
};

// The band of data sheets with the default constants.
constexpr double kUncalibratedBand = 0.4;

// Returns the first band whose condition holds: a data sheet alone, other precisions or constants
// of a program, experts, measured times. `unknown` is the share of the time that is extrapolated.
Band band_of(const RunPlan& plan, const plan::Cluster& cluster, double unknown);

// The FLOP/s of a rank by which MFU is counted, as a training's log does (run/reporter.cpp): the
// peak of the compute type. A model with 8-bit GEMMs has a compute type of 16 bits.
double peak_flops(const RunPlan& plan, const plan::Cluster& cluster);

}  // namespace mtrain::predict
