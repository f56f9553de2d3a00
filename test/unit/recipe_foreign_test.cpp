// Tests that recipes of AutoModel and Megatron-Bridge load as their systems print them: their
// names, flags, classes and words, and what is told of keys that have no meaning in mtrain.
#include <filesystem>
#include <fstream>

#include <fmt/core.h>

#include "base/file.h"
#include "recipe/load/find_recipe.h"
#include "recipe/load/flags.h"
#include "recipe_cases.h"
#include "temporary_folder.h"

using namespace mtrain;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

Recipe loaded(const std::string& more, const Overrides& set = {}, int64_t world = 0) {
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe_text(kBase + more, "base.yaml", set, diagnostics, world);
  INFO(listed(diagnostics));
  REQUIRE_FALSE(diagnostics.has_errors());
  return r;
}

Diagnostics told(const std::string& more, int64_t world = 0) {
  Diagnostics diagnostics;
  plan::load_recipe_text(kBase + more, "base.yaml", {}, diagnostics, world);
  return diagnostics;
}

// Some diagnostic of that severity is about `field`, and its text contains `gist`.
void expect_told(const std::string& more, Severity severity, std::string_view field,
                 std::string_view gist) {
  const Diagnostics diagnostics = told(more);
  INFO(more << listed(diagnostics));
  CHECK(std::ranges::any_of(diagnostics.sorted(), [&](const auto& d) {
    return d.severity == severity && d.field == field && d.str().find(gist) != std::string::npos;
  }));
}

}  // namespace

TEST_CASE("Megatron's flags are settings, with dashes and without sections") {
  const auto overrides = [](std::vector<std::string> words) {
    return recipe::flags_to_overrides(words);
  };
  using Words = std::vector<std::string>;
  CHECK(overrides({"--recipe", "r.yaml", "--tp-comm-overlap", "--context-parallel-size", "4"}) ==
        Words{"--recipe", "r.yaml", "tp-comm-overlap=true", "context-parallel-size=4"});
  CHECK(overrides({"--cp-comm-type", "a2a", "p2p", "--dry-run"}) ==
        Words{"cp-comm-type=[a2a, p2p]", "--dry-run"});
  CHECK(overrides({"--overlap-grad-reduce", "train.steps=3"}) ==
        Words{"overlap-grad-reduce=true", "train.steps=3"});
  CHECK(overrides({"--lr=1e-4", "~optimizer.lr", "-r", "x"}) ==
        Words{"lr=1e-4", "~optimizer.lr", "-r", "x"});

  const Recipe r =
      loaded("", {"context-parallel-size=4", "overlap-grad-reduce=true", "train-iters=7",
                  "no-align-param-gather=true", "bf16=true", "adam-beta1=0.8", "adam-beta2=0.99",
                  "lr=1e-4", "swiglu=true", "disable-bias-linear=true", "use-mcore-models=true",
                  "distributed-timeout-minutes=3"});
  CHECK(r.distributed.cp_size == 4);
  CHECK(r.ddp.overlap_grad_reduce == true);
  CHECK(r.distributed.strategy == Strategy::megatron_ddp);
  CHECK(r.train.steps == 7);
  CHECK(r.ddp.align_param_gather == false);
  CHECK(r.optimizer.betas[0] == 0.8);
  CHECK(r.optimizer.betas[1] == 0.99);
  CHECK(r.optimizer.lr == 1e-4);
  CHECK_FALSE(r.model.add_bias_linear);
  CHECK(r.comm.timeout_s == 180);
  expect_error({.what = "two fields", .set = {"steps=3"}}, "steps", "may mean 2 fields");
  expect_error({.what = "no field", .set = {"tensor_parallel_sise=3"}}, "tensor_parallel_sise",
               "no such key");
}

TEST_CASE("the three flags of the fine-grained 1F1B are settings in Megatron's spelling") {
  const Recipe r = loaded(
      "", {"model.pipeline_model_parallel_size=2", "model.virtual_pipeline_model_parallel_size=2",
           "overlap-p2p-backward-on-comm-stream=true", "overlap-p2p-wgrad-delayed-layer-number=2",
           "overlap-p2p-with-transformer-layer-wgrad=true"});
  CHECK(r.comm_overlap.overlap_p2p_backward_on_comm_stream);
  CHECK(r.comm_overlap.overlap_p2p_wgrad_delayed_layer_number == 2);
  CHECK(r.comm_overlap.overlap_p2p_with_transformer_layer_wgrad);
}

TEST_CASE("a pipeline in Megatron's spelling needs no section, in AutoModel's it does") {
  const auto schedule = [](const Overrides& set) {
    return loaded("", set).distributed.pipeline.pp_schedule;
  };
  CHECK(schedule({"model.pipeline_model_parallel_size=4"}) == PipelineScheduleName::one_f_one_b);
  CHECK(schedule({"model.pipeline_model_parallel_size=4",
                  "model.virtual_pipeline_model_parallel_size=2"}) ==
        PipelineScheduleName::interleaved_1f1b);
  CHECK(schedule({"model.pipeline_model_parallel_size=4",
                  "model.num_layers_per_virtual_pipeline_stage=1"}) ==
        PipelineScheduleName::interleaved_1f1b);
  CHECK(schedule({"distributed.pp_size=4", "distributed.strategy=megatron_ddp"}) ==
        PipelineScheduleName::one_f_one_b);
  expect_error({.what = "AutoModel's", .world = 4, .set = {"distributed.pp_size=4"}},
               "distributed.pp_size", "needs a pipeline section");
}

