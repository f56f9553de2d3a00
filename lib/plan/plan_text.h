// A plan in the recipe's words, for people to read: the start banner and the dry run print them.
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
  std::string recompute;  // "full, groups of 2"
  std::string strategy;   // "fsdp2"
  std::string context;    // "p2p and a2a"
  std::string schedule;   // "1f1b", or the file that lists the actions
  // The whole recipe as YAML: its values alone, by which ranks compare themselves, and each with
  // its origin, as it is saved.
  std::string recipe, recipe_with_origins;
};

// Needs the plan's 8-bit weight cache.
PlanText plan_text(const recipe::Recipe& recipe, const RunPlan& plan, int64_t vocab);

}  // namespace mtrain::plan
