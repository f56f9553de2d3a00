// Tests layers of recipes: a later value that stands for several fields replaces all of them, a
// value for a part of one keeps the other part, and null resets.
#include <fstream>

#include <fmt/core.h>

#include "base/file.h"
#include "interchange/model_source.h"
#include "recipe/load/flags.h"
#include "recipe/schema/schema.h"
#include "recipe_cases.h"
#include "test/support/temporary_folder.h"

namespace recipe_layers_test {

using namespace mtrain;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

struct Expected {
  std::string field, value;
};

// Settings of a recipe below, and of a layer above it, each a path=value.
struct Layers {
  std::string what;
  Overrides below, above;
  std::vector<Expected> fields;
};

std::string as_yaml(const Overrides& settings) {
  std::string text;
  for (const std::string& setting : settings) {
    const auto equals = setting.find('=');
    text += setting.substr(0, equals) + ": " + setting.substr(equals + 1) + "\n";
  }
  return text;
}

Overrides as_flags(const Overrides& settings) {
  std::vector<std::string> words;
  for (const std::string& setting : settings) {
    const auto equals = setting.find('=');
    words.push_back("--" + setting.substr(0, equals));
    words.push_back(setting.substr(equals + 1));
  }
  return recipe::flags_to_overrides(words);
}

// The upper layer as a second base, a child, overrides and flags must give the same result.
void expect_layers(const Layers& row) {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return (folder / name).string();
  };
  // The small recipe names data; a row that names other data replaces it.
  std::string base = kBase;
  const std::string data = "train: x, ", settings = as_yaml(row.below);
  if (settings.starts_with("dataset.")) base.erase(base.find(data), data.size());
  const std::string below = write("below.yaml", base + settings);
  write("above.yaml", as_yaml(row.above));
  const std::string child = write("child.yaml", "base: below.yaml\n" + as_yaml(row.above));
  const std::string bases = write("bases.yaml", "base: [below.yaml, above.yaml]\n");
  struct Place {
    const char* name;
    std::string file;
    Overrides set;
  };
  for (const Place& place :
       {Place{"base", bases, {}}, Place{"child", child, {}}, Place{"override", below, row.above},
        Place{"flag", below, as_flags(row.above)}}) {
    Diagnostics diagnostics;
    const auto r = read_recipe(interchange::model_source(), place.file, place.set, diagnostics);
    INFO(row.what << " as " << place.name << "\n" << listed(diagnostics));
    REQUIRE(r);
    CHECK_FALSE(diagnostics.has_errors());
    for (const Expected& expected : row.fields) {
      INFO(expected.field);
      CHECK(find_row(expected.field)->show(*r) == expected.value);
    }
  }
}

std::string shown(const std::string& text, const std::string& field) {
  Diagnostics diagnostics;
  const auto r =
      read_recipe_text(interchange::model_source(), kBase + text, "r.yaml", {}, diagnostics);
  INFO(text << listed(diagnostics));
  CHECK_FALSE(diagnostics.has_errors());
  return r ? find_row(field)->show(*r) : "";
}

