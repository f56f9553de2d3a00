// Tests the arithmetic in which a run multiplies bf16 on CPUs: one choice for the full run, also if
// it resumes on another CPU.
#include <catch2/catch.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "kernels/cpu/dispatch.h"
#include "ops/tuning.h"
#include "run/bf16_choice.h"
#include "run/run_checkpoint.h"
#include "storage/state.h"
#include "test/support/damage_testing.h"
#include "test/support/temporary_folder.h"
#include "test/support/train_testing.h"
#include "train/trainer.h"

namespace parity_bf16_choice_test {

using namespace mtrain;
using namespace train_testing;

namespace {

struct Warnings : log::Overlay {
  Warnings() { log::set_overlay(this); }
  ~Warnings() override { log::set_overlay(nullptr); }
  void interrupt(const std::function<void()>& write_line) override { write_line(), ++count; }
  int count = 0;
};

// Makes this CPU behave as one without AVX-512.
struct NarrowCpu {
  NarrowCpu() {
    if (before > kernels::cpu::Isa::avx2) kernels::cpu::set_isa(kernels::cpu::Isa::avx2);
  }
  ~NarrowCpu() { kernels::cpu::set_isa(before); }
  kernels::cpu::Isa before = kernels::cpu::isa();
};

struct Run {
  explicit Run(const std::string& precision, Bf16Arithmetic arithmetic = Bf16Arithmetic::widened,
               bool deterministic = false)
      : recipe(tiny({"mixed_precision.name=" + precision,
                     fmt::format("debug.deterministic={}", deterministic)})),
        device(Device::cpu(1)),
        trainer(make_trainer(*device, recipe, std::make_shared<CountingData>())) {
    device->set_bf16_arithmetic(arithmetic);
  }
  std::vector<double> losses(int steps) {
    std::vector<double> out;
    for (int i = 0; i < steps; ++i) out.push_back(trainer.step().loss);
    return out;
  }
  Recipe recipe;
  std::unique_ptr<Device> device;
  train::Trainer trainer;
};

// Saves a checkpoint after two steps, whose state `change` may change.
std::filesystem::path checkpoint_in(const TemporaryFolder& root, Run& run,
                                    const std::function<void(storage::TrainState&)>& change = {}) {
  run.losses(2);
  const auto folder = run::save_run(run.trainer, root.path);
  if (change) {
    storage::TrainState state = storage::TrainState::load(folder / "state.json");
    change(state);
    state.save(folder / "state.json");
    seal_again(folder, 2);
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
    const auto folder = checkpoint_in(root, saved);
    const Warnings warnings;
    run::resume_run(resumed.trainer, folder);
    CHECK(resumed.device->bf16_arithmetic() == arithmetic);
    CHECK(resumed.losses(2) == saved.losses(2));
    CHECK(warnings.count == 0);
  }
}

TEST_CASE("a checkpoint that names arithmetic which this CPU lacks is loaded, with one warning") {
  // `tiles`, which this CPU lacks, and a word that only a later version could know.
  const std::string saved_as = GENERATE("tiles", "quantum_dots");
  const NarrowCpu cpu;
  const TemporaryFolder root;
  Run saved("bf16_mixed"), resumed("bf16_mixed");
  const auto folder = checkpoint_in(
      root, saved, [&](storage::TrainState& state) { state.set("bf16_arithmetic", saved_as); });
  const Warnings warnings;
  run::resume_run(resumed.trainer, folder);
  CHECK(resumed.device->bf16_arithmetic() == Bf16Arithmetic::widened);
  CHECK(warnings.count == 1);
  // The tolerance of bf16, since the arithmetic may differ.
  check_close(saved.losses(2), resumed.losses(2), 2e-2);
}

TEST_CASE("checkpoints of versions that chose libraries by measuring are read") {
  const char* choices = "64 48 80 1 A-+- bf16 fp32 fp32 onednn\n7 8 9 1 -B-b fp32 fp32 bf16 own\n";
  for (const char* precision : {"fp32", "bf16_mixed"}) {
    const TemporaryFolder root;
    Run saved(precision), resumed(precision);
    const auto folder = checkpoint_in(
        root, saved, [&](storage::TrainState& state) { state.set("matmul_choices", choices); });
    const Warnings warnings;
    run::resume_run(resumed.trainer, folder);
    CHECK(resumed.trainer.steps_done() == 2);
    CHECK(warnings.count == 1);
  }
}

TEST_CASE("debug.deterministic multiplies bf16 as fp32, and a resumed run says so") {
  Run run("bf16_mixed");
  run::choose_bf16_arithmetic(*run.device, run.trainer.control(), run.trainer.plan());
  const Bf16Arithmetic fastest = *run.device->bf16_arithmetic();
  CHECK(fastest == ops::fastest_bf16_arithmetic());
  const TemporaryFolder root;
  const auto folder = checkpoint_in(root, run);
  Run resumed("bf16_mixed", Bf16Arithmetic::widened, true);
  const Warnings warnings;
  run::resume_run(resumed.trainer, folder);
  CHECK(resumed.device->bf16_arithmetic() == Bf16Arithmetic::widened);
  CHECK(warnings.count == (fastest == Bf16Arithmetic::widened ? 0 : 1));
  run::choose_bf16_arithmetic(*run.device, run.trainer.control(), resumed.trainer.plan());
  CHECK(run.device->bf16_arithmetic() == Bf16Arithmetic::widened);
}

TEST_CASE("a run in fp32 chooses nothing and saves nothing of bf16") {
  const TemporaryFolder root;
  Run run("fp32");
  run::choose_bf16_arithmetic(*run.device, run.trainer.control(), run.trainer.plan());
  CHECK(run.device->bf16_arithmetic() == Bf16Arithmetic::widened);
  CHECK_FALSE(storage::TrainState::load(checkpoint_in(root, run) / "state.json")
                  .contains("bf16_arithmetic"));
}

}  // namespace parity_bf16_choice_test
