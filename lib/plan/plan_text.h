// PlanText describes a plan in the recipe's words. The start banner and the dry run print it.
#pragma once
#include <cstdint>
#include <string>

namespace mtrain::recipe {
struct Recipe;
}  // namespace mtrain::recipe

namespace mtrain::plan {

struct RunPlan;

struct PlanText {
  std::string model;      // "llama: 12 layers, hidden 768, ..."
  std::string precision;  // "bf16_mixed, linears in 8 bits (...)"
  std::string recompute;  // "full, groups of 2, +31.2 % FLOPs"
  std::string logits;     // "3 chunks of 2816 tokens, ..."; empty without a vocabulary
  std::string strategy;   // "fsdp2"
  std::string context;    // "p2p and a2a"
  std::string experts;    // "alltoall", the token dispatcher
  std::string schedule;   // "1f1b", or the file that lists the actions
  // The full recipe as YAML. The ranks of a job compare `recipe`, which has only values. A run
  // saves `recipe_with_origins`, which also has the origin of each value.
  std::string recipe, recipe_with_origins;
};

// Returns the recipe as YAML, without settings that may differ between hosts. The ranks of a job
// compare it.
std::string compared_recipe(const recipe::Recipe& recipe);

// Reads only `fp8`, `fp8_weights` and `model` of the plan, and what recomputed_share() reads.
PlanText plan_text(const recipe::Recipe& recipe, const RunPlan& plan, int64_t vocab);

}  // namespace mtrain::plan
