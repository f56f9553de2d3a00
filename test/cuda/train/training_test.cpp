// Whole trainings on a device that says it is a GPU: every operation takes the CUDA way, over
// cuda_on_cpu, whose definitions of the kernels this program has in place of the library's.
#include <catch2/catch.hpp>

#include "../../cuda_on_cpu/grid.h"
#include "../../unit/train_testing.h"
#include "device/backend.h"
#include "train/model_setup.h"
#include "train/trainer.h"

using namespace mtrain;
using namespace train_testing;

namespace {

// The CPU's streams and memory under a GPU's name. Kernels run on the stream's thread; the fibers'
// engine is for one thread at a time, as a rank's compute stream is.
class GridBackend : public DeviceBackend {
 public:
  std::string description() const override { return "a grid on the CPU"; }
  bool is_cuda() const override { return true; }
  int threads() const override { return 1; }
  std::unique_ptr<StreamBackend> make_stream(const std::string& name) override {
    return cpu_->make_stream(name);
  }
  void* allocate(int64_t bytes) override { return cpu_->allocate(bytes); }
  void release(void* memory, int64_t bytes) override { cpu_->release(memory, bytes); }

 private:
  std::unique_ptr<DeviceBackend> cpu_ = make_cpu_backend(1);
};

std::vector<double> losses(std::unique_ptr<Device> device, const Recipe& recipe, int64_t steps) {
  Trainer trainer(*device, recipe, gpt_config(recipe.model, kVocab, kSeq),
                  std::make_shared<CountingData>());
  std::vector<double> out;
  for (int64_t i = 0; i < steps; ++i) out.push_back(trainer.step().loss);
  return out;
}
std::vector<double> on_cpu(const Recipe& recipe, int64_t steps) {
  return losses(Device::cpu(1, {.stream_sanitizer = true}), recipe, steps);
}
std::vector<double> on_grid(const Recipe& recipe, int64_t steps) {
  const uint64_t before = cpu_grid::grids_run();
  auto out = losses(Device::on(std::make_unique<GridBackend>(), {.stream_sanitizer = true}), recipe,
                    steps);
  REQUIRE(cpu_grid::grids_run() - before > uint64_t(50 * steps));  // else the library's kernels ran
  return out;
}

}  // namespace

TEST_CASE("training on CUDA kernels follows the CPU: 20 losses in fp32") {
  // The numerics contract: 20 losses to 1e-5 relative.
  const Recipe recipe = tiny();
  check_close(on_cpu(recipe, 20), on_grid(recipe, 20), 1e-5);
}

TEST_CASE("training on CUDA kernels follows the CPU in bf16, other blocks and dropout too") {
  for (const auto& changes : std::vector<std::vector<std::string>>{
           {"mixed_precision.name=bf16_mixed"},
           {"mixed_precision.name=bf16_mixed", "model.architecture=gpt2",
            "model.num_query_groups=4", "model.hidden_dropout=0.1", "train.micro_batch_size=3"}}) {
    const Recipe recipe = tiny(changes);
    check_close(on_cpu(recipe, 10), on_grid(recipe, 10), 2e-2);
  }
}
