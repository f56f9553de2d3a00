// Predicts the size of a checkpoint, how long a save takes, and how often to save.
#pragma once
#include <cstdint>
#include <optional>

#include "plan/model_size.h"

namespace mtrain::recipe {
struct HardwareConfig;
}

namespace mtrain::plan {

struct RunPlan;

// The disks and failures of a cluster, as far as the recipe gives them.
struct SaveHardware {
  std::optional<double> disk_bytes_per_s;  // of all hosts together
  std::optional<double> node_mtbf_s;       // mean time between failures of a node
  int64_t gpus_per_node = 8;
};
SaveHardware save_hardware(const recipe::HardwareConfig& hardware);

// Whether checkpoints have the adapters alone: the frozen weights are those of the base model, from
// which the run began.
bool saves_adapters_alone(const RunPlan& plan);

struct CheckpointCost {
  Count bytes = 0;   // of weights and optimizer state
  Count staged = 0;  // of a copy of what the fullest rank writes, in host memory
  int64_t ranks_per_node = 1;
  std::optional<double> seconds;  // in which a save writes them
  int64_t nodes = 1;
  std::optional<double> mtbf_s;      // mean time between failures of the job: of a node / nodes
  std::optional<double> interval_s;  // training between two saves that loses least time
  double lost = 0;                   // the part of all time that saves and failures then cost
};

// Weights and the optimizer's state are saved in the types in which they are trained.
//
// The interval is Young's: sqrt(2 x seconds of a save x mean time between failures). "A first order
// approximation to the optimum checkpoint interval", Communications of the ACM 17(9), 1974. Daly
// ("A higher order estimate of the optimum checkpoint interval for restart dumps", Future
// Generation Computer Systems 22(3), 2006) shows that it holds while a save takes much less time
// than passes between failures. A save then costs seconds / interval, and a failure half an
// interval.
CheckpointCost checkpoint_cost(const RunPlan& plan, const SaveHardware& hardware);

}  // namespace mtrain::plan