TEST_CASE("sizes of 0, below 0 and null are not set") {
  for (const char* size : {"0", "-1", "none", "null"}) {
    INFO(size);
    const Recipe r =
        loaded(fmt::format("distributed: {{tp_size: {0}, pp_size: {0}, dp_size: {0}, "
                           "dp_replicate_size: {0}, ep_size: {0}}}\n",
                           size));
    CHECK(r.distributed.tp_size == 1);
    CHECK(r.distributed.pp_size == 1);
    CHECK_FALSE(r.distributed.dp_size.has_value());
    CHECK_FALSE(r.distributed.dp_replicate_size.has_value());
  }
  CHECK(loaded("checkpoint: {max_recent_checkpoints: null}\n").checkpoint.keep == 0);
  CHECK(loaded("checkpoint: {most_recent_k: -1}\n").checkpoint.keep == 0);
  CHECK(loaded("checkpoint: {most_recent_k: 3}\n").checkpoint.keep == 3);
}

TEST_CASE("data-parallel settings of Megatron choose its strategy") {
  for (const char* section :
       {"ddp: {}\n", "comm_overlap: {overlap_grad_reduce: true}\n",
        "comm_overlap: {bucket_size: 134217728, overlap_param_gather: true}\n",
        "optimizer: {use_distributed_optimizer: true}\n"}) {
    INFO(section);
    CHECK(loaded(section).distributed.strategy == Strategy::megatron_ddp);
  }
  CHECK(loaded("comm_overlap: {tp_comm_overlap: false}\n").distributed.strategy == Strategy::fsdp2);
  CHECK(loaded("distributed: {strategy: ddp, bucket_cap_mb: 400, static_graph: true}\n")
            .ddp.bucket_size == 400 * 1024 * 1024 / 4);
}

TEST_CASE("a class that a recipe names by _target_ chooses what it names") {
  const auto optimizer = [](const char* text) {
    return loaded(std::string("optimizer: {_target_: ") + text + "}\n").optimizer;
  };
  const OptimizerConfig adam = optimizer("torch.optim.Adam, lr: 1e-5, betas: [0.9, 0.98]");
  CHECK_FALSE(adam.decoupled_weight_decay);
  CHECK(adam.lr == 1e-5);
  CHECK(adam.betas[1] == 0.98);
  CHECK(adam.weight_decay == 0);  // torch's default
  const OptimizerConfig adamw = optimizer("torch.optim.AdamW");
  CHECK(adamw.decoupled_weight_decay);
  CHECK(adamw.weight_decay == 0.01);
  CHECK(adamw.betas[1] == 0.999);
  const OptimizerConfig fused = optimizer(
      "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam, adam_w_mode: true, lr: 2.0e-5, "
      "bias_correction: true, exp_avg_dtype: torch.float32, store_param_remainders: true");
  CHECK(fused.decoupled_weight_decay);
  CHECK(loaded("distributed: {_target_: nemo_automodel.components.distributed.fsdp2.FSDP2Manager, "
               "tp_size: 2, mp_policy: {_target_: torch.distributed.fsdp.MixedPrecisionPolicy, "
               "param_dtype: bfloat16, reduce_dtype: float32}}\n")
            .distributed.tp_size == 2);
  expect_told("optimizer: {_target_: dion.Dion, rank: 3}\n", Severity::error, "optimizer._target_",
              "optimizer.name: adamw or adam");
  expect_told("loss_fn: {_target_: my.loss.Huber, delta: 3}\n", Severity::error, "loss_fn._target_",
              "next-token cross entropy");
  // Data that mtrain cannot read is one mistake: nothing is told of the arguments of its class.
  Diagnostics data;
  plan::load_recipe_text(
      "dataset: {_target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset, "
      "dataset_name: rajpurkar/squad, split: train}\n",
      "r.yaml", {}, data);
  INFO(listed(data));
  CHECK(count(data, Severity::error) == 1);
}