const std::vector<Layers> kReplaced{
    {"a preset over a preset",
     {"mixed_precision=bf16_with_fp8_current_scaling_mixed"},
     {"mixed_precision=bf16_with_fp8_delayed_scaling_mixed"},
     {{"mixed_precision.fp8_recipe", "delayed"},
      {"mixed_precision.first_last_layers_bf16", "false"}}},
    {"a precision over a preset",
     {"mixed_precision=bf16_with_fp8_delayed_scaling_mixed"},
     {"mixed_precision=bf16_mixed"},
     {{"mixed_precision.fp8", "none"}, {"mixed_precision.fp8_amax_history_len", "1"}}},
    {"a preset by its field over a section",
     {"mixed_precision={name: fp32, grad_reduce_in_fp32: false}"},
     {"mixed_precision.name=bf16_with_mxfp8_mixed"},
     {{"mixed_precision.name", "bf16_mixed"}, {"mixed_precision.fp8", "e4m3"}}},
    {"a name over a preset",
     {"mixed_precision=bf16_with_mxfp8_mixed"},
     {"mixed_precision.name=fp16_mixed"},
     {{"mixed_precision.name", "fp16_mixed"}, {"mixed_precision.fp8", "none"}}},
    {"a name over a type of weights",
     {"distributed.mp_policy.param_dtype=fp16"},
     {"mixed_precision=fp32"},
     {{"mixed_precision.name", "fp32"}, {"distributed.mp_policy.param_dtype", "auto"}}},
    {"a type of weights over a name",
     {"mixed_precision=fp16_mixed"},
     {"distributed.mp_policy.param_dtype=fp32"},
     {{"mixed_precision.name", "fp32"}}},
    {"a switch over types",
     {"model.params_dtype=torch.bfloat16"},
     {"model.fp16=true"},
     {{"mixed_precision.name", "fp16_mixed"}, {"mixed_precision.params_dtype", "auto"}}},
    {"types of reduction",
     {"distributed.mp_policy.reduce_dtype=fp32"},
     {"ddp.grad_reduce_in_fp32=false"},
     {{"mixed_precision.grad_reduce_in_fp32", "false"}}},
    {"both decays over one",
     {"optimizer.adam_beta1=0.5"},
     {"optimizer.betas=[0.8, 0.9]"},
     {{"optimizer.betas", "[0.8, 0.9]"}}},
    {"no recomputation",
     {"recompute={granularity: full, method: block, num_layers: 2, cheap: false}"},
     {"recompute=none"},
     {{"recompute.granularity", "none"},
      {"recompute.num_layers", "none"},
      {"recompute.cheap", "auto"}}},
    {"another recomputation",
     {"recompute={granularity: full, method: block, num_layers: 2}"},
     {"recompute=selective"},
     {{"recompute.granularity", "selective"}, {"recompute.method", "none"}}},
    {"AutoModel's recomputation",
     {"recompute={granularity: full, method: block, num_layers: 2}"},
     {"distributed.activation_checkpointing=false"},
     {{"recompute.granularity", "none"}, {"recompute.method", "none"}}},
    {"a granularity without layers",
     {"recompute={granularity: full, num_layers: 2}"},
     {"model.recompute_granularity=none"},
     {{"recompute.granularity", "none"}, {"recompute.num_layers", "none"}}},
    {"an activation over a gate",
     {"model.gated_linear_unit=false"},
     {"model.activation=swiglu"},
     {{"model.activation", "swiglu"}}},
    {"a tokenizer over a tokenizer",
     {"tokenizer={type: huggingface, path: x}"},
     {"tokenizer=byte"},
     {{"tokenizer.type", "byte"}, {"tokenizer.path", "none"}}},
    {"data over a blend",
     {"dataset.data_path=[0.25, a, 0.75, b]"},
     {"dataset.train=c"},
     {{"dataset.train", "[c]"}, {"dataset.train_weights", "[]"}}},
    {"a blend over a blend",
     {"dataset.data_path=[0.25, a, 0.75, b]"},
     {"dataset.data_path=[c, d]"},
     {{"dataset.train", "[c, d]"}, {"dataset.train_weights", "[]"}}},
    {"a list of layers over their number",
     {"model.num_moe_experts=8", "model.moe.first_dense_layers=1"},
     {"model.moe_layer_freq=[0, 0, 0, 0, 1, 1, 1, 1]"},
     {{"model.moe.first_dense_layers", "0"}}},
    {"a number of layers over their list",
     {"model.num_moe_experts=8", "model.moe_layer_freq=[0, 0, 0, 0, 1, 1, 1, 1]"},
     {"model.first_k_dense_replace=1"},
     {{"model.moe.layer_freq", "[1]"}}},
    {"a width over shared experts",
     {"model.num_moe_experts=8", "model.n_shared_experts=2"},
     {"model.moe_shared_expert_intermediate_size=96"},
     {{"model.moe.num_shared_experts", "none"}}},
    {"layers per stage over stages",
     {"distributed.vpp_size=2"},
     {"model.num_layers_per_virtual_pipeline_stage=1"},
     {{"distributed.vpp_size", "none"}}},
    {"a schedule over a table",
     {"distributed.pipeline.pp_schedule_csv=x.csv"},
     {"distributed.pipeline.pp_schedule=gpipe"},
     {{"distributed.pipeline.pp_schedule_csv", "none"}}},
    {"an optimizer over a class",
     {"optimizer._target_=torch.optim.Adam"},
     {"optimizer.name=adamw"},
     {{"optimizer.decoupled_weight_decay", "true"}, {"optimizer.lr", "0.0003"}}},
    {"a class over a class",
     {"model._target_=nemo_automodel.NeMoAutoModelForCausalLM.from_config"},
     {"model._target_=nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained"},
     {{"model.init", "weights"}}},
    {"8 bits of a backend over others",
     {"model.backend.te_fp8={recipe: delayed}"},
     {"model.backend.te_fp8={recipe: current}"},
     {{"mixed_precision.fp8_recipe", "tensorwise"},
      {"mixed_precision.fp8_amax_history_len", "1"}}}};

}  // namespace

