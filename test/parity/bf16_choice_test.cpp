// How a run multiplies bf16 on CPUs: one choice for its whole life, whatever it is resumed on.
#include <catch2/catch.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "../unit/temporary_folder.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/state.h"
#include "ops/tuning.h"
#include "train/bf16_choice.h"
#include "train/model_setup.h"
#include "train/snapshot.h"
#include "train/trainer.h"
#include "train_testing.h"

using namespace mtrain;
using namespace train_testing;

namespace {

struct Warnings : log::Overlay {
  Warnings() { log::set_overlay(this); }
  ~Warnings() override { log::set_overlay(nullptr); }
  void interrupt(const std::function<void()>& write_line) override { write_line(), ++count; }
  int count = 0;
};

struct Run {
  explicit Run(const std::string& precision, Bf16Arithmetic arithmetic = Bf16Arithmetic::widened)
      : recipe(tiny({"mixed_precision.name=" + precision})),
        device(Device::cpu(1)),
        trainer(*device, recipe, gpt_config(recipe.model, kVocab, kSeq),
                std::make_shared<CountingData>()) {
    device->set_bf16_arithmetic(arithmetic);
  }
  std::vector<double> losses(int steps) {
    std::vector<double> out;
    for (int i = 0; i < steps; ++i) out.push_back(trainer.step().loss);
    return out;
  }
  Recipe recipe;
  std::unique_ptr<Device> device;
  Trainer trainer;
};

// A checkpoint of two steps whose state is written as `change` says.
std::filesystem::path checkpoint(const TemporaryFolder& root, Run& run,
                                 const std::function<void(TrainState&)>& change = {}) {
  run.losses(2);
  const auto folder = save_snapshot(run.trainer, run.recipe, root.path);
  if (change) {
    TrainState state = TrainState::load(folder / "state.json");
    change(state);
    state.save(folder / "state.json");
  }
  return folder;
}

}  // namespace

TEST_CASE("a resumed run multiplies bf16 as the run that saved it") {
  for (const auto arithmetic :
       {Bf16Arithmetic::widened, Bf16Arithmetic::dot_products, Bf16Arithmetic::tiles}) {
    if (!ops::supports(arithmetic)) continue;
    INFO(bf16_arithmetic_name(arithmetic));
    const TemporaryFolder root;
    Run saved("bf16_mixed", arithmetic), resumed("bf16_mixed");
    const auto folder = checkpoint(root, saved);
    const Warnings warnings;
    load_snapshot(resumed.trainer, resumed.recipe, folder);
    CHECK(resumed.device->bf16_arithmetic() == arithmetic);
    CHECK(resumed.losses(2) == saved.losses(2));
    CHECK(warnings.count == 0);
  }
}

TEST_CASE("a checkpoint that names what this CPU lacks is taken, with one warning") {
  const TemporaryFolder root;
  Run saved("bf16_mixed"), resumed("bf16_mixed");
  const auto folder = checkpoint(
      root, saved, [](TrainState& state) { state.set("bf16_arithmetic", "quantum_dots"); });
  const Warnings warnings;
  load_snapshot(resumed.trainer, resumed.recipe, folder);
  CHECK(ops::supports(resumed.device->bf16_arithmetic()));
  CHECK(warnings.count == 1);
  // The contract of bf16, since the arithmetic may be another.
  check_close(saved.losses(2), resumed.losses(2), 2e-2);
}

TEST_CASE("checkpoints of versions that chose libraries by measuring are read") {
  const char* choices = "64 48 80 1 A-+- bf16 fp32 fp32 onednn\n7 8 9 1 -B-b fp32 fp32 bf16 own\n";
  for (const char* precision : {"fp32", "bf16_mixed"}) {
    const TemporaryFolder root;
    Run saved(precision), resumed(precision);
    const auto folder =
        checkpoint(root, saved, [&](TrainState& state) { state.set("matmul_choices", choices); });
    const Warnings warnings;
    load_snapshot(resumed.trainer, resumed.recipe, folder);
    CHECK(resumed.trainer.steps_done() == 2);
    CHECK(warnings.count == 1);
  }
}

TEST_CASE("debug.deterministic and fp32 leave bf16 instructions out") {
  Run run("bf16_mixed", Bf16Arithmetic::widened);
  Recipe deterministic = run.recipe;
  deterministic.debug.deterministic = true;
  choose_bf16_arithmetic(*run.device, run.trainer.control(), deterministic);
  CHECK(run.device->bf16_arithmetic() == Bf16Arithmetic::widened);
  choose_bf16_arithmetic(*run.device, run.trainer.control(), run.recipe);
  CHECK(run.device->bf16_arithmetic() == ops::fastest_bf16_arithmetic());
}