TEST_CASE("a class's own defaults yield to what the recipe says, and its arguments are not lost") {
  CHECK(loaded("optimizer: {_target_: torch.optim.Adam, decoupled_weight_decay: true}\n")
            .optimizer.decoupled_weight_decay);
  CHECK(
      loaded("optimizer: {_target_: torch.optim.Adam}\n", {"optimizer._target_=torch.optim.AdamW"})
          .optimizer.decoupled_weight_decay);
  expect_told("loss_fn: {_target_: torch.nn.CrossEntropyLoss, label_smoothing: 0.1}\n",
              Severity::error, "loss_fn.label_smoothing", "no such key");
  Diagnostics diagnostics;
  const Recipe llama = plan::load_recipe_text(
      "dataset: {train: x, seq_length: 64}\n"
      "model: {config: {_target_: transformers.LlamaConfig, num_hidden_layers: 2}}\n",
      "r.yaml", {}, diagnostics);
  INFO(listed(diagnostics));
  CHECK_FALSE(diagnostics.has_errors());
  CHECK(llama.model.hidden_size == 4096);  // what transformers takes
  CHECK(llama.model.num_layers == 2);
  CHECK(llama.model.norm_epsilon == 1e-6);
  CHECK(loaded("", {"num-layers=4", "ffn-hidden-size=96", "optimizer=adam"}).model.num_layers == 4);
  CHECK(loaded("", {"model.architecture=gpt2", "model.gated_linear_unit=false"}).model.activation ==
        Activation::gelu_tanh);
  expect_told("ddp: {no_align_param_gather: '${env:X,true}'}\n", Severity::error,
              "ddp.no_align_param_gather", "reference");
  expect_told("launch: {env: {CUDA_DEVICE_MAX_CONNECTIONS: 1}}\n", Severity::error, "launch.env",
              "a setting of its own");
  expect_told("launch: {env: {MTRAIN_TOKEN: '${env:HOME}'}}\n", Severity::error, "launch.env",
              "does not belong in a recipe");
  expect_told("dataset.validation: x\n", Severity::warning, "dataset.validation",
              "trained on, too");
}

TEST_CASE("Megatron-Bridge's names of precisions set several fields") {
  const MixedPrecisionConfig p =
      loaded("mixed_precision: bf16_with_fp8_delayed_scaling_mixed\n").mixed_precision;
  CHECK(p.name == Precision::bf16_mixed);
  CHECK(p.fp8 == Fp8Format::hybrid);
  CHECK(p.fp8_recipe == Fp8Recipe::delayed);
  CHECK(p.fp8_amax_history_len == 1024);
  CHECK(p.fp8_amax_compute_algo == Fp8AmaxChoice::max);
  CHECK_FALSE(p.first_last_layers_bf16);
  CHECK(loaded("mixed_precision: bf16_with_fp8_current_scaling_mixed\n")
            .mixed_precision.first_last_layers_bf16);
  expect_told("mixed_precision: bf16_with_fp8_current_scaling_mixed\n", Severity::warning,
              "mixed_precision", "parameters travel in bf16");
  CHECK(loaded("", {"mixed_precision=bf16-with-mxfp8-mixed", "hardware.gpu=b200"})
            .mixed_precision.fp8_recipe == Fp8Recipe::mxfp8);
  CHECK(loaded("", {"mixed_precision.name=fp16-mixed"}).mixed_precision.name ==
        Precision::fp16_mixed);
}

TEST_CASE(
    "keys without a meaning are told once, those that ask for what is not built are refused") {
  expect_told("distributed: {pipeline: {patch_inner_model: false}}\n", Severity::resolved,
              "distributed.pipeline.patch_inner_model", "has no meaning here");
  expect_told("distributed: {multimodal: {frozen_sharding: per_layer}}\n", Severity::warning,
              "distributed.multimodal", "ignored");
  expect_told("distributed: {offload_policy: {pin_memory: true}}\n", Severity::error,
              "distributed.offload_policy", "host memory");
  CHECK_FALSE(told("distributed: {offload_policy: none}\n").has_errors());
  expect_told("peft: {_target_: lora.PeftConfig, dim: 8}\n", Severity::error, "peft", "LoRA");
  expect_told("checkpoint: {model_save_format: torch_save}\n", Severity::warning,
              "checkpoint.model_save_format", "safetensors");
  expect_told("step_scheduler: {num_epochs: 2, max_steps: 9}\n", Severity::warning,
              "step_scheduler.num_epochs", "train.steps");
  CHECK_FALSE(told("step_scheduler: {num_epochs: 2}\n").has_errors());
  for (const char* value : {"false", "final", "every", "true"})
    CHECK_FALSE(told(fmt::format("checkpoint: {{save_consolidated: {}}}\n", value)).has_errors());
  expect_told("checkpoint: {save_consolidated: sometimes}\n", Severity::error,
              "checkpoint.save_consolidated", "choose from");
}

TEST_CASE("Megatron's switch of experts' biases is the gate of the rate beside it") {
  const auto rate = [](const std::string& yaml, const Overrides& set = {}) {
    Overrides all{"model.num_moe_experts=8"};
    all.insert(all.end(), set.begin(), set.end());
    return loaded(yaml, all).model.moe.router_bias_update_rate;
  };
  const std::string on = "model.moe_router_enable_expert_bias: true\n",
                    off = "model.moe_router_enable_expert_bias: false\n",
                    own = "model.moe_router_bias_update_rate: 0.01\n";
  CHECK(rate(on) == 1e-3);  // Megatron's own
  CHECK(rate(off) == 0);
  CHECK(rate(own) == 0.01);
  CHECK(rate(on + own) == 0.01);
  CHECK(rate(own + on) == 0.01);
  CHECK(rate(off + own) == 0);
  CHECK(rate(own + off) == 0);
  CHECK(rate(own, {"model.moe_router_enable_expert_bias=true"}) == 0.01);
  CHECK(rate(own, {"moe-router-enable-expert-bias=false"}) == 0);
  CHECK(rate(on, {"moe-router-bias-update-rate=0.02"}) == 0.02);
  expect_told(off + own, Severity::resolved, "model.moe_router_bias_update_rate", "has no effect");
}

