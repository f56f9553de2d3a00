// Compares whole trainings on the CUDA kernels with trainings on the CPU kernels.
#include <catch2/catch.hpp>

#include "device_under_test.h"
#include "test/support/train_testing.h"
#include "train/trainer.h"

using namespace mtrain;
using namespace train_testing;

namespace {

std::vector<double> losses(std::unique_ptr<Device> device, const Recipe& recipe, int64_t steps) {
  train::Trainer trainer = make_trainer(*device, recipe, std::make_shared<CountingData>());
  std::vector<double> out;
  for (int64_t i = 0; i < steps; ++i) out.push_back(trainer.step().loss);
  if (device->is_cuda()) REQUIRE(workspace_was_of(*device));
  return out;
}
std::vector<double> on_cpu(const Recipe& recipe, int64_t steps) {
  return losses(Device::cpu(1, {.stream_sanitizer = true}), recipe, steps);
}
std::vector<double> on_cuda(const Recipe& recipe, int64_t steps,
                            const device::DeviceOptions& options = {}) {
  const uint64_t before = kernels_run();
  auto out = losses(device_under_test(options), recipe, steps);
  REQUIRE(kernels_run() - before > uint64_t(50 * steps));  // and not others
  return out;
}

}  // namespace

TEST_CASE("training on CUDA kernels follows the CPU: 20 losses in fp32") {
  // The numerics contract: 20 losses to 1e-5 relative.
  for (const Changes& changes :
       {Changes{},
        {"model.activation=gelu", "model.attention_bias=true", "optimizer.name=adam",
         "optimizer.decoupled_weight_decay=false", "distributed.mp_policy.output_dtype=fp32"},
        {"model.norm_placement=post", "model.qk_layernorm=true",
         "model.qk_layernorm_all_heads=true", "model.init_method_std=0.2"},
        {"model.norm_placement=sandwich", "model.layernorm_zero_centered_gamma=true",
         "model.qk_layernorm=true", "model.hidden_dropout=0.1", "model.init_method_std=0.2"},
        {"model.activation=geglu", "model.embedding_multiplier=4",
         "model.final_logit_softcapping=3", "model.attn_logit_softcapping=2",
         "model.query_pre_attn_scalar=5", "model.window_size=7", "model.window_attn_skip_freq=2",
         "model.rotary_base_local=100", "model.init_method_std=0.2"},
        {"model.no_rope_freq=2", "model.activation=geglu", "model.moe.num_experts=4",
         "model.moe.router_topk=2", "model.moe.ffn_hidden_size=40"},
        {"model.moe.num_experts=6", "model.moe.router_topk=2", "model.moe.ffn_hidden_size=40",
         "model.moe.shared_expert_ffn_hidden_size=32", "model.moe.shared_expert_gate=true",
         "model.moe.load_balancing_type=aux_loss", "model.moe.aux_loss_coeff=0.02",
         "model.moe.z_loss_coeff=0.001"}}) {
    CAPTURE(changes);
    const Recipe recipe = tiny(changes);
    check_close(on_cpu(recipe, 20), on_cuda(recipe, 20), 1e-5);
  }
}

TEST_CASE("own attention trains on CUDA kernels without asking cuDNN") {
  for (const char* precision : {"fp32", "bf16_mixed"}) {
    CAPTURE(precision);
    const Recipe recipe = tiny({fmt::format("mixed_precision.name={}", precision)});
    const auto before = cudnn_calls();
    const std::vector<double> own = on_cuda(recipe, 3, {.own_attention = true});
    CHECK(cudnn_calls() == before);
    const std::vector<double> asked = on_cuda(recipe, 3);
    if (before) CHECK(*cudnn_calls() >= *before + 3 * 2);  // the check above can therefore fail
    check_close(asked, own, std::string(precision) == "fp32" ? 1e-5 : 2e-2);
  }
}

TEST_CASE("recomputed modules give the same bits on CUDA kernels") {
  for (const char* family : {"qwen3", "gpt2"}) {
    CAPTURE(family);
    const Changes base{fmt::format("model.architecture={}", family), "model.num_query_groups=4",
                       "mixed_precision.name=bf16_mixed"};
    const Changes again{"recompute.granularity=selective",
                        "recompute.modules=[core_attn,mlp,layernorm]"};
    CHECK(on_cuda(tiny(with(base, again)), 3) == on_cuda(tiny(base), 3));
  }
}

TEST_CASE("kernels that start while the previous one ends give the same bits, in graphs too") {
  constexpr int64_t kSteps = 3;
  const Changes micro{"train.global_batch_size=8", "train.micro_batch_size=2"};
  for (const Changes& changes : {Changes{"mixed_precision.name=bf16_mixed",
                                         "model.architecture=gpt2", "model.hidden_dropout=0.1"},
                                 Changes{"mixed_precision={name: bf16_mixed, fp8: hybrid}",
                                         "model.hidden_size=64", "debug.emulate_fp8=true"}})
    for (const bool graphs : {false, true}) {
      CAPTURE(changes, graphs);
      Recipe recipe = tiny(with(changes, micro));
      recipe.train.device = recipe::DeviceChoice::cuda;
      recipe.train.enable_cuda_graph = graphs;
      const auto before = dependent_launches();
      const auto in_order = on_cuda(recipe, kSteps);
      CHECK(dependent_launches() == before);
      CHECK(on_cuda(recipe, kSteps, {.dependent_launch = true}) == in_order);
      // More than five for each layer, forward and backward.
      if (before) CHECK(*dependent_launches() > *before + 5 * 2 * 2 * kSteps);
    }
}

