// Tests keys of config.json in published folders: which are accepted, which are refused, and how a
// user ignores an unknown one.
#include <fmt/core.h>

#include "base/file.h"
#include "interchange/config/harmless_keys.h"
#include "interchange/config/reader.h"
#include "interchange/model_source.h"
#include "recipe_cases.h"
#include "test/support/temporary_folder.h"

namespace interchange_config_keys_test {

using namespace mtrain;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

// Returns the messages about Llama's config.json with these additional keys, and about a recipe
// that names its folder and has these settings.
std::string complaints(const std::string& keys, const std::vector<std::string>& set = {},
                       const std::string& family = "llama", Severity severity = Severity::error) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "config.json", fmt::format(R"({{"model_type": "{}"{}{}}})", family,
                                                        keys.empty() ? "" : ", ", keys));
  std::vector<std::string> all{"model.from=" + folder.path.string()};
  all.insert(all.end(), set.begin(), set.end());
  Diagnostics diagnostics;
  recipe::read_recipe_text(interchange::model_source(), "model: {init: random}\n", "r.yaml", all,
                           diagnostics);
  return diagnostics.text(severity);
}

}  // namespace

TEST_CASE("keys without effect on training are accepted from any tool") {
  for (const char* key : {R"("unsloth_fixed": true)",
                          R"("unsloth_version": "2024.9")",
                          R"("_model_name_or_path": "a/b")",
                          R"("_name_or_path": "/data/x")",
                          R"("unk_token_id": 0)",
                          R"("do_sample": true)",
                          R"("torchscript": false)",
                          R"("pruned_heads": {})",
                          R"("tie_encoder_decoder": false)",
                          R"("is_decoder": false)",
                          R"("num_labels": 2)",
                          R"("top_k": 50)",
                          R"("top_p": 1.0)",
                          R"("temperature": 0.6)",
                          R"("max_length": 20)",
                          R"("bad_words_ids": null)",
                          R"("length_penalty": 1.0)",
                          R"("use_bfloat16": false)",
                          R"("prefix": null)",
                          R"("sep_token_id": 3)",
                          R"("attn_implementation": "sdpa")",
                          R"("_flash_attn_2_enabled": true)",
                          R"("model_max_length": 4096)",
                          R"("max_new_tokens": 512)",
                          R"("experts_implementation": "eager")"})
    CHECK(complaints(key) == "");
}

TEST_CASE("null, {} and [] of any key pass, and other values of an unknown key are refused") {
  for (const char* value : {"null", "{}", "[]"})
    CHECK(complaints(fmt::format(R"("logit_scale": {})", value)) == "");
  for (const char* value : {"1", "0", "false", "\"\"", "{\"a\": 1}", "[0]"})
    CHECK_THAT(complaints(fmt::format(R"("logit_scale": {})", value)),
               Contains("the key logit_scale is not understood"));
}

TEST_CASE("no key by which some family computes passes for harmless") {
  for (const char* key : {"layer_norm_eps",
                          "layer_norm_epsilon",
                          "clip_qkv",
                          "attention_dropout",
                          "hidden_dropout",
                          "neftune_noise_alpha",
                          "logit_scale",
                          "logits_scaling",
                          "residual_multiplier",
                          "embedding_multiplier",
                          "attention_multiplier",
                          "rope_interleaved",
                          "rotary_pct",
                          "rotary_dim",
                          "alibi",
                          "parallel_attn",
                          "use_parallel_residual",
                          "scale_emb",
                          "dim_model_base",
                          "scale_depth",
                          "no_bias",
                          "q_lora_rank",
                          "kv_lora_rank",
                          "final_logit_softcapping",
                          "query_pre_attn_scalar",
                          "qk_layernorm",
                          "use_qk_norm",
                          "attention_chunk_size",
                          "attn_temperature_tuning",
                          "is_decoder",
                          "add_cross_attention",
                          "pruned_heads",
                          "quantization_config",
                          "rope_scaling",
                          "sliding_window",
                          "mlp_bias"})
    CHECK_FALSE(interchange::is_harmless_key(key));
  for (const char* family : {"llama", "gpt2", "qwen3", "gemma2"})
    for (const char* key : {"layer_norm_eps", "clip_qkv", "neftune_noise_alpha"})
      CHECK_THAT(complaints(fmt::format(R"("{}": 0.5)", key), {}, family), Contains(key));
}

TEST_CASE("the error about unknown keys names them all, and the setting that ignores them") {
  const std::string text = complaints(R"("clip_qkv": 8, "logit_scale": 2)");
  CHECK_THAT(text, Contains("the keys clip_qkv, logit_scale are not understood") &&
                       Contains("model.ignore_keys: [clip_qkv, logit_scale]") &&
                       Contains("--ignore-keys clip_qkv,logit_scale"));
  std::string many;
  for (int i = 0; i < 1000; ++i) many += fmt::format(R"({}"key{}": 1)", i ? ", " : "", i);
  const std::string bounded = complaints(many);
  CHECK_THAT(bounded, Contains("and 980 more"));
  CHECK(bounded.size() < 2000);
}

TEST_CASE("model.ignore_keys ignores the keys that it names, and no others") {
  CHECK(complaints(R"("clip_qkv": 8)", {"model.ignore_keys=[clip_qkv]"}) == "");
  CHECK(complaints(R"("clip_qkv": 8)", {"model.ignore_keys=clip_qkv"}) == "");
  CHECK(complaints(R"("clip_qkv": 8, "x": 1)", {"model.ignore_keys=[clip_qkv, x]"}) == "");
  CHECK_THAT(complaints(R"("clip_qkv": 8, "x": 1)", {"model.ignore_keys=[clip_qkv]"}),
             Contains("the key x is not understood"));
  CHECK_THAT(complaints("", {"model.ignore_keys=[clip_qkw]"}, "llama", Severity::warning),
             Contains("has no key clip_qkw"));
  Diagnostics diagnostics;
  const Recipe r = interchange::read_config_json(R"({"model_type": "llama", "clip_qkv": 8})",
                                                 "config.json", diagnostics, {"clip_qkv"});
  CHECK(diagnostics.text(Severity::error) == "");
  CHECK(r.model.ignore_keys == std::vector<std::string>{"clip_qkv"});
  CHECK_THAT(recipe::print_recipe(r), Contains("ignore_keys: [clip_qkv]"));
}

TEST_CASE("model.ignore_keys cannot name a key that describes the model") {
  for (const char* key :
       {"hidden_size", "rope_theta", "rope_scaling", "rope_parameters", "sliding_window",
        "layer_types", "mlp_bias", "attention_bias", "tie_word_embeddings", "model_type",
        "quantization_config", "partial_rotary_factor", "pretraining_tp", "vision_config",
        "num_nextn_predict_layers", "attention_dropout"})
    CHECK_THAT(complaints("", {fmt::format("model.ignore_keys=[{}]", key)}),
               Contains(fmt::format("{} is a key by which mtrain reads", key)));
}

TEST_CASE("a yarn map that says it was finetuned is a yarn map") {
  CHECK(complaints(R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0, "finetuned": true,
    "original_max_position_embeddings": 2048})") == "");
}

TEST_CASE("a config.json that is deep, huge or of another kind costs a message") {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  CHECK_THAT(complaints("\"a\": " + deep), Contains("config.json: not JSON at byte"));
  std::string many;
  for (int i = 0; i < 400'000; ++i) many += fmt::format(R"({}"key{}": 1)", i ? ", " : "", i);
  CHECK_THAT(complaints(many), Contains("such a file has at most 4.00 MiB"));
}

}  // namespace interchange_config_keys_test