TEST_CASE("settings of experts in the names of other systems act, or are told") {
  const auto moe = [](const Overrides& set) {
    Overrides all{"model.num_moe_experts=8", "model.moe_ffn_hidden_size=64"};
    all.insert(all.end(), set.begin(), set.end());
    return loaded("", all).model.moe;
  };
  using Freq = std::vector<int64_t>;
  CHECK(moe({"model.moe_layer_freq='([0]*1+[1]*7)'"}).layer_freq == Freq{0, 1, 1, 1, 1, 1, 1, 1});
  CHECK(moe({"model.moe_layer_freq='[0]*2 + [1, 0]*3'"}).layer_freq ==
        Freq{0, 0, 1, 0, 1, 0, 1, 0});
  CHECK(moe({"moe-layer-freq=([0,1])*4"}).layer_freq == Freq{0, 1, 0, 1, 0, 1, 0, 1});
  CHECK(moe({"model.moe_layer_freq=2"}).layer_freq == Freq{2});
  std::string side_by_side = "([0])";
  for (int i = 1; i < 32; ++i) side_by_side += i % 4 ? "+([1])" : "+([0])";
  CHECK(moe({fmt::format("model.moe_layer_freq='{}'", side_by_side), "model.num_layers=32"})
            .layer_freq.size() == 32);
  const std::string deep = std::string(21, '(') + "[1]*8" + std::string(21, ')');
  for (const char* bad : {"([0]*1+[1]*26", "[0]*x", "[0]-[1]", "[1]*99999999", deep.c_str()})
    expect_error(
        {.what = bad,
         .set = {"model.num_moe_experts=8", fmt::format("model.moe_layer_freq='{}'", bad)}},
        "model.moe.layer_freq", "");
  // Only Megatron's -1 stands for none.
  for (const char* none : {"-1", "-1.0"})
    CHECK_FALSE(
        moe({std::string("model.moe_expert_capacity_factor=") + none}).expert_capacity_factor);
  expect_error({.what = "negative",
                .set = {"model.num_moe_experts=8", "model.moe_expert_capacity_factor=-1.5"}},
               "model.moe.expert_capacity_factor", "");
  CHECK(moe({"model.moe_expert_capacity_factor=1.5"}).expert_capacity_factor == 1.5);
  CHECK(moe({"model.n_shared_experts=2"}).shared_expert_ffn_hidden_size == 128);
  CHECK_FALSE(moe({"model.n_shared_experts=0"}).shared_expert_ffn_hidden_size);
  expect_error(
      {.what = "two widths",
       .set = {"model.num_moe_experts=8", "model.moe_ffn_hidden_size=64",
               "model.n_shared_experts=2", "model.moe_shared_expert_intermediate_size=64"}},
      "model.moe.num_shared_experts", "2 shared experts of 64 are 128 wide");
  CHECK(loaded("", {"model.qkv_bias=true"}).model.add_qkv_bias);
  for (const char* key : {"moe_flex_dispatcher_backend: deepep", "moe_router_padding_for_fp8: true",
                          "high_priority_a2a_comm_stream: true"}) {
    const std::string text = std::string("model.") + key + "\n";
    expect_told(text, Severity::resolved, text.substr(0, text.find(':')), "has no meaning here");
  }
  expect_told("model.moe_router_padding_for_fp8: true\n", Severity::resolved,
              "model.moe_router_padding_for_fp8", "take any number of rows");
  for (const char* key : {"moe_input_jitter_eps: 0.01", "moe_apply_probs_on_input: true",
                          "moe_layer_recompute: true"}) {
    const std::string text = std::string("model.") + key + "\n";
    expect_told(text, Severity::error, text.substr(0, text.find(':')), "");
  }
  CHECK_FALSE(told("model.moe_input_jitter_eps: null\n").has_errors());
  CHECK_FALSE(told("model.moe_router_force_load_balancing: false\n").has_errors());
}

