// A table of the sizes that NVIDIA NeMo AutoModel's guide to distributed training recommends for a
// model, and advice where a recipe departs from it.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "plan/plan_trial.h"

namespace mtrain::plan {

constexpr int64_t kAnySize = std::numeric_limits<int64_t>::max();
constexpr int64_t kNode = kAnySize - 1;  // the GPUs of a node; a rule warns of larger sizes

// The sizes from `low` to `high`; {0, 0} if the guide does not give any.
struct SizeRange {
  int64_t low = 0, high = 0;
  bool given() const { return high > 0; }
  // Returns a text such as "2 to 4"; "any" if no size is given.
  std::string text() const;
};

struct GuideRow {
  enum class Models { dense, experts, all };
  const char* condition;  // as documents and advice name it
  Models models = Models::all;
  double from = 0, below = std::numeric_limits<double>::infinity();             // total parameters
  int64_t length_from = 0, length_below = std::numeric_limits<int64_t>::max();  // of a sequence
  SizeRange tp = {}, pp = {}, cp = {}, ep = {};
};

std::span<const GuideRow> sizing_guide();
// Whether the row is for models like that of the plan, and for its length of sequences.
bool applies(const GuideRow& row, const RunPlan& plan);

// Returns the table in Markdown, for docs/parallelism.md.
std::string sizing_guide_table();

// Returns a line for each row of the guide that speaks against the recipe. Each names an override
// that the rules accept and whose plan fits. A size below the row's range counts only if the plan
// does not fit, and a larger one only if the range fits, too. There is no advice without a known
// memory, on CPUs, or for models that only try things out. `plan` is the plan of `recipe`.
std::vector<std::string> sizing_advice(const RecipeSource& source, const Recipe& recipe,
                                       const RunPlan& plan);

}  // namespace mtrain::plan
