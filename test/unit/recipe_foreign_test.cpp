// Tests that recipes of AutoModel and Megatron-Bridge load as their systems print them: their
// names, flags, classes and words, and messages about keys that have no meaning in mtrain.
#include <filesystem>
#include <fstream>

#include <fmt/core.h>

#include "interchange/model_source.h"
#include "recipe/load/find_recipe.h"
#include "recipe/load/flags.h"
#include "recipe_cases.h"
#include "test/support/temporary_folder.h"

namespace recipe_foreign_test {

using namespace mtrain;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

Recipe loaded(const std::string& more, const Overrides& set = {}, int64_t world = 0) {
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe_text(interchange::model_source(), kBase + more, "base.yaml",
                                          set, diagnostics, world);
  INFO(listed(diagnostics));
  REQUIRE_FALSE(diagnostics.has_errors());
  return r;
}

Diagnostics diagnostics_of(const std::string& more, int64_t world = 0) {
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(), kBase + more, "base.yaml", {}, diagnostics,
                         world);
  return diagnostics;
}

// Some diagnostic of that severity is about `field`, and its text contains `gist`.
void expect_diagnostic(const std::string& more, Severity severity, std::string_view field,
                       std::string_view gist) {
  const Diagnostics diagnostics = diagnostics_of(more);
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
  CHECK(schedule({"model.pipeline_model_parallel_size=4"}) == ScheduleId::one_f_one_b);
  CHECK(schedule({"model.pipeline_model_parallel_size=4",
                  "model.virtual_pipeline_model_parallel_size=2"}) == ScheduleId::interleaved_1f1b);
  CHECK(schedule({"model.pipeline_model_parallel_size=4",
                  "model.num_layers_per_virtual_pipeline_stage=1"}) ==
        ScheduleId::interleaved_1f1b);
  CHECK(schedule({"distributed.pp_size=4", "distributed.strategy=megatron_ddp"}) ==
        ScheduleId::one_f_one_b);
  expect_error({.what = "AutoModel's", .world = 4, .set = {"distributed.pp_size=4"}},
               "distributed.pp_size", "needs the section distributed.pipeline");
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
  expect_diagnostic("optimizer: {_target_: dion.Dion, rank: 3}\n", Severity::error,
                    "optimizer._target_", "optimizer.name: adamw, adam or muon");
  expect_diagnostic("loss_fn: {_target_: my.loss.Huber, delta: 3}\n", Severity::error,
                    "loss_fn._target_", "next-token cross entropy");
  // Data that mtrain cannot read is one mistake: no message is about the arguments of its class.
  Diagnostics data;
  plan::load_recipe_text(
      interchange::model_source(),
      "dataset: {_target_: nemo_automodel.components.datasets.llm.xlam.make_xlam_dataset, "
      "dataset_name: Salesforce/xlam, split: train}\n",
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
  expect_diagnostic("loss_fn: {_target_: torch.nn.CrossEntropyLoss, label_smoothing: 0.1}\n",
                    Severity::error, "loss_fn.label_smoothing", "no such key");
  Diagnostics diagnostics;
  const Recipe llama = plan::load_recipe_text(
      interchange::model_source(),
      "dataset: {train: x, seq_length: 64}\n"
      "model: {config: {_target_: transformers.LlamaConfig, num_hidden_layers: 2}}\n",
      "r.yaml", {}, diagnostics);
  INFO(listed(diagnostics));
  CHECK_FALSE(diagnostics.has_errors());
  CHECK(llama.model.hidden_size == 4096);  // transformers' default
  CHECK(llama.model.num_layers == 2);
  CHECK(llama.model.norm_epsilon == 1e-6);
  CHECK(loaded("", {"num-layers=4", "ffn-hidden-size=96", "optimizer=adam"}).model.num_layers == 4);
  CHECK(loaded("", {"model.architecture=gpt2", "model.gated_linear_unit=false"}).model.activation ==
        Activation::gelu_tanh);
  expect_diagnostic("ddp: {no_align_param_gather: '${env:X,true}'}\n", Severity::error,
                    "ddp.no_align_param_gather", "reference");
  expect_diagnostic("launch: {env: {CUDA_DEVICE_MAX_CONNECTIONS: 1}}\n", Severity::error,
                    "launch.env", "a setting of its own");
  expect_diagnostic("launch: {env: {MTRAIN_TOKEN: '${env:HOME}'}}\n", Severity::error, "launch.env",
                    "does not belong in a recipe");
  expect_diagnostic("dataset.validation: x\n", Severity::warning, "dataset.validation",
                    "is also training data");
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
  CHECK(p.fp8_param_gather);
  const MixedPrecisionConfig current =
      loaded("mixed_precision: bf16_with_fp8_current_scaling_mixed\n").mixed_precision;
  CHECK(current.first_last_layers_bf16);
  CHECK(current.fp8_param_gather);
  expect_diagnostic("mixed_precision: bf16_with_mxfp8_mixed\n", Severity::warning,
                    "mixed_precision", "parameters are gathered in bf16");
  CHECK(loaded("", {"mixed_precision=bf16-with-mxfp8-mixed", "hardware.gpu=b200"})
            .mixed_precision.fp8_recipe == Fp8Recipe::mxfp8);
  CHECK(loaded("", {"mixed_precision.name=fp16-mixed"}).mixed_precision.name ==
        Precision::fp16_mixed);
}

TEST_CASE("keys without a meaning are reported once, and those for missing features are refused") {
  expect_diagnostic("distributed: {pipeline: {patch_inner_model: false}}\n", Severity::resolved,
                    "distributed.pipeline.patch_inner_model", "has no effect in mtrain");
  expect_diagnostic("distributed: {multimodal: {frozen_sharding: per_layer}}\n", Severity::warning,
                    "distributed.multimodal", "ignored");
  expect_diagnostic("distributed: {offload_policy: {pin_memory: true}}\n", Severity::error,
                    "distributed.offload_policy", "host memory");
  CHECK_FALSE(diagnostics_of("distributed: {offload_policy: none}\n").has_errors());
  expect_diagnostic("peft: {_target_: lora.PeftConfig, use_dora: true}\n", Severity::error,
                    "peft.use_dora", "DoRA");
  expect_diagnostic("checkpoint: {model_save_format: torch_save}\n", Severity::warning,
                    "checkpoint.model_save_format", "safetensors");
  CHECK_FALSE(diagnostics_of("step_scheduler: {num_epochs: 2}\n").has_errors());
  for (const char* value : {"false", "final", "every", "true"})
    CHECK_FALSE(
        diagnostics_of(fmt::format("checkpoint: {{save_consolidated: {}}}\n", value)).has_errors());
  expect_diagnostic("checkpoint: {save_consolidated: sometimes}\n", Severity::error,
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
  expect_diagnostic(off + own, Severity::resolved, "model.moe_router_bias_update_rate",
                    "has no effect");
}

TEST_CASE("settings of experts in the names of other systems have an effect, or are reported") {
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
  // Only Megatron's -1 means none.
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
    expect_diagnostic(text, Severity::resolved, text.substr(0, text.find(':')),
                      "has no effect in mtrain");
  }
  expect_diagnostic("model.moe_router_padding_for_fp8: true\n", Severity::resolved,
                    "model.moe_router_padding_for_fp8", "take any number of rows");
  for (const char* key : {"moe_input_jitter_eps: 0.01", "moe_apply_probs_on_input: true",
                          "moe_layer_recompute: true"}) {
    const std::string text = std::string("model.") + key + "\n";
    expect_diagnostic(text, Severity::error, text.substr(0, text.find(':')), "");
  }
  CHECK_FALSE(diagnostics_of("model.moe_input_jitter_eps: null\n").has_errors());
  CHECK_FALSE(diagnostics_of("model.moe_router_force_load_balancing: false\n").has_errors());
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
    const Recipe r = plan::load_recipe_text(interchange::model_source(),
                                            "dataset: {train: x, seq_length: 64}\n"
                                            "model: {config: {_target_: transformers." +
                                                name + "Config, num_hidden_layers: 8}}\n",
                                            "r.yaml", {}, diagnostics);
    INFO(listed(diagnostics));
    REQUIRE_FALSE(diagnostics.has_errors());
    return r.model;
  };
  CHECK(of_config("Mixtral").architecture == Architecture::mixtral);
  CHECK(of_config("Mixtral").moe.num_experts == 8);  // transformers' default
  CHECK(of_config("Qwen2Moe").moe.shared_expert_ffn_hidden_size == 5632);
  CHECK(of_config("Qwen3Moe").moe.num_experts == 128);
}