TEST_CASE("classes of other systems name families with experts") {
  const auto family = [](const std::string& target) {
    return loaded("model._target_: megatron.bridge.models." + target + "\n",
                  {"model.num_moe_experts=8"})
        .model.architecture;
  };
  CHECK(family("mistral.MixtralModelProvider") == Architecture::mixtral);
  CHECK(family("qwen.Qwen2MoEModelProvider") == Architecture::qwen2_moe);
  CHECK(family("qwen.Qwen3MoEModelProvider") == Architecture::qwen3_moe);
  const auto of_config = [](const std::string& name) {
    Diagnostics diagnostics;
    const Recipe r = plan::load_recipe_text(
        "dataset: {train: x, seq_length: 64}\n"
        "model: {config: {_target_: transformers." +
            name + "Config, num_hidden_layers: 8}}\n",
        "r.yaml", {}, diagnostics);
    INFO(listed(diagnostics));
    REQUIRE_FALSE(diagnostics.has_errors());
    return r.model;
  };
  CHECK(of_config("Mixtral").architecture == Architecture::mixtral);
  CHECK(of_config("Mixtral").moe.num_experts == 8);  // what transformers takes
  CHECK(of_config("Qwen2Moe").moe.shared_expert_ffn_hidden_size == 5632);
  CHECK(of_config("Qwen3Moe").moe.num_experts == 128);
}

TEST_CASE("AutoModel's list of modules per stage is a layout") {
  const Recipe r = loaded(
      "distributed: {pp_size: 2, pipeline: {pp_schedule: 1f1b, module_fqns_per_model_part: "
      "[[model.embed_tokens, model.layers.0, model.layers.1, model.layers.2], [model.layers.3, "
      "model.layers.4, model.layers.5, model.layers.6, model.layers.7, model.norm, lm_head]]}}\n");
  CHECK(r.distributed.pipeline.layout == "Ettt|tttttL");
  expect_told(
      "distributed: {pp_size: 2, pipeline: {module_fqns_per_model_part: "
      "[[model.layers.1], [model.layers.0]]}}\n",
      Severity::error, "distributed.pipeline.module_fqns_per_model_part", "order");
}

TEST_CASE("a recipe that Megatron-Bridge prints loads where its fields are known or off") {
  const std::string printed =
      "_target_: megatron.bridge.training.config.ConfigContainer\n"
      "rng: {_target_: megatron.bridge.training.config.RNGConfig, seed: 5, te_rng_tracker: false}\n"
      "mixed_precision: {_target_: megatron.bridge.training.mixed_precision.bf16_mixed, _call_: "
      "true}\n"
      "dist: {_target_: megatron.bridge.training.config.DistributedInitConfig,\n"
      "  distributed_backend: nccl, use_sharp: false, nccl_communicator_config_path: null}\n"
      "scheduler: {_target_: megatron.bridge.training.config.SchedulerConfig,\n"
      "  lr_decay_style: cosine, lr_warmup_iters: 2, override_opt_param_scheduler: false}\n";
  const Diagnostics diagnostics = told(printed);
  INFO(listed(diagnostics));
  CHECK_FALSE(diagnostics.has_errors());
  CHECK_THAT(listed(diagnostics), Contains("fields of Megatron that mtrain does not have are off"));
  expect_told(
      "_target_: megatron.bridge.training.config.ConfigContainer\n"
      "rng: {_target_: megatron.bridge.training.config.RNGConfig, data_parallel_random_init: "
      "true}\n",
      Severity::error, "rng.data_parallel_random_init", "no such key");
}

TEST_CASE("auto takes the GPU that the machine has, and rules go by it") {
  const auto on = [](const std::string& gpu, const Overrides& set = {}) {
    Diagnostics diagnostics;
    Recipe r = plan::load_recipe_text(kBase, "base.yaml", set, diagnostics, 1,
                                      {.gpus = gpu.empty() ? 0 : 1, .gpu_name = gpu});
    INFO(listed(diagnostics));
    REQUIRE_FALSE(diagnostics.has_errors());
    return r;
  };
  CHECK(on("").train.device == DeviceChoice::automatic);
  CHECK(on("NVIDIA H200").train.device == DeviceChoice::cuda);
  CHECK(on("NVIDIA H200").hardware.gpu == Gpu::h200);
  CHECK(on("NVIDIA GB200").hardware.gpu == Gpu::gb200);
  CHECK(on("NVIDIA B200").hardware.gpu == Gpu::b200);
  CHECK(on("NVIDIA A100-SXM4-80GB").hardware.gpu == Gpu::a100);
  CHECK(on("NVIDIA H200", {"hardware.gpu=b200"}).hardware.gpu == Gpu::b200);
  CHECK(on("NVIDIA H200", {"train.device=cpu"}).train.device == DeviceChoice::cpu);
  CHECK(on("NVIDIA H200", {"train.device=cpu"}).hardware.gpu == Gpu::h100);
  // What only CPUs do keeps auto on the CPU, and so do fewer GPUs than ranks.
  CHECK(on("NVIDIA H200", {"comm.link.gbps=1"}).train.device == DeviceChoice::automatic);
  CHECK(on("NVIDIA H200", {"comm.backend=gloo"}).train.device == DeviceChoice::automatic);
  Diagnostics few;
  const Recipe two = plan::load_recipe_text(
      kBase, "base.yaml", {}, few, 2, {.gpus = 1, .gpu_name = "NVIDIA H200", .ranks_per_host = 2});
  CHECK(two.train.device == DeviceChoice::automatic);
  CHECK_THAT(listed(few), Contains("2 ranks of this host have 1 GPU"));
  // 8-bit products need the GPU that is there, not the one that estimates take.
  Diagnostics diagnostics;
  plan::load_recipe_text(kBase, "base.yaml", {"mixed_precision.fp8=hybrid"}, diagnostics, 1,
                         {.gpus = 1, .gpu_name = "NVIDIA A100-SXM4-80GB"});
  CHECK_THAT(listed(diagnostics), Contains("a100 has no 8-bit matrix products"));
}