TEST_CASE("a group of one rank copies on the device") {
  const auto device = device_under_test();
  Stream& stream = device->stream(device::StreamKind::compute);
  const Group alone = comm::World::alone().world_group();
  const Tensor in = Tensor::from_host<float>(stream, {3}, {1, 2, 3});
  const auto copied = [&](const std::function<void(const Tensor& out)>& run) {
    const Tensor out = Tensor::from_host<float>(stream, {3}, {0, 0, 0});
    run(out);
    return out.to_host<float>(stream);
  };
  const std::vector<float> same{1, 2, 3};
  CHECK(copied([&](const Tensor& out) { alone.all_gather(in, out, stream); }) == same);
  CHECK(copied([&](const Tensor& out) { alone.all_to_all(in, out, stream); }) == same);
  CHECK(copied([&](const Tensor& out) {
          alone.reduce_scatter(in, out, comm::Reduce::sum, stream);
        }) == same);
}

TEST_CASE("training on CUDA kernels by graphs follows the single launches") {
  struct Case {
    std::vector<std::string> changes;
    int64_t replays;
  };
  // Before the capture, single launches run the first micro-batch of a step and one that adds to
  // it, and the first step of delayed scaling, whose launches differ.
  for (const Case& c : std::vector<Case>{
           {{"model.hidden_dropout=0.1", "model.embedding_dropout=0.1"}, 40 - 2},
           {{"mixed_precision.name=fp16_mixed", "optimizer.loss_scale_window=4"}, 40 - 2},
           {{"model.moe.num_experts=6", "model.moe.router_topk=2", "model.moe.ffn_hidden_size=40"},
            40 - 2},
           {{"mixed_precision={name: bf16_mixed, fp8: hybrid}", "model.hidden_size=64",
             "debug.emulate_fp8=true", "optimizer.lr=2e-3"},
            40 - 2},
           {{"mixed_precision={name: bf16_mixed, fp8: hybrid, fp8_recipe: delayed}",
             "model.hidden_size=64", "debug.emulate_fp8=true", "optimizer.lr=2e-3"},
            36 - 2}}) {
    std::vector<std::string> changes = c.changes;
    changes.insert(changes.end(), {"train.global_batch_size=8", "train.micro_batch_size=2"});
    Recipe recipe = tiny(changes);
    recipe.train.device = recipe::DeviceChoice::cuda;
    recipe.train.enable_cuda_graph = false;
    const auto single = on_cuda(recipe, 10);
    recipe.train.enable_cuda_graph = true;
    const auto device = device_under_test();
    train::Trainer trainer = make_trainer(*device, recipe, std::make_shared<CountingData>());
    std::vector<double> by_graphs;
    for (int i = 0; i < 10; ++i) by_graphs.push_back(trainer.step().loss);
    REQUIRE(trainer.graphs());
    INFO(trainer.graphs()->take_failure());
    CHECK(trainer.graphs()->replays() == c.replays);
    check_close(single, by_graphs, 1e-5);
    // The same with a graph of each step's micro-batches, and one of its update.
    recipe.train.cuda_graph_scope = recipe::GraphScope::full_iteration;
    train::Trainer whole = make_trainer(*device, recipe, std::make_shared<CountingData>());
    std::vector<double> by_steps;
    for (int i = 0; i < 10; ++i) by_steps.push_back(whole.step(i < 9).loss);
    INFO(whole.graphs()->take_failure());
    CHECK(whole.graphs()->replays() >= 8);
    CHECK(whole.graphs()->update_replays() == 9);
    check_close(single, by_steps, 1e-5);
  }
}

TEST_CASE(
    "training on CUDA kernels follows the CPU in 16 bits, other blocks, 8 bits and dropout too") {
  for (const auto& changes : std::vector<std::vector<std::string>>{
           {"mixed_precision.name=bf16_mixed"},
           {"mixed_precision.name=bf16_mixed", "optimizer.master_weights=false"},
           {"mixed_precision.name=fp16_mixed", "optimizer.loss_scale_window=4"},
           {"mixed_precision.name=bf16_mixed", "model.architecture=gpt2",
            "model.num_query_groups=4", "model.hidden_dropout=0.1", "train.micro_batch_size=3"},
           {"mixed_precision={name: bf16_mixed, fp8: hybrid}", "model.hidden_size=64",
            "optimizer.lr=2e-3", "debug.emulate_fp8=true"},
           {"mixed_precision={name: bf16_mixed, fp8: hybrid, fp8_recipe: delayed}",
            "model.hidden_size=64", "debug.emulate_fp8=true", "optimizer.lr=2e-3",
            "train.micro_batch_size=1"},
           {"mixed_precision={name: bf16_mixed, fp8: hybrid, fp8_recipe: delayed}",
            "model.hidden_size=64", "debug.emulate_fp8=true", "optimizer.lr=2e-3",
            "model.norm_placement=sandwich", "model.activation=geglu",
            "model.init_method_std=0.1"}}) {
    const Recipe recipe = tiny(changes);
    check_close(on_cpu(recipe, 10), on_cuda(recipe, 10), 2e-2);
  }
}
