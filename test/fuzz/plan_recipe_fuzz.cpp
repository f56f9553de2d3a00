// Any bytes are loaded as a recipe, with overrides after 0xff bytes, or are refused. A loaded
// recipe can be planned, and is printed as text that loads to the same recipe.
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/strings.h"
#include "interchange/model_source.h"
#include "plan/layout.h"
#include "plan/load_recipe.h"
#include "plan/overlap.h"
#include "plan/run_plan.h"

using namespace mtrain;
using namespace mtrain::plan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const int64_t world = data[0];
  const std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<std::string> overrides = split(input, '\xff');
  const std::string text = overrides.front();
  overrides.erase(overrides.begin());
  if (overrides.size() > 8) overrides.resize(8);
  Diagnostics diagnostics;
  const Recipe r = load_recipe_text(interchange::model_source(), text, "fuzz.yaml", overrides,
                                    diagnostics, world);
  if (diagnostics.has_errors()) {
    MT_CHECK(!diagnostics.text(recipe::Severity::error).empty());
    return 0;
  }
  const RunPlan plan = make_plan(r, world, std::max<int64_t>(1, r.model.vocab_size));
  const plan::MemoryEstimate& memory = plan.fullest();
  MT_CHECK(std::isfinite(memory.total()) && memory.total() >= 0, "{}", memory.total());
  Diagnostics again;
  const Recipe same = load_recipe_text(interchange::model_source(), print_recipe(r), "printed.yaml",
                                       {}, again, world);
  MT_CHECK(!again.has_errors(), "{}", again.text(recipe::Severity::error));
  MT_CHECK(print_recipe(same, false) == print_recipe(r, false));
  return 0;
}