TEST_CASE("AutoModel's list of modules per stage is a layout") {
  const Recipe r = loaded(
      "distributed: {pp_size: 2, pipeline: {pp_schedule: 1f1b, module_fqns_per_model_part: "
      "[[model.embed_tokens, model.layers.0, model.layers.1, model.layers.2], [model.layers.3, "
      "model.layers.4, model.layers.5, model.layers.6, model.layers.7, model.norm, lm_head]]}}\n");
  CHECK(r.distributed.pipeline.layout == "Ettt|tttttL");
  expect_diagnostic(
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
  const Diagnostics diagnostics = diagnostics_of(printed);
  INFO(listed(diagnostics));
  CHECK_FALSE(diagnostics.has_errors());
  CHECK_THAT(listed(diagnostics), Contains("fields of Megatron that mtrain does not have are off"));
  expect_diagnostic(
      "_target_: megatron.bridge.training.config.ConfigContainer\n"
      "rng: {_target_: megatron.bridge.training.config.RNGConfig, data_parallel_random_init: "
      "true}\n",
      Severity::error, "rng.data_parallel_random_init", "no such key");
}

TEST_CASE("auto takes the GPU that the machine has, and rules go by it") {
  const auto on = [](const std::string& gpu, const Overrides& set = {}) {
    Diagnostics diagnostics;
    Recipe r =
        plan::load_recipe_text(interchange::model_source(), kBase, "base.yaml", set, diagnostics, 1,
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
  // auto stays on the CPU if a setting needs a CPU, or if there are fewer GPUs than ranks.
  CHECK(on("NVIDIA H200", {"comm.link.gbps=1"}).train.device == DeviceChoice::automatic);
  CHECK(on("NVIDIA H200", {"comm.backend=gloo"}).train.device == DeviceChoice::automatic);
  Diagnostics few;
  const Recipe two =
      plan::load_recipe_text(interchange::model_source(), kBase, "base.yaml", {}, few, 2,
                             {.gpus = 1, .gpu_name = "NVIDIA H200", .ranks_per_host = 2});
  CHECK(two.train.device == DeviceChoice::automatic);
  CHECK_THAT(listed(few), Contains("2 ranks of this host have 1 GPU"));
  // 8-bit GEMMs need the actual GPU, not the one that estimates assume.
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(), kBase, "base.yaml",
                         {"mixed_precision.fp8=hybrid"}, diagnostics, 1,
                         {.gpus = 1, .gpu_name = "NVIDIA A100-SXM4-80GB"});
  CHECK_THAT(listed(diagnostics), Contains("a100 does not support 8-bit GEMMs"));
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

TEST_CASE(
    "Muon's names in torch, Megatron and Dion choose the same fields, and what they default to") {
  const auto optimizer = [](const char* text) {
    return loaded(std::string("optimizer: {_target_: ") + text + "}\n").optimizer;
  };
  const OptimizerConfig torch = optimizer(
      "torch.optim.Muon, momentum: 0.9, ns_steps: 4, ns_coefficients: [2, -1.5, 0.5], "
      "adjust_lr_fn: match_rms_adamw, eps: 1e-3");
  CHECK(torch.name == OptimizerName::muon);
  CHECK(torch.lr == 1e-3);
  CHECK(torch.muon.momentum == 0.9);
  CHECK(torch.muon.ns_steps == 4);
  CHECK((torch.muon.coefficients == std::vector<double>{2, -1.5, 0.5}));
  CHECK(torch.muon.scale_mode == MuonScale::match_rms_adamw);
  CHECK(torch.muon.eps == 1e-3);  // of the norm
  CHECK(torch.eps == 1e-8);       // AdamW's
  const OptimizerConfig dion = optimizer("dion.Muon, mu: 0.9, scalar_lr: 1e-3, use_triton: true");
  CHECK(dion.lr == 1e-2);
  CHECK(dion.muon.momentum == 0.9);
  CHECK_FALSE(dion.muon.nesterov);
  CHECK(dion.muon.scale_mode == MuonScale::unit_rms_norm);
  CHECK(dion.muon.coefficients.size() == 15);
  CHECK(dion.muon.adamw_lr == 1e-3);
  const OptimizerConfig megatron =
      loaded(
          "optimizer: {optimizer: dist_muon, muon_momentum: 0.9, muon_use_nesterov: true, "
          "muon_num_ns_steps: 6, muon_scale_mode: spectral, muon_extra_scale_factor: 0.2, "
          "muon_tp_mode: duplicated, muon_split_qkv: true, muon_scalar_optimizer: adam}\n")
          .optimizer;
  CHECK(megatron.name == OptimizerName::muon);
  CHECK(megatron.muon.nesterov);
  CHECK(megatron.muon.ns_steps == 6);
  CHECK(megatron.muon.scale_mode == MuonScale::spectral);
  CHECK(megatron.muon.scale_factor == 0.2);
  CHECK(megatron.muon.tp_mode == MuonTpMode::gathered);
  expect_diagnostic("optimizer: {name: muon, muon_momentum: 0.9}\ndistributed: {tp_size: 2}\n",
                    Severity::resolved, "optimizer.muon.tp_mode",
                    "Megatron's default is blockwise");
  CHECK(loaded("optimizer: {name: muon, muon_tp_mode: blockwise}\n").optimizer.muon.tp_mode ==
        MuonTpMode::blockwise);
  expect_diagnostic("optimizer: {name: muon, muon_split_qkv: false}\n", Severity::error,
                    "optimizer.muon_split_qkv", "three matrices");
  expect_diagnostic("optimizer: {name: muon, muon_coefficient_type: quintic}\n", Severity::error,
                    "optimizer.muon_coefficient_type", "optimizer.muon.coefficients");
  expect_diagnostic("optimizer: {name: muon, muon_scalar_optimizer: lion}\n", Severity::error,
                    "optimizer.muon_scalar_optimizer", "AdamW");
}

TEST_CASE("Megatron's settings of Muon beside another optimizer are ignored with one note") {
  const char* printed =
      "optimizer: {optimizer: adam, muon_momentum: 0.9, muon_use_nesterov: false, "
      "muon_num_ns_steps: 6, muon_scale_mode: spectral, muon_extra_scale_factor: 0.2, "
      "muon_tp_mode: blockwise, muon_split_qkv: false, muon_coefficient_type: quintic, "
      "muon_scalar_optimizer: lion}\n";
  const Diagnostics diagnostics = diagnostics_of(printed);
  INFO(listed(diagnostics));
  CHECK_FALSE(diagnostics.has_errors());
  CHECK(std::ranges::count_if(diagnostics.sorted(), [](const auto& d) {
          return d.str().find("muon") != std::string::npos;
        }) == 1);
  expect_diagnostic(printed, Severity::resolved, "optimizer.name", "optimizer.muon_tp_mode");
  const Recipe r = loaded(printed);
  CHECK(r.optimizer.muon.momentum == 0.95);
  CHECK(r.optimizer.muon.ns_steps == 5);
  CHECK_FALSE(r.given("optimizer.muon.momentum"));
  CHECK(loaded(printed, {"optimizer.name=adamw"}).optimizer.name == OptimizerName::adamw);
  CHECK(loaded("", {"muon-momentum=0.9", "muon-tp-mode=blockwise"}).optimizer.muon.momentum ==
        0.95);
  // mtrain's own names are a mistake there, as before.
  expect_diagnostic("optimizer: {name: adam, muon_momentum: 0.9, muon: {ns_steps: 3}}\n",
                    Severity::error, "optimizer.muon.ns_steps", "name is adam");
}

}  // namespace recipe_foreign_test
