// Describes a job without running it: layout, groups, memory, pipeline and overlap.
#pragma once
#include <string>
#include <vector>

#include "plan/checkpoint_cost.h"
#include "plan/run_plan.h"

namespace mtrain::run {

struct DryRunOptions {
  int width = 80;             // columns of the texts next to a label
  int table_width = 0;        // columns of the tables; 0: their natural width
  bool fewest_ranks = false;  // the user gave no number of ranks: it is the smallest that fits
  std::string device = {}, fit = {};     // plan/device_text.h; empty: not printed
  std::vector<std::string> advice = {};  // plan/sizing_guide.h
  plan::SaveHardware disks = {};         // for the time of a save
};

// Returns a report on the plan, whose vocabulary must be known. Takes milliseconds for any size of
// the world.
std::string dry_run_report(const RunPlan& plan, const DryRunOptions& options);

}  // namespace mtrain::run
