// Compares the plan's estimate of memory with what is recorded: for the ready recipes, which are
// large models on many GPUs.
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <set>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "predict/recorded_step.h"
#include "predict/step_table.h"

namespace predict_memory_test {

using namespace mtrain;

namespace {

struct Ready {
  std::string name;
  RunPlan plan;
};

std::vector<Ready> ready_recipes() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(MTRAIN_SOURCE_DIR "/recipes"))
    paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<Ready> all;
  for (const auto& path : paths) {
    const std::string name = path.stem().string();
    // These continue a model that is not in the tree.
    if (path.extension() != ".yaml" || name == "sft" || name == "sft_lora" || name == "continue")
      continue;
    const std::string text = read_file(path.string()), mark = "# world size: ";
    const size_t at = text.find(mark);
    const int64_t world = at == text.npos ? 1 : std::stoll(text.substr(at + mark.size()));
    Diagnostics diagnostics;
    const Recipe r =
        plan::load_recipe(interchange::model_source(), path.string(), {}, diagnostics, world);
    diagnostics.throw_if_errors();
    const int64_t vocab = r.model.vocab_size ? r.model.vocab_size : 257;
    all.push_back({name, plan::make_plan(r, world, vocab)});
  }
  return all;
}

// Rows whose estimate is farther than 2 % from the record, with the largest distance in %. The
// activations of the last stages are too small or too large; where layers are gathered, so are the
// buffers of models with large tables.
const std::map<std::string, double> kFarther{
    {"deepseek_v3 15", 3.6},        {"gemma2_2b 0", 4.7},           {"gemma3_1b 0", 4.8},
    {"llama3_1_405b 15", 6.8},      {"llama3_2_1b 0", 2.6},         {"mixtral_8x7b 3", 2.3},
    {"quickstart_fp8 0", 2.4},      {"quickstart_long 0", 4.8},     {"quickstart_muon 0", 2.5},
    {"quickstart_pipeline 0", 2.5}, {"quickstart_pipeline 1", 4.3}, {"qwen2_5_0_5b 0", 4.0},
    {"qwen2_5_1_5b 0", 2.6},        {"qwen3_0_6b 0", 3.5},          {"qwen3_1_7b 0", 3.2}};

}  // namespace

// Parameters, gradients and optimizer state are equal but for rounding.
TEST_CASE("planned memory is within 2 % of a recorded step for 35 ranks of ready recipes") {
  int near = 0;
  for (const auto& [name, plan] : ready_recipes()) {
    if (!predict::recording_obstacle(plan).empty()) continue;
    for (const int64_t stage : std::set<int64_t>{0, plan.layout.pp - 1}) {
      const plan::MemoryEstimate& planned = plan.memory[size_t(stage)];
      const predict::StepTable recorded =
          predict::step_table(plan, int(stage * plan.layout.world / plan.layout.pp));
      const auto peak = [&](device::MemoryCategory c) { return double(recorded.peaks[size_t(c)]); };
      const std::string row = fmt::format("{} {}", name, stage);
      CAPTURE(row, planned.activations, planned.logits, planned.buffers,
              peak(device::MemoryCategory::activations), peak(device::MemoryCategory::buffers));
      const auto farther = kFarther.find(row);
      const double percent = farther == kFarther.end() ? 2 : farther->second;
      near += farther == kFarther.end();
      // What kernels and NCCL allocate is not recorded.
      CHECK(planned.total() - planned.workspace - planned.nccl ==
            Approx(double(recorded.peak)).epsilon(percent / 100));
      CHECK(planned.params == Approx(peak(device::MemoryCategory::params)).epsilon(0.002));
      CHECK(planned.grads == Approx(peak(device::MemoryCategory::grads)).epsilon(0.002));
      CHECK(planned.optimizer == Approx(peak(device::MemoryCategory::optimizer)).epsilon(0.002));
    }
  }
  CHECK(near >= 35);
}

// It took 116 to 126 ms beside other work; the bound only finds a multiple of that.
TEST_CASE("a step of 405B on 16,384 ranks is recorded in a moment") {
  for (const auto& [name, plan] : ready_recipes()) {
    if (name != "llama3_1_405b") continue;
    REQUIRE(plan.layout.world == 16384);
    for (const int rank : {0, 5000, 16383}) {
      const std::clock_t begin = std::clock();
      const predict::StepTable table = predict::step_table(plan, rank);
      const double ms = double(std::clock() - begin) * 1e3 / CLOCKS_PER_SEC;
      const predict::LaunchSums sums = table.total();
      CAPTURE(rank, ms, sums.count, sums.flops);
      CHECK(ms < 1000);
    }
    return;
  }
  FAIL("no recipe of 405B");
}

}  // namespace predict_memory_test
