// Loads a recipe and a cluster file, and plans the one on the other.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "plan/cluster.h"
#include "plan/plan_trial.h"
#include "plan/run_plan.h"
#include "recipe/recipe.h"

namespace mtrain {

struct ClusterPlanWords {
  std::string recipe, cluster;  // paths, or names of ready files
  std::vector<std::string> overrides;
  // Absent: a rank for each of the cluster's devices. A cluster whose nodes are auto then has as
  // many as the fewest ranks need that the recipe's sizes allow.
  std::optional<int64_t> world_size;
};

struct ClusterPlan {
  plan::Cluster cluster;
  Recipe recipe;
  plan::RecipeSource source;  // for trials of other settings
  RunPlan plan;
  int64_t vocabulary = 0;
  Diagnostics diagnostics;  // contains no error
};

// The recipe's machine is the cluster: where the recipe itself does not set train.device,
// hardware.gpu and hardware.gpus_per_node, they follow from the cluster. Throws one UserError with
// all mistakes of both files.
ClusterPlan plan_on_cluster(const ClusterPlanWords& words);

}  // namespace mtrain