TEST_CASE("a ready recipe is found by its name, and by that of Megatron-Bridge's function") {
  const std::string folder = MTRAIN_SOURCE_DIR "/recipes";
  const auto found = [&](const std::string& name) {
    Diagnostics diagnostics;
    const std::string path = recipe::find_recipe(name, {folder}, diagnostics);
    return diagnostics.has_errors() ? diagnostics.text(Severity::error)
                                    : path.substr(std::min(path.size(), folder.size() + 1));
  };
  CHECK(found("llama3_8b") == "llama3_8b.yaml");
  CHECK(found("llama3-8b.yaml") == "llama3_8b.yaml");
  CHECK(found("llama_8b.yaml") == "llama3_8b.yaml");
  CHECK(found("llama32_1b_pretrain_config") == "llama3_2_1b.yaml");
  CHECK(found("llama3_8b_pretrain_config") == "llama3_8b.yaml");
  CHECK(found("llama3_8b_pretrain_2gpu_h100_bf16_config") == "llama3_8b.yaml");
  CHECK(found("qwen3_600m_pretrain_config") == "qwen3_0_6b.yaml");
  CHECK_THAT(found("llama3_9b"), Contains("did you mean llama3_8b?"));
  CHECK_THAT(found("llama3_8b_sft_config"), Contains("no ready recipe"));
  CHECK(recipe::recipe_folders(folder + "/../build/release/bin/mtrain").size() == 1);
  // A file of that name in the working folder wins.
  const TemporaryFolder temporary;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(temporary.path);
  std::ofstream("llama3_8b.yaml") << "model: {}\n";
  Diagnostics diagnostics;
  const std::string own = recipe::find_recipe("llama3_8b", {folder}, diagnostics);
  std::filesystem::current_path(before);
  CHECK(own == "llama3_8b.yaml");
}

