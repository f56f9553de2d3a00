// Tests names of other systems that ask for more than mtrain does: they have an effect, warn, or
// are refused.
#include <fmt/core.h>

#include "interchange/model_source.h"
#include "recipe/load/find_recipe.h"
#include "recipe/schema/schema.h"
#include "recipe_cases.h"

namespace recipe_foreign_asks_test {

using namespace mtrain;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

Diagnostics diagnostics_of(const std::string& text) {
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(), kBase + text, "r.yaml", {}, diagnostics);
  return diagnostics;
}

}  // namespace

TEST_CASE("settings of AutoModel's backend that change training act") {
  const auto shown = [](const std::string& text, const char* field) {
    Diagnostics diagnostics;
    const auto r =
        read_recipe_text(interchange::model_source(), kBase + text, "r.yaml", {}, diagnostics);
    INFO(text << listed(diagnostics));
    CHECK_FALSE(diagnostics.has_errors());
    return find_row(field)->show(*r);
  };
  const auto backend = [](const std::string& keys) {
    return "model.backend: {_target_: nemo_automodel.components.models.common.BackendConfig, attn: "
           "te, " +
           keys + "}\n";
  };
  struct Row {
    const char *keys, *fp8, *scales;
  };
  for (const Row& row :
       {Row{"te_fp8: {recipe: current}", "hybrid", "tensorwise"},
        Row{"te_fp8: {_target_: nemo_automodel.TEFp8Config, recipe: block}", "e4m3", "blockwise"},
        Row{"te_fp8: {recipe: mxfp8}", "e4m3", "mxfp8"},
        Row{"te_fp8: {recipe: {_target_: te.recipe.DelayedScaling}}", "hybrid", "delayed"},
        Row{"te_fp8: {}", "hybrid", "tensorwise"}, Row{"te_fp8: true", "hybrid", "tensorwise"},
        Row{"te_fp8: null", "none", "tensorwise"}, Row{"te_fp8: false", "none", "tensorwise"}}) {
    CHECK(shown(backend(row.keys), "mixed_precision.fp8") == row.fp8);
    CHECK(shown(backend(row.keys), "mixed_precision.fp8_recipe") == row.scales);
  }
  CHECK(shown("model.backend.te_fp8.recipe: block\n", "mixed_precision.fp8_recipe") == "blockwise");
  CHECK(shown(backend("fake_balanced_gate: true"), "debug.route") == "balanced");
  CHECK(shown(backend("fake_balanced_gate: false"), "debug.route") == "none");
  CHECK(shown("model.moe_router_force_load_balancing: true\n", "debug.route") == "balanced");
  CHECK(shown(backend("gate_precision: bfloat16"), "model.moe.router_dtype") == "bf16");
}

TEST_CASE("keys that ask for unsupported features warn or are refused") {
  struct Row {
    const char* text;
    Severity severity;
    const char* gist;
  };
  constexpr Severity kWarned = Severity::warning, kRefused = Severity::error;
  for (const Row& row :
       std::vector<Row>{{"model.backend.te_fp8: {recipe: nvfp4}", kRefused, "nvfp4"},
                        {"model.backend.te_fp8: {recipe: current, margin: 2}", kRefused, "margin"},
                        {"model.backend.fake_gate_noise: 0.1", kRefused, "noise"},
                        {"model.backend.te_fp4: true", kWarned, "te_fp4"},
                        {"model.torch_dtype: float32", kWarned, "model.torch_dtype"},
                        {"model.dtype: float16", kWarned, "model.dtype"},
                        {"model.load_base_model: false", kRefused, "model.init: random"},
                        {"distributed.autocast_dtype: float16", kWarned, "autocast_dtype"},
                        {"distributed.activation_checkpointing_scope: vision", kWarned, "tower"},
                        {"mixed_precision.autocast_enabled: true", kWarned, "autocast"},
                        {"scheduler.lr_warmup_steps: 100", kWarned, "samples"},
                        {"packed_sequence.split_across_pack: false", kWarned, "drop_long_samples"},
                        {"validation_dataset.num_val_samples: 100", kWarned, "validation.steps"},
                        {"step_scheduler.num_epochs: 0", kRefused, "greater than 0"},
                        {"model.group_query_attention: false", kRefused, "num_query_groups"}}) {
    const Diagnostics diagnostics = diagnostics_of(row.text + std::string("\n"));
    INFO(row.text << "\n" << listed(diagnostics));
    CHECK_THAT(diagnostics.text(row.severity), Contains(row.gist));
  }
  for (const char* text :
       {"model.torch_dtype: bf16", "model.backend.te_fp4: null", "model.load_base_model: true",
        "distributed.activation_checkpointing_scope: all", "scheduler.lr_warmup_steps: null",
        "step_scheduler: {num_epochs: 2, max_steps: 9}", "model.group_query_attention: true"})
    CHECK_FALSE(diagnostics_of(text + std::string("\n")).has_errors());
  Diagnostics alone;
  plan::load_recipe_text(interchange::model_source(),
                         "dataset: {train: x}\nmodel: {group_query_attention: true}\n", "r.yaml",
                         {}, alone);
  CHECK_THAT(alone.text(Severity::error), Contains("number of groups is not given"));
}

