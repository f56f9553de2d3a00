// Tests the banner's rows of memory and recomputation.
#include <catch2/catch.hpp>

#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "run/start_banner.h"

namespace run_start_banner_test {

using namespace mtrain;
using Catch::Matchers::Contains;

TEST_CASE("the banner reports a plan that exceeds the memory of the open GPU") {
  Diagnostics diagnostics;
  const Recipe loaded =
      plan::load_recipe(interchange::model_source(), MTRAIN_SOURCE_DIR "/recipes/llama3_8b.yaml",
                        {"train.device=cuda", "recompute=full"}, diagnostics, 64);
  diagnostics.throw_if_errors();
  const RunPlan plan = plan::make_plan(loaded, 64, loaded.model.vocab_size);
  const auto row = [&](const char* label, double device_memory) {
    for (const observe::BannerRow& r : run::plan_rows(plan, device_memory))
      if (r.label == label) return r.text;
    return std::string();
  };
  CHECK_THAT(row("memory", 16e9), Contains("does not fit the device's 14.9 GiB: "));
  CHECK_THAT(row("memory", 80e9), !Contains("does not fit") && Contains("planned per rank"));
  // The memory of a device on a CPU is not known.
  CHECK_THAT(row("memory", 0), !Contains("does not fit"));
  CHECK_THAT(row("recompute", 0), Contains("full, groups of 1, +") && Contains("% FLOPs"));
}

}  // namespace run_start_banner_test