TEST_CASE("model.from reads the sizes of a Hugging Face folder") {
  const TemporaryFolder temporary;
  const auto config = [&](const std::string& text) {
    std::ofstream(temporary / "config.json") << text;
  };
  const std::string from = "model.from=" + temporary.path.string();
  const auto read = [&](const Overrides& more = {}) {
    Overrides set{from, "model.init=random"};
    set.insert(set.end(), more.begin(), more.end());
    Diagnostics diagnostics;
    const Recipe r = plan::load_recipe_text("dataset: {train: x, seq_length: 64}\n", "r.yaml", set,
                                            diagnostics, 1);
    return std::pair{r, diagnostics.text(Severity::error)};
  };
  config(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu", "attention_bias": false,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "rope_scaling": {"rope_type": "llama3",
    "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192}})");
  const auto [llama, llama_errors] = read();
  INFO(llama_errors);
  REQUIRE(llama_errors.empty());
  CHECK(llama.model.hidden_size == 256);
  CHECK(llama.model.ffn_hidden_size == 512);
  CHECK(llama.model.num_layers == 3);
  CHECK(llama.model.num_query_groups == 2);
  CHECK(llama.model.norm_epsilon == 1e-5);
  CHECK(llama.model.rotary_base == 500000);
  CHECK(llama.model.share_embeddings_and_output_weights);
  CHECK(llama.model.rope_scaling.type == RopeScalingType::llama3);
  CHECK(llama.model.rope_scaling.factor == 32);
  CHECK(llama.origin("model.hidden_size") == Origin::derived);
  CHECK(read({"model.hidden_size=256"}).second.empty());
  CHECK_THAT(read({"model.hidden_size=128"}).second,
             Contains("model.hidden_size") && Contains("config.json") && Contains("256"));

  config(R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 128,
    "vocab_size": 300})");
  CHECK_THAT(read().second, Contains("attention_dropout"));
  const auto [gpt2, gpt2_errors] = read({"model.attention_dropout=0"});
  REQUIRE(gpt2_errors.empty());
  CHECK(gpt2.model.architecture == Architecture::gpt2);
  CHECK(gpt2.model.share_embeddings_and_output_weights);
  CHECK(gpt2.model.hidden_dropout == 0.1);  // what transformers takes for an omitted key

  config(R"({"model_type": "qwen3", "hidden_size": 64, "sliding_window": null,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}})");
  CHECK(read().first.model.rotary_base == 1e6);
  CHECK(read().first.model.kv_channels == 128);
  config(R"({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
    "intermediate_size": 96, "router_aux_loss_coef": 0.02, "router_jitter_noise": 0.0})");
  const auto [mixtral, mixtral_errors] = read();
  INFO(mixtral_errors);
  REQUIRE(mixtral_errors.empty());
  CHECK(mixtral.model.architecture == Architecture::mixtral);
  CHECK(mixtral.model.moe.num_experts == 4);
  CHECK(mixtral.model.moe.ffn_hidden_size == 96);
  CHECK(mixtral.model.rotary_base == 1e6);

  config(R"({"model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 4,
    "norm_topk_prob": false, "decoder_sparse_step": 2, "mlp_only_layers": [1]})");
  const auto [qwen, qwen_errors] = read();
  INFO(qwen_errors);
  REQUIRE(qwen_errors.empty());
  CHECK(qwen.model.moe.router_pre_softmax);
  CHECK_FALSE(qwen.model.moe.norm_topk_prob);
  CHECK_FALSE(qwen.model.has_experts(0));
  CHECK_FALSE(qwen.model.has_experts(1));
  CHECK(qwen.model.has_experts(3));
  // Beside the rotary positions, or among them, which transformers 5 prefers.
  for (const char* factor :
       {R"("partial_rotary_factor": 0.75)",
        R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75})",
        R"("partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.75})"}) {
    config(fmt::format(R"({{"model_type": "phi3", {}}})", factor));
    CHECK(read().first.model.rotary_percent == 0.75);
    CHECK(read().first.model.rotary_dim() == 72);
    CHECK_THAT(read({"model.rotary_percent=0.5"}).second, Contains("model.rotary_percent"));
  }
  for (const auto& [text, gist] :
       {std::pair{R"({"model_type": "mamba"})", "model_type `mamba`"},
        {R"({"model_type": "mixtral", "router_jitter_noise": 0.1})", "router_jitter_noise is 0.1"},
        {R"({"model_type": "llama", "logit_scale": 3})", "logit_scale"},
        {R"({"model_type": "mistral", "mlp_bias": true})", "mlp_bias is true"},
        {R"({"model_type": "llama", "hidden_act": "gelu"})", "hidden_act gelu is not built"},
        {R"({"model_type": "gpt2", "activation_function": "silu"})",
         "activation_function silu is not built"},
        {R"({"model_type": "gpt2", "activation_function": "silu"})", "silu is not built"},
        {R"({"model_type": "mistral", "num_hidden_layers": 2,
             "layer_types": ["full_attention", "sliding_attention"]})",
         "layer_types gives a window to 1 of 2 layers"},
        {R"({"model_type": "qwen2", "num_hidden_layers": 2, "layer_types": ["full_attention"]})",
         "layer_types must say of each of the 2 layers"},
        {R"({"model_type": "qwen2", "num_hidden_layers": 2, "sliding_window": 100,
             "layer_types": ["full_attention", "sliding_attention"]})",
         "1 of 2 layers, with sliding_window 100, and use_sliding_window left out"},
        {R"({"model_type": "qwen3", "num_hidden_layers": 1, "sliding_window": 100,
             "use_sliding_window": false, "layer_types": ["sliding_attention"]})",
         "1 of 1 layers, with sliding_window 100, and use_sliding_window false"},
        {R"({"model_type": "qwen3_moe", "num_hidden_layers": 1, "use_sliding_window": true,
             "layer_types": ["full_attention"]})",
         "layer_types gives a window to 0 of 1 layers"},
        {R"({"model_type": "qwen2_moe", "num_hidden_layers": 4, "use_sliding_window": true})",
         "every other layer, gives a window to 2 of 4 layers"},
        {R"({"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": null}})",
         "of type yarn lack factor"},
        {R"({"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4,
             "low_freq_factor": 1}})",
         "the key low_freq_factor of its rotary positions"},
        {R"({"model_type": "llama", "original_max_position_embeddings": 4096,
             "rope_scaling": {"rope_type": "yarn", "factor": 4,
             "original_max_position_embeddings": 8192}})",
         "is 8192 among the rotary positions, and 4096 beside them"},
        {R"({"model_type": "phi3", "rope_scaling": {"rope_type": "linear", "factor": 4}})",
         "of type linear are not built for such models"},
        {R"({"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1]}})",
         "of type longrope lack long_factor"},
        {R"({"model_type": "phi3", "rope_scaling": {"type": "su", "short_factor": [1],
             "long_factor": [1], "original_max_position_embeddings": 8192}})",
         "is 8192 among the rotary positions, and 4096 beside them"},
        {R"({"model_type": "llama", "max_position_embeddings": 8192, "rope_scaling": {
             "rope_type": "longrope", "factor": 4, "short_factor": [1], "long_factor": [1],
             "original_max_position_embeddings": 4096}})",
         "the factor 4 of its rotary positions is not 8192 / 4096"},
        {R"({"model_type": "llama", "rope_scaling": {"rope_type": "su", "factor": 4}})",
         "of type su are not built"},
        {R"({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 4}})",
         "of type dynamic are not built"},
        {R"({"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 4}})",
         "of type llama3 lack low_freq_factor"},
        {R"({"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4,
             "beta_fast": 2}})",
         "the key beta_fast of its rotary positions"},
        {R"({"model_type": "llama", "partial_rotary_factor": 0.75})",
         "partial_rotary_factor is 0.75, and only 1 is built"},
        {R"({"model_type": "qwen3", "rope_parameters": {"rope_type": "default",
             "partial_rotary_factor": 0.75}})",
         "partial_rotary_factor is 0.75, and only 1 is built"},
        {R"({"model_type": "llama", "quantization_config": {"bits": 4}})", "dequantize()"},
        {R"([1, 2])", "not a JSON object"},
        {R"({"model_type": )", "not JSON at byte 16"}}) {
    config(text);
    CHECK_THAT(read().second, Contains(gist));
  }
  Diagnostics diagnostics;
  plan::load_recipe_text("dataset: {train: x}\nmodel: {from: meta-llama/Llama-3.2-1B}\n", "r.yaml",
                         {}, diagnostics, 1);
  CHECK_THAT(listed(diagnostics), Contains("Hugging Face Hub") && Contains("model.from"));
  CHECK(count(diagnostics, Severity::error) == 1);
}