TEST_CASE("a later value that stands for several fields replaces all of them") {
  for (const Layers& row : kReplaced) expect_layers(row);
}

TEST_CASE("half a value keeps the other half of the layer below") {
  const std::string betas = "optimizer.betas", activation = "model.activation",
                    rate = "model.moe.router_bias_update_rate";
  for (const Layers& row : std::vector<Layers>{
           {"one decay",
            {"optimizer.betas=[0.8, 0.97]"},
            {"optimizer.adam_beta1=0.7"},
            {{betas, "[0.7, 0.97]"}}},
           {"the other decay",
            {"optimizer.betas=[0.8, 0.97]"},
            {"optimizer.adam_beta2=0.99"},
            {{betas, "[0.8, 0.99]"}}},
           {"both, one by one",
            {"optimizer.adam_beta1=0.7"},
            {"optimizer.adam_beta2=0.95"},
            {{betas, "[0.7, 0.95]"}}},
           {"one alone", {}, {"optimizer.adam_beta1=0.7"}, {{betas, "[0.7, 0.999]"}}},
           {"a decay of a class",
            {"optimizer._target_=torch.optim.Adam"},
            {"optimizer.adam_beta1=0.7"},
            {{betas, "[0.7, 0.999]"}}},
           {"a function below its gate",
            {"model.gated_linear_unit=true"},
            {"model.activation_func=gelu"},
            {{activation, "geglu"}}},
           {"a gate below its function",
            {"model.architecture=gpt2", "model.activation_func=gelu"},
            {"model.gated_linear_unit=true"},
            {{activation, "geglu"}}},
           {"a gate over geglu",
            {"model.activation=geglu"},
            {"model.gated_linear_unit=true"},
            {{activation, "geglu"}}},
           {"no gate over geglu",
            {"model.activation=geglu"},
            {"model.gated_linear_unit=false"},
            {{activation, "gelu_tanh"}}},
           {"a switch over a rate",
            {"model.num_moe_experts=8", "model.moe_router_bias_update_rate=0.01"},
            {"model.moe_router_enable_expert_bias=true"},
            {{rate, "0.01"}}},
           {"a rate over a switch",
            {"model.num_moe_experts=8", "model.moe_router_enable_expert_bias=true"},
            {"model.moe_router_bias_update_rate=0.02"},
            {{rate, "0.02"}}},
           {"a rate over no",
            {"model.moe_router_enable_expert_bias=false"},
            {"model.moe_router_bias_update_rate=0.02"},
            {{rate, "0"}}},
           {"a format below its switch",
            {"mixed_precision.fp8=e4m3"},
            {"fp8.enabled=true"},
            {{"mixed_precision.fp8", "e4m3"}}},
           {"a depth below its switch",
            {"distributed.fsdp2_forward_prefetch_depth=3"},
            {"distributed.enable_fsdp2_prefetch=true"},
            {{"distributed.fsdp2_forward_prefetch_depth", "3"}}},
           {"a key of a section",
            {"mixed_precision=bf16_with_fp8_delayed_scaling_mixed"},
            {"mixed_precision.fp8_margin=2"},
            {{"mixed_precision.fp8_recipe", "delayed"}, {"mixed_precision.fp8_margin", "2"}}},
           {"an entry of a mapping",
            {"launch.env={A: '${env:HOME}', B: '${env:PATH}'}"},
            {"launch.env={B: '${env:HOME}'}"},
            {{"launch.env", "{A: '${env:HOME}', B: '${env:HOME}'}"}}},
           {"a GEMM",
            {"comm_overlap.tp_comm_overlap_cfg={fc1_dgrad: {num_sm: 4}}"},
            {"comm_overlap.tp_comm_overlap_cfg={qkv_dgrad: {num_sm: 4}}"},
            {}}})
    expect_layers(row);
}

