// Compares multi-token prediction with a float64 reference, which scripts/golden/mtp.py has
// computed, and every layout with a single rank. Runs under the stream sanitizer.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "model/param/parameters.h"
#include "storage/safetensors.h"
#include "test/support/comm_testing.h"
#include "token_prediction_testing.h"

namespace parity_token_prediction_test {

using namespace mtrain;
using namespace token_prediction_testing;

namespace {

// The samples of a golden case.
class GoldenIds : public data::Dataset {
 public:
  explicit GoldenIds(const storage::SafetensorsReader& file)
      : samples_(file.shape("labels")[0]), length_(file.shape("labels")[1]) {
    for (auto [name, ids] : {std::pair{"input_ids", &input_}, std::pair{"labels", &label_}}) {
      ids->resize(size_t(samples_ * length_));
      file.read_bytes(name, 0, int64_t(ids->size() * sizeof(int32_t)), ids->data());
    }
  }
  int64_t seq_length() const override { return length_; }
  int64_t size() const override { return samples_; }
  void sample(int64_t index, data::Sample& out) const override {
    const int64_t first = index % samples_ * length_;
    out.input.assign(input_.begin() + first, input_.begin() + first + length_);
    out.label.assign(label_.begin() + first, label_.begin() + first + length_);
    out.position.clear();
    for (int64_t s = 0; s < length_; ++s) out.position.push_back(int32_t(s));
  }

