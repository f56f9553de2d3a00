// Small models of all families with latent attention: gradients, losses and three steps of AdamW
// are those of transformers and PyTorch. Runs under the stream sanitizer.
#include <catch2/catch.hpp>

#include "checkpoint/read_weights.h"
#include "golden_ids.h"
#include "interchange/hf_folder.h"
#include "interchange/model_source.h"
#include "recipe/model_spec.h"
#include "storage/safetensors.h"
#include "test/support/comm_testing.h"
#include "test/support/interchange_testing.h"
#include "test/support/train_testing.h"
#include "train_ranks.h"

namespace parity_latent_goldens_test {

using namespace mtrain;
using namespace train_testing;

namespace {

const std::vector<std::string> kFamilies{"deepseek_v3", "deepseek_v2_lite", "deepseek_v2_limited",
                                         "glm4_moe_lite"};

// A training that begins with a golden folder and trains on its ids.
class GoldenRun {
 public:
  GoldenRun(const std::string& name, const Changes& changes)
      : name_(name),
        data_(std::make_shared<GoldenIds>(storage::SafetensorsReader(expected("")))),
        recipe_(load(changes)),
        device_(Device::cpu(2, {.stream_sanitizer = true})),
        trainer_(make_trainer(*device_, recipe_, data_, comm::World::alone(),
                              recipe_.model.vocab_size)) {
    checkpoint::start_from(trainer_.checkpoint_parts(),
                           *interchange::open_hf_folder(golden_hf() / name).source());
  }

  const Recipe& recipe() const { return recipe_; }
  train::Trainer& trainer() { return trainer_; }

  // The file of what the model must compute, such as "_gradients".
  std::filesystem::path expected(const std::string& what) const {
    return golden_hf() / "expected" / (name_ + what + ".safetensors");
  }

  // The tensors of that file, under mtrain's names.
  interchange::HfSource wanted(const std::string& what) const {
    return {std::make_shared<storage::SafetensorsReader>(expected(what)),
            interchange::TensorMap(
                recipe::model_spec(recipe_.model),
                *interchange::find_family(std::string(enum_name(recipe_.model.architecture))),
                {.fused = true})};
  }

 private:
  Recipe load(const Changes& changes) const {
    Diagnostics diagnostics;
    Recipe r = plan::load_recipe_text(
        interchange::model_source(), "model: {}\n", "golden",
        with({"model.from=" + (golden_hf() / name_).string(),
              "tokenizer={type: huggingface, path: unused}",
              fmt::format("dataset.seq_length={}", data_->seq_length()), "dataset.train=unused",
              "train.run_dir=unused", "train.global_batch_size=2", "train.micro_batch_size=2",
              "optimizer.clip_grad=0", "optimizer.lr=1e-2", "optimizer.weight_decay=0.1",
              "optimizer.betas=[0.9, 0.95]", "optimizer.eps=1e-8", "train.steps=20",
              "lr_scheduler={style: constant, warmup_steps: 0}"},
             changes),
        diagnostics, 1);
    REQUIRE(diagnostics.text(recipe::Severity::error) == "");
    return r;
  }

  const std::string name_;
  const std::shared_ptr<GoldenIds> data_;
  const Recipe recipe_;
  const std::unique_ptr<Device> device_;
  train::Trainer trainer_;
};

std::vector<float> read_all(const storage::ValueSource& source, const std::string& name) {
  std::vector<float> values(size_t(source.shape(name).count()));
  source.read(name, 0, int64_t(values.size()), values.data());
  return values;
}

std::vector<double> golden_losses(const std::filesystem::path& file) {
  std::vector<double> losses(4);
  storage::SafetensorsReader(file).read_bytes("losses", 0, 4 * sizeof(double), losses.data());
  return losses;
}

double length(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += std::pow(double(a[i]) - double(b[i]), 2);
  return std::sqrt(squares);
}

std::map<std::string, std::vector<float>> weights(train::Trainer& t) {
  std::map<std::string, std::vector<float>> all;
  for (model::ParamUnit* unit : t.params().units()) {
    const Tensor master = full_master(t.data_parallel(), *unit);
    for (const model::Parameter* p : unit->params)
      all[p->name] = master.flat(p->begin, {p->real_count()}).to_host_float(t.compute());
  }
  return all;
}

}  // namespace

TEST_CASE("gradients of latent attention are those of transformers") {
  for (const std::string& name : kFamilies) {
    GoldenRun run(name, {"mixed_precision.name=fp32"});
    run.trainer().step();
    const double share = 1 - run.recipe().optimizer.betas[0];  // of the gradient in first moments
    const interchange::HfSource want = run.wanted("_gradients");
    for (auto& [parameter, got] : first_gradients(run.trainer())) {
      CAPTURE(name, parameter);
      for (float& g : got) g = float(double(g) / share);
      const std::vector<float> values = read_all(want, parameter);
      CHECK(length(got, values) <= 1e-5 * length(values, std::vector<float>(values.size())));
    }
  }
}

TEST_CASE("three steps of AdamW with latent attention are those of PyTorch") {
  for (const std::string& name : kFamilies) {
    GoldenRun run(name, {"mixed_precision.name=fp32"});
    const auto before = weights(run.trainer());
    std::vector<double> losses;
    for (int i = 0; i < 3; ++i) losses.push_back(run.trainer().step().loss);
    const auto after = weights(run.trainer());
    losses.push_back(run.trainer().step().loss);
    CAPTURE(name);
    check_close(golden_losses(run.expected("_adamw")), losses, 1e-5);
    const interchange::HfSource want = run.wanted("_adamw");
    for (const auto& [parameter, got] : after) {
      CAPTURE(parameter);
      // AdamW divides a gradient by its size. One that is near zero keeps the error of its sum, so
      // the changes of three steps agree less well than the gradients.
      const std::vector<float> values = read_all(want, parameter);
      CHECK(length(got, values) <= 1e-3 * length(values, before.at(parameter)));
    }
  }
}

TEST_CASE("latent attention in bf16 has the losses of fp64") {
  for (const std::string& name : kFamilies) {
    GoldenRun run(name, {"mixed_precision.name=bf16_mixed"});
    std::vector<double> losses;
    for (int i = 0; i < 3; ++i) losses.push_back(run.trainer().step().loss);
    std::vector<double> want = golden_losses(run.expected("_adamw"));
    want.resize(3);
    CAPTURE(name);
    // The numerics contract: losses to 2e-2.
    check_close(want, losses, 2e-2);
  }
}

}  // namespace parity_latent_goldens_test