TEST_CASE("no means no") {
  const std::string name = "mixed_precision.name", activation = "model.activation";
  for (const Layers& row : std::vector<Layers>{
           {"neither type", {}, {"model.bf16=false", "model.fp16=false"}, {{name, "fp32"}}},
           {"no bf16", {"mixed_precision=bf16_mixed"}, {"model.bf16=false"}, {{name, "fp32"}}},
           {"no fp16", {"mixed_precision=fp16_mixed"}, {"optimizer.fp16=false"}, {{name, "fp32"}}},
           {"no fp16 of bf16",
            {"mixed_precision=bf16_mixed"},
            {"model.fp16=false"},
            {{name, "bf16_mixed"}}},
           {"a type after no type",
            {"model.bf16=false", "model.fp16=false"},
            {"model.bf16=true"},
            {{name, "bf16_mixed"}}},
           {"no swiglu", {}, {"model.swiglu=false"}, {{activation, "gelu"}}},
           {"no swiglu over it",
            {"model.swiglu=true"},
            {"model.swiglu=false"},
            {{activation, "gelu"}}},
           {"no swiglu of geglu",
            {"model.activation=geglu"},
            {"model.swiglu=false"},
            {{activation, "geglu"}}},
           {"no gate",
            {"model.activation=swiglu"},
            {"model.gated_linear_unit=false"},
            {{activation, "gelu"}}},
           {"no recomputation",
            {"model.recompute_activations=true"},
            {"model.recompute_activations=false"},
            {{"recompute.granularity", "none"}}},
           {"no Megatron FSDP",
            {"distributed.strategy=megatron_fsdp"},
            {"ddp.use_megatron_fsdp=false"},
            {{"distributed.strategy", "megatron_ddp"}}},
           {"no FSDP2",
            {},
            {"dist.use_torch_fsdp2=false"},
            {{"distributed.strategy", "megatron_ddp"}}},
           {"no balance",
            {"debug.route=balanced"},
            {"model.moe_router_force_load_balancing=false"},
            {{"debug.route", "none"}}},
           {"no balance of another pattern",
            {"debug.route=zipf"},
            {"model.backend.fake_balanced_gate=false"},
            {{"debug.route", "zipf"}}},
           {"no 8 bits",
            {"mixed_precision.fp8=hybrid"},
            {"fp8.enabled=false"},
            {{"mixed_precision.fp8", "none"}}},
           {"prefetch after none",
            {"distributed.enable_fsdp2_prefetch=false"},
            {"distributed.enable_fsdp2_prefetch=true"},
            {{"distributed.fsdp2_forward_prefetch_depth", "1"},
             {"distributed.fsdp2_backward_prefetch_depth", "2"}}},
           {"no biases of GPT-2",
            {"model.architecture=gpt2"},
            {"model.disable_bias_linear=true"},
            {{"model.add_bias_linear", "false"}, {"model.add_qkv_bias", "false"}}}})
    expect_layers(row);
}

TEST_CASE("null in a later layer resets a field or a section") {
  for (const Layers& row : std::vector<Layers>{
           {"a number", {"optimizer.lr=0.5"}, {"optimizer.lr=null"}, {{"optimizer.lr", "0.0003"}}},
           {"another name",
            {"train.steps=7"},
            {"step_scheduler.max_steps=none"},
            {{"train.steps", "1000"}}},
           {"one of two",
            {"optimizer.adam_beta1=0.5"},
            {"optimizer.adam_beta1=null"},
            {{"optimizer.betas", "[0.9, 0.95]"}}},
           {"a value with halves",
            {"optimizer.adam_beta1=0.5"},
            {"optimizer.betas=null"},
            {{"optimizer.betas", "[0.9, 0.95]"}}},
           {"a switch",
            {"model.fp16=true"},
            {"model.fp16=null"},
            {{"mixed_precision.name", "bf16_mixed"}}},
           {"packs",
            {"packed_sequence.packed_sequence_size=2048"},
            {"packed_sequence=none"},
            {{"packed_sequence.packed_sequence_size", "0"}}},
           {"recomputation",
            {"recompute=full"},
            {"recompute=null"},
            {{"recompute.granularity", "none"}}},
           {"a precision",
            {"mixed_precision=bf16_with_mxfp8_mixed"},
            {"mixed_precision=null"},
            {{"mixed_precision.fp8", "none"}}},
           {"a section of others",
            {"clip_grad_norm.max_norm=0.5"},
            {"clip_grad_norm=null"},
            {{"optimizer.clip_grad", "1"}}},
           {"what a section has set elsewhere",
            {"comm_overlap.overlap_grad_reduce=false", "comm_overlap.tp_comm_overlap=true"},
            {"comm_overlap=none"},
            {{"ddp.overlap_grad_reduce", "auto"},
             {"comm_overlap.tp_comm_overlap", "auto"},
             {"distributed.strategy", "fsdp2"}}},
           {"a class's argument",
            {"optimizer={_target_: torch.optim.Adam, weight_decay: 0.5}"},
            {"optimizer.weight_decay=null"},
            {{"optimizer.weight_decay", "0"}}},
           {"a section with a class",
            {"optimizer._target_=torch.optim.Adam"},
            {"optimizer=null"},
            {{"optimizer.lr", "0.0003"}, {"optimizer.decoupled_weight_decay", "true"}}},
           {"a meaning of its own",
            {"checkpoint.keep=3"},
            {"checkpoint.max_recent_checkpoints=null"},
            {{"checkpoint.keep", "0"}}}})
    expect_layers(row);
  // `~path` does the same.
  Diagnostics none;
  const auto r = read_recipe_text(
      interchange::model_source(),
      kBase + std::string("optimizer: {_target_: torch.optim.Adam, weight_decay: 0.5}\n"), "r.yaml",
      {"~optimizer.weight_decay"}, none);
  CHECK(r->optimizer.weight_decay == 0);
  // A note says so.
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(), kBase + std::string("recompute: full\n"),
                         "r.yaml", {"recompute=none"}, diagnostics);
  CHECK_THAT(listed(diagnostics), Contains("null resets"));
}