 private:
  int64_t samples_, length_;
  std::vector<int32_t> input_, label_;
};

Recipe golden_recipe(const storage::SafetensorsReader& file, int64_t seq, const Changes& changes) {
  nlohmann::json config = nlohmann::json::parse(file.metadata().at("config"));
  if (config.contains("moe")) config["moe"].erase("expert_capacity_factor");
  Diagnostics diagnostics;
  Changes all{"tokenizer={type: huggingface, path: unused}",
              fmt::format("dataset.seq_length={}", seq),
              "dataset.train=unused",
              "train.run_dir=unused",
              "train.steps=1",
              "train.global_batch_size=2",
              "train.micro_batch_size=2",
              "optimizer.clip_grad=0",
              "mixed_precision.name=fp32"};
  Recipe r =
      plan::load_recipe_text(interchange::model_source(), nlohmann::json{{"model", config}}.dump(),
                             "golden", with(all, changes), diagnostics, 1);
  INFO(diagnostics.text(recipe::Severity::error));
  REQUIRE_FALSE(diagnostics.has_errors());
  return r;
}

std::vector<float> floats(const storage::SafetensorsReader& file, const std::string& name) {
  std::vector<float> out(size_t(file.info(name).count()));
  file.read(name, 0, int64_t(out.size()), out.data());
  return out;
}

struct Model {
  const char* name;
  Changes changes;
  bool experts = false;
};
const std::vector<Model> kModels{
    {"two depths", {"model.mtp_num_layers=2"}},
    {"tied", {"model.mtp_num_layers=1", "model.share_embeddings_and_output_weights=true"}},
    {"tied, a repeated layer",
     {"model.mtp_num_layers=2", "model.mtp_use_repeated_layer=true",
      "model.share_embeddings_and_output_weights=true"}},
    {"latent attention and experts, a repeated layer",
     with(with(kLatent, kFewExperts),
          {"model.mtp_num_layers=2", "model.mtp_use_repeated_layer=true"}),
     true},
    {"latent attention and experts", with(with(kLatent, kFewExperts), {"model.mtp_num_layers=1"}),
     true}};

struct Layout {
  const char* name;
  int ranks;
  Changes changes;
  bool experts = false;  // only for models with experts
};
const std::vector<Layout> kLayouts{
    {"tp 2", 2, {"distributed.tp_size=2"}},
    {"tp 2 sp", 2, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
    {"cp 2 p2p", 2, {"distributed.cp_size=2"}},
    {"cp 2 a2a", 2, {"distributed.cp_size=2", "distributed.cp_comm_type=a2a"}},
    {"cp 2 all_gather", 2, {"distributed.cp_size=2", "distributed.cp_comm_type=all_gather"}},
    {"pp 2", 2, {"distributed.pp_size=2", "distributed.pipeline={}"}},
    {"pp 2, gpipe", 2, {"distributed.pp_size=2", "distributed.pipeline={pp_schedule: gpipe}"}},
    {"pp 2, zero bubble",
     2,
     {"distributed.pp_size=2", "distributed.pipeline={pp_schedule: zero_bubble}"}},
    {"pp 2, interleaved",
     2,
     {"distributed.pp_size=2", "distributed.vpp_size=2",
      "distributed.pipeline={pp_schedule: interleaved_1f1b}"}},
    {"pp 2, looped_bfs",
     2,
     {"distributed.pp_size=2", "distributed.vpp_size=2",
      "distributed.pipeline={pp_schedule: looped_bfs}"}},
    {"pp 2, v_schedule",
     2,
     {"distributed.pp_size=2", "distributed.vpp_size=2",
      "distributed.pipeline={pp_schedule: v_schedule}"}},
    {"pp 2, dualpipev",
     2,
     {"distributed.pp_size=2", "distributed.vpp_size=2",
      "distributed.pipeline={pp_schedule: dualpipev}"}},
    {"pp 2, interleaved, fsdp2 2",
     4,
     {"distributed.pp_size=2", "distributed.vpp_size=2", "distributed.strategy=fsdp2",
      "distributed.pipeline={pp_schedule: interleaved_1f1b}"}},
    {"pp 2, megatron_ddp 2, tp 2 sp",
     8,
     {"distributed.pp_size=2", "distributed.tp_size=2", "distributed.sequence_parallel=true",
      "distributed.pipeline={}", "distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"}},
    {"ddp 2", 2, {"distributed.strategy=ddp"}},
    {"megatron_ddp 2", 2, kMegatron},
    {"megatron_fsdp 2", 2, {"distributed.strategy=megatron_fsdp"}},
    {"fsdp2 2", 2, kFsdp2},
    {"fsdp2 2, reduced in each micro-batch", 2, kAtOnce},
    {"fsdp2 2, recomputed", 2, with(kAtOnce, {"recompute=full"})},
    {"recompute all", 1, {"recompute=full"}},
    {"recompute groups", 1, {"recompute=full", "recompute.num_layers=2"}},
    {"recompute some", 1, {"recompute=selective", "recompute.modules=[core_attn, layernorm]"}},
    {"ep 2", 2, {"distributed.ep_size=2"}, true},
    {"ep 2, fsdp2", 2, {"distributed.ep_size=2", "distributed.strategy=fsdp2"}, true},
    {"ep 2, pairs of passes",
     2,
     {"distributed.ep_size=2", "train.micro_batch_size=1",
      "comm_overlap.overlap_moe_expert_parallel_comm=true"},
     true},
    {"ep 2, pairs of passes, weight gradients later",
     2,
     {"distributed.ep_size=2", "train.micro_batch_size=1",
      "comm_overlap.overlap_moe_expert_parallel_comm=true",
      "comm_overlap.delay_wgrad_compute=true"},
     true},
    {"ep 2, pp 2, dualpipev, pairs of passes",
     4,
     {"distributed.ep_size=2", "distributed.pp_size=2", "distributed.vpp_size=2",
      "train.micro_batch_size=1", "distributed.pipeline={pp_schedule: dualpipev}",
      "comm_overlap.overlap_moe_expert_parallel_comm=true"},
     true},
    {"ep 2, pp 2",
     4,
     {"distributed.ep_size=2", "distributed.pp_size=2", "distributed.pipeline={}"},
     true}};

}  // namespace

TEST_CASE("losses of all depths and their gradients are those of the float64 reference") {
  for (const std::string name : {"dense", "tied_repeated", "latent_experts"})
    for (const Changes& changes : {Changes{}, Changes{"recompute=full"}}) {
      const storage::SafetensorsReader file(std::string(MTRAIN_SOURCE_DIR) + "/test/golden/mtp/" +
                                            name + ".safetensors");
      const auto data = std::make_shared<GoldenIds>(file);
      const Recipe r = golden_recipe(file, data->seq_length(), changes);
      const auto device = Device::cpu(2, {.stream_sanitizer = true});
      train::Trainer trainer =
          make_trainer(*device, r, data, comm::World::alone(), r.model.vocab_size);
      trainer.change_weights([&] {
        for (model::Parameter* p : trainer.params().params())
          model::ParamStore::set_master(trainer.compute(), *p, floats(file, p->name));
      });
      const train::StepStats s = trainer.step();
      std::vector<double> losses{s.loss};
      losses.insert(losses.end(), s.mtp_losses.begin(), s.mtp_losses.end());
      CAPTURE(name, changes);
      check_close(nlohmann::json::parse(file.metadata().at("losses")).get<std::vector<double>>(),
                  losses, 1e-6);
      const double share = 1 - r.optimizer.betas[0];  // of the gradient in the first moments
      for (const auto& [parameter, got] : first_gradients(trainer)) {
        CAPTURE(parameter);
        const std::vector<float> want = floats(file, "grad." + parameter);
        REQUIRE(got.size() >= want.size());
        double difference = 0, length = 0;
        for (size_t i = 0; i < want.size(); ++i) {
          difference += std::pow(double(got[i]) / share - double(want[i]), 2);
          length += std::pow(double(want[i]), 2);
        }
        CHECK(std::sqrt(difference) <= 1e-5 * std::sqrt(length));
      }
    }
}

TEST_CASE("multi-token prediction trains alike under every layout") {
  for (const Model& model : kModels) {
    const Losses one = train_layout(1, model.changes, compared_steps(20))[0];
    CHECK(one.result.losses.back() < one.result.losses.front());
    CHECK(one.further.back() < one.further.front());
    for (const Layout& layout : kLayouts) {
      if (layout.experts && !model.experts) continue;
      CAPTURE(model.name, layout.name);
      const auto ranks =
          train_layout(layout.ranks, with(model.changes, layout.changes), compared_steps(20));
      // The numerics contract: losses to 1e-5 relative in fp32.
      expect_same(one, ranks);
      check_close(one.result.norms, ranks[0].result.norms, 1e-4);
    }
  }
}

TEST_CASE("multi-token prediction trains packed documents alike under context parallelism") {
  const Changes packed{"model.mtp_num_layers=2", "packed_sequence.packed_sequence_size=24"};
  const auto data = std::make_shared<PackedCountingData>();
  const Losses one = train_layout(1, packed, compared_steps(20), data)[0];
  for (const char* type : {"p2p", "all_gather", "a2a"}) {
    CAPTURE(type);
    const auto ranks = train_layout(
        2,
        with(packed, {"distributed.cp_size=2", fmt::format("distributed.cp_comm_type={}", type)}),
        compared_steps(20), data);
    check_close(one.result.losses, ranks[0].result.losses, 1e-5);
    check_close(one.further, ranks[0].further, 1e-5);
  }
}

TEST_CASE("a factor of 0 leaves the loss of the next token as it is without prediction") {
  const Losses without = train_layout(1, {"model.mtp_loss_scaling_factor=0.1"}, 8)[0],
               with_it = train_layout(1,
                                      {"model.mtp_num_layers=1", "model.mtp_loss_scaling_factor=0",
                                       "optimizer.clip_grad=0"},
                                      8)[0],
               unclipped = train_layout(1, {"optimizer.clip_grad=0"}, 8)[0];
  CHECK(without.further.empty());
  CHECK(with_it.further.size() == 8);
  check_close(unclipped.result.losses, with_it.result.losses, 1e-6);
}

}  // namespace parity_token_prediction_test
