// The training of one rank: its steps, evaluations, checkpoints, and the log of them.
#pragma once
#include <memory>

#include "base/pulse.h"
#include "comm/world.h"
#include "plan/run_plan.h"
#include "run/run.h"
#include "run/start_choice.h"
#include "train/trainer.h"

namespace mtrain::observe {
class ProgressLine;
}

namespace mtrain::run {

class RunLock;
class RunStatus;

// What a rank has when it begins to train.
struct RankParts {
  std::shared_ptr<Pulse> pulse;
  train::HostInterval rendezvous;  // when it met the others
  // Rank 0 alone has these, and the checkpoint from which the run starts, if there is one.
  observe::ProgressLine* screen = nullptr;
  RunLock* lock = nullptr;
  RunStatus* status = nullptr;
  ClaimedStart claimed = {};
};

// Trains until train.steps are done or the run is asked to end. Throws as run_training() does.
void train_on_rank(const RunPlan& plan, const RunOptions& options, comm::World world,
                   RankParts parts);

}  // namespace mtrain::run