TEST_CASE("Megatron-Bridge's variables for hardware queues and norms are settings") {
  Diagnostics diagnostics;
  const auto r = read_recipe_text(
      interchange::model_source(),
      kBase + std::string("env_vars: {CUDA_DEVICE_MAX_CONNECTIONS: '32', X: y, "
                          "NVTE_FWD_LAYERNORM_SM_MARGIN: 20, NVTE_BWD_LAYERNORM_SM_MARGIN: 20}\n"),
      "r.yaml", {}, diagnostics);
  INFO(listed(diagnostics));
  REQUIRE(r);
  CHECK_FALSE(diagnostics.has_errors());
  CHECK(r->launch.cuda_device_max_connections == 32);
  CHECK(r->launch.layernorm_sm_margin == 20);
  CHECK(r->launch.variables() == std::map<std::string, std::string>{{"X", "y"}});
}

TEST_CASE("a function of Megatron-Bridge whose name asks for more than its recipe is refused") {
  const std::string folder = MTRAIN_SOURCE_DIR "/recipes";
  const auto found = [&](const std::string& name) {
    Diagnostics diagnostics;
    const std::string path = recipe::find_recipe(name, {folder}, diagnostics);
    CHECK(path.empty() == diagnostics.has_errors());
    return diagnostics.has_errors() ? diagnostics.text(Severity::error) : path;
  };
  struct Row {
    const char *name, *gist;
  };
  for (const Row& row :
       {Row{"llama3_8b_pretrain_8gpu_gb200_nvfp4_config", "nvfp4 is not supported"},
        Row{"llama3_8b_pretrain_8gpu_h100_fp8cs_config",
            "--recipe llama3_8b mixed_precision=bf16_with_fp8_current"},
        Row{"llama3_8b_pretrain_8gpu_b200_fp8mx_config", "bf16_with_mxfp8_mixed"},
        Row{"llama3_8b_pretrain_16k_config", "dataset.seq_length=16384"},
        Row{"llama3_8b_pretrain_128k_config", "dataset.seq_length=131072"},
        Row{"llama32_1b_pretrain_deterministic_config",
            "--recipe llama3_2_1b debug.deterministic=true"},
        Row{"llama3_8b_pretrain_fp8ds_64k_config",
            "bf16_with_fp8_delayed_scaling_mixed dataset.seq_length=65536"},
        Row{"llama3_8b_pretrain_v2_config", "v2 is not supported"}})
    CHECK_THAT(found(row.name), Contains(row.gist));
  for (const char* plain :
       {"llama3_8b_pretrain_config", "llama3_8b_pretrain_8gpu_gb200_bf16_config",
        "llama3_8b_pretrain_2gpu_h100_bf16_config"})
    CHECK_THAT(found(plain), Contains("llama3_8b.yaml"));
}

}  // namespace recipe_foreign_asks_test