TEST_CASE("config.json says which layers have a window") {
  const TemporaryFolder temporary;
  const auto window = [&](const std::string& text) {
    std::ofstream(temporary / "config.json") << text;
    Diagnostics diagnostics;
    const auto r = recipe::read_recipe_text("model: {init: random}\n", "r.yaml",
                                            {"model.from=" + temporary.path.string()}, diagnostics);
    INFO(text << "\n" << diagnostics.text(Severity::error));
    CHECK_FALSE(diagnostics.has_errors());
    return r ? r->model.window_size.value_or(0) : -1;
  };
  CHECK(window(R"({"model_type": "mistral"})") == 4096);  // what transformers takes
  CHECK(window(R"({"model_type": "mistral", "sliding_window": null})") == 0);
  CHECK(window(R"({"model_type": "phi3", "sliding_window": 2047})") == 2047);
  CHECK(window(R"({"model_type": "llama", "sliding_window": 100})") == 0);  // not read there
  CHECK(window(R"({"model_type": "qwen2", "sliding_window": 100})") == 0);
  CHECK(window(R"({"model_type": "qwen2", "num_hidden_layers": 1, "sliding_window": 100,
    "use_sliding_window": false, "layer_types": ["full_attention"]})") == 0);
  CHECK(window(R"({"model_type": "qwen2", "sliding_window": 100, "use_sliding_window": true,
    "max_window_layers": 32})") == 0);
  CHECK(window(R"({"model_type": "qwen3", "sliding_window": 100, "use_sliding_window": true,
    "max_window_layers": 0})") == 100);
  CHECK(window(R"({"model_type": "qwen3", "sliding_window": 100, "use_sliding_window": true,
    "num_hidden_layers": 1, "layer_types": ["sliding_attention"]})") == 100);
  CHECK(
      window(R"({"model_type": "qwen3_moe", "sliding_window": 100, "use_sliding_window": true})") ==
      100);
  CHECK(window(R"({"model_type": "qwen2_moe", "sliding_window": 0})") == 0);

  const auto layers = [&](const std::string& text, const std::vector<std::string>& more = {}) {
    std::ofstream(temporary / "config.json")
        << R"({"num_hidden_layers": 4, "use_sliding_window": true, "sliding_window": 100, )" << text
        << "}";
    std::vector<std::string> set{"model.from=" + temporary.path.string()};
    set.insert(set.end(), more.begin(), more.end());
    Diagnostics diagnostics;
    const auto r = recipe::read_recipe_text("model: {init: random}\n", "r.yaml", set, diagnostics);
    std::string has = diagnostics.has_errors() ? diagnostics.text(Severity::error) : "";
    for (int64_t l = 0; r && !diagnostics.has_errors() && l < 4; ++l)
      has += r->model.has_window(l) ? '1' : '0';
    return has;
  };
  CHECK(layers(R"("model_type": "qwen2", "max_window_layers": 3)") == "0001");
  CHECK(layers(R"("model_type": "qwen3", "max_window_layers": 0)") == "1111");
  const std::string types = R"("layer_types": ["full_attention", "sliding_attention",
    "sliding_attention", "full_attention"])";
  for (const char* family : {"qwen2", "qwen3"}) {
    const std::string some = fmt::format(R"("model_type": "{}", {})", family, types);
    CHECK(layers(some) == "0110");
    CHECK(layers(some, {"model.window_attn_skip_freq=[0,1,1,0]"}) == "0110");
    CHECK_THAT(layers(some, {"model.window_attn_skip_freq=2"}), Contains("layer_types"));
  }
}

TEST_CASE("config.json may name the experts of Qwen3 in both ways") {
  const TemporaryFolder temporary;
  for (const char* key : {"num_experts", "num_local_experts"}) {
    std::ofstream(temporary / "config.json")
        << R"({"model_type": "qwen3_moe", ")" << key << R"(": 16})";
    Diagnostics diagnostics;
    const auto r = recipe::read_recipe_text("model: {init: random}\n", "r.yaml",
                                            {"model.from=" + temporary.path.string()}, diagnostics);
    REQUIRE_FALSE(diagnostics.has_errors());
    CHECK(r->model.moe.num_experts == 16);
  }
}