TEST_CASE("within one file null beside a value is no problem, and halves must agree") {
  for (const char* text : {"train.eval_interval: null\nvalidation.eval_interval: 5\n",
                           "validation: {eval_interval: 5, every_steps: none}\n",
                           "step_scheduler.val_every_steps: ~\nvalidation.every_steps: 5\n"})
    CHECK(shown(text, "validation.every_steps") == "5");
  CHECK(shown("checkpoint: {keep: 3, max_recent_checkpoints: null}\n", "checkpoint.keep") == "3");
  CHECK(shown("optimizer: {adam_beta1: 0.8, betas: [0.8, 0.9]}\n", "optimizer.betas") ==
        "[0.8, 0.9]");
  CHECK(shown("model.bf16: false\nmodel.fp16: true\n", "mixed_precision.name") == "fp16_mixed");
  CHECK(shown("model.gated_linear_unit: true\nmodel.activation_func: gelu\n", "model.activation") ==
        "geglu");
  for (const char* text : {"optimizer: {adam_beta1: 0.7, betas: [0.8, 0.9]}\n",
                           "optimizer: {betas: [0.8, 0.9], adam_beta2: 0.7}\n",
                           "model.bf16: false\nmixed_precision: bf16_mixed\n",
                           "mixed_precision: fp16_mixed\noptimizer: {fp16: false}\n",
                           "model.activation: swiglu\nmodel.gated_linear_unit: false\n",
                           "fp8: {enabled: false}\nmixed_precision: {fp8: e4m3}\n"}) {
    Diagnostics diagnostics;
    read_recipe_text(interchange::model_source(), kBase + std::string(text), "r.yaml", {},
                     diagnostics);
    INFO(text);
    CHECK_THAT(listed(diagnostics), Contains("set twice to different values"));
  }
  for (const char* other : {"model.gated_linear_unit: false", "model.swiglu: false"}) {
    Diagnostics diagnostics;
    read_recipe_text(interchange::model_source(),
                     fmt::format("{}model.activation_func: silu\n{}\n", kBase, other), "r.yaml", {},
                     diagnostics);
    CHECK_THAT(listed(diagnostics), Contains("silu without a gate"));
  }
}

TEST_CASE("in a foreign dump null and switches that are off say nothing") {
  const std::string dump =
      "_target_: megatron.bridge.training.config.ConfigContainer\n"
      "optimizer: {_target_: megatron.core.optimizer.OptimizerConfig, adam_beta1: 0.8, betas: "
      "null, "
      "bf16: false, fp16: false, lr: null}\n"
      "mixed_precision: {_target_: megatron.bridge.training.mixed_precision.bf16_mixed, _call_: "
      "true}\n"
      "recompute: null\n";
  const TemporaryFolder folder;
  std::ofstream(folder / "below.yaml")
      << kBase << "optimizer: {lr: 0.5, betas: [0.7, 0.95]}\nrecompute: full\n";
  std::ofstream(folder / "dump.yaml") << "base: below.yaml\n" << dump;
  Diagnostics diagnostics;
  const auto r =
      read_recipe(interchange::model_source(), (folder / "dump.yaml").string(), {}, diagnostics);
  INFO(listed(diagnostics));
  REQUIRE(r);
  CHECK_FALSE(diagnostics.has_errors());
  CHECK(r->optimizer.lr == 0.5);
  CHECK(r->optimizer.betas == std::array{0.8, 0.95});
  CHECK(r->mixed_precision.name == Precision::bf16_mixed);
  CHECK(r->recompute.granularity == RecomputeGranularity::full);
}

}  // namespace recipe_layers_test
