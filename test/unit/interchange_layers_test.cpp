// Tests the keys of SmolLM3, OLMo 2, Gemma 2 and Gemma 3 for layers, norms and caps, in the
// spellings of transformers 4 and 5.
#include <fstream>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "interchange/config.h"
#include "interchange/config/reader.h"
#include "interchange/model_differences.h"
#include "interchange/model_source.h"
#include "recipe/model_spec.h"
#include "test/support/interchange_testing.h"
#include "test/support/temporary_folder.h"

namespace interchange_layers_test {

using namespace mtrain;
using Catch::Matchers::Contains;
using nlohmann::json;
using recipe::ModelConfig;
using recipe::NormPlacement;

namespace {

ModelConfig model_of(const std::string& config) {
  Diagnostics diagnostics;
  const recipe::Recipe r = interchange::read_config_json(config, "config.json", diagnostics);
  INFO(config << "\n" << diagnostics.text(recipe::Severity::error));
  CHECK_FALSE(diagnostics.has_errors());
  return r.model;
}

std::string error_of(const std::string& config) {
  Diagnostics diagnostics;
  interchange::read_config_json(config, "some/config.json", diagnostics);
  return diagnostics.text(recipe::Severity::error);
}

// Returns which layers have a property, as "0110".
std::string ropes(const ModelConfig& m) {
  std::string layers;
  for (const spec::LayerSpec& layer : recipe::model_spec(m).layers)
    layers += layer.grouped().rotary.dims > 0 ? '1' : '0';
  return layers;
}
std::string windows(const ModelConfig& m) {
  std::string layers;
  for (const spec::LayerSpec& layer : recipe::model_spec(m).layers)
    layers += layer.grouped().window > 0 ? '1' : '0';
  return layers;
}

std::string written(const std::string& model, json& config) {
  Diagnostics diagnostics;
  const auto r = recipe::read_recipe_text(interchange::model_source(), "model: " + model + "\n",
                                          "r.yaml", {}, diagnostics);
  INFO(model << "\n" << diagnostics.text(recipe::Severity::error));
  REQUIRE(r);
  REQUIRE_FALSE(diagnostics.has_errors());
  std::string type;
  config = json::parse(interchange::write_config(*r, {"", "bfloat16"}, type));
  return type;
}

}  // namespace

TEST_CASE("an empty configuration means the model that transformers would make") {
  const ModelConfig smollm3 = model_of(R"({"model_type": "smollm3"})");
  CHECK(smollm3.num_layers == 36);
  CHECK(smollm3.rotary_base == 2e6);
  CHECK(smollm3.no_rope_freq == std::vector<int64_t>{4});
  CHECK(smollm3.share_embeddings_and_output_weights);
  const ModelConfig olmo2 = model_of(R"({"model_type": "olmo2"})");
  CHECK(olmo2.norm_placement == NormPlacement::post);
  CHECK((olmo2.qk_layernorm && olmo2.qk_layernorm_all_heads));
  CHECK(olmo2.norm_epsilon == 1e-5);
  CHECK(olmo2.rotary_base == 1e4);
  CHECK_FALSE(olmo2.share_embeddings_and_output_weights);
  const ModelConfig gemma2 = model_of(R"({"model_type": "gemma2"})");
  CHECK(gemma2.norm_placement == NormPlacement::sandwich);
  CHECK(gemma2.layernorm_zero_centered_gamma);
  CHECK(gemma2.activation == recipe::Activation::geglu);
  CHECK(gemma2.embedding_multiplier == 48);  // the square root of 2304
  CHECK(gemma2.attn_logit_softcapping == 50.0);
  CHECK(gemma2.final_logit_softcapping == 30.0);
  CHECK(gemma2.query_pre_attn_scalar == 256.0);
  CHECK(gemma2.kv_channels == 256);
  CHECK(gemma2.window_size == 4096);
  CHECK(gemma2.window_attn_skip_freq == std::vector<int64_t>{2});
  CHECK_FALSE(gemma2.rotary_base_local);
  CHECK_FALSE(gemma2.qk_layernorm);
  const ModelConfig gemma3 = model_of(R"({"model_type": "gemma3_text"})");
  CHECK(gemma3.norm_placement == NormPlacement::sandwich);
  CHECK((gemma3.qk_layernorm && !gemma3.qk_layernorm_all_heads));
  CHECK_FALSE(gemma3.attn_logit_softcapping);
  CHECK_FALSE(gemma3.final_logit_softcapping);
  CHECK(gemma3.rotary_base == 1e6);
  CHECK(gemma3.rotary_base_local == 1e4);
  CHECK(gemma3.window_size == 4096);
  CHECK(gemma3.window_attn_skip_freq == std::vector<int64_t>{6});
}

TEST_CASE("configurations with the keys of published folders are read") {
  const ModelConfig smollm3 = model_of(R"({"architectures": ["SmolLM3ForCausalLM"],
    "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": null, "eos_token_id": 128012,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 11008, "layer_types": ["full_attention", "full_attention",
    "full_attention", "full_attention"], "max_position_embeddings": 65536, "max_window_layers": 28,
    "mlp_bias": false, "model_type": "smollm3", "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0], "num_attention_heads": 16, "num_hidden_layers": 4,
    "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 5000000.0, "sliding_window": null,
    "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": false,
    "use_sliding_window": false, "vocab_size": 128256})");
  CHECK(ropes(smollm3) == "1110");
  CHECK((smollm3.rotary_base == 5e6 && smollm3.share_embeddings_and_output_weights));
  const ModelConfig gemma2 = model_of(R"({"architectures": ["Gemma2ForCausalLM"],
    "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": 50.0,
    "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
    "final_logit_softcapping": 30.0, "head_dim": 128, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 4608, "initializer_range": 0.02,
    "intermediate_size": 36864, "max_position_embeddings": 8192, "model_type": "gemma2",
    "num_attention_heads": 32, "num_hidden_layers": 46, "num_key_value_heads": 16,
    "pad_token_id": 0, "query_pre_attn_scalar": 144, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "sliding_window": 4096, "sliding_window_size": 4096, "torch_dtype": "bfloat16",
    "transformers_version": "4.42.0.dev0",
    "use_cache": true, "vocab_size": 256000, "_attn_implementation": "eager"})");
  CHECK((gemma2.query_pre_attn_scalar == 144.0 && gemma2.kv_channels == 128));
  const ModelConfig gemma3 = model_of(R"({"architectures": ["Gemma3ForCausalLM"],
    "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": null,
    "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
    "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152, "initializer_range": 0.02, "intermediate_size": 6912,
    "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
    "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0,
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
    "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
    "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
    "use_cache": true, "vocab_size": 262144})");
  CHECK(gemma3.window_attn_skip_freq == std::vector<int64_t>{6});
  CHECK((gemma3.window_size == 512 && gemma3.rotary_base_local == 1e4));
}

TEST_CASE("SmolLM3 lists the layers with rotary positions, or says every how many have none") {
  const auto layers = [](const std::string& keys) {
    return model_of(R"({"model_type": "smollm3", "num_hidden_layers": 6, )" + keys + "}");
  };
  CHECK(ropes(layers(R"("no_rope_layer_interval": 3)")) == "110110");
  CHECK(ropes(layers(R"("no_rope_layer_interval": 7)")) == "111111");
  CHECK(ropes(layers(R"("no_rope_layers": [1, 0, 0, 1, 1, 1], "no_rope_layer_interval": 3)")) ==
        "100111");
  CHECK(ropes(layers(R"("no_rope_layers": [0, 0, 0, 0, 0, 0, 1, 1])")) == "000000");
  CHECK(ropes(layers(R"("no_rope_layers": null)")) == "111011");
  CHECK(windows(layers(R"("use_sliding_window": true, "sliding_window": 8,
    "no_rope_layer_interval": 2)")) == "010101");
  CHECK(windows(layers(R"("use_sliding_window": true)")) == "000000");  // without a width
  CHECK(windows(layers(R"("sliding_window": 8)")) == "000000");
  CHECK(windows(layers(R"("use_sliding_window": true, "sliding_window": 8, "layer_types": [
    "sliding_attention", "full_attention", "full_attention", "full_attention", "full_attention",
    "full_attention"])")) == "100000");
}

TEST_CASE("null says that Gemma has no cap, whatever is usual") {
  const ModelConfig m = model_of(R"({"model_type": "gemma2", "attn_logit_softcapping": null,
    "final_logit_softcapping": null})");
  CHECK_FALSE(m.attn_logit_softcapping);
  CHECK_FALSE(m.final_logit_softcapping);
  CHECK(model_of(R"({"model_type": "gemma3_text", "final_logit_softcapping": 7.5})")
            .final_logit_softcapping == 7.5);
}

TEST_CASE("Gemma's windows follow a pattern, or layer_types") {
  const auto layers = [](const char* type, const std::string& keys) {
    return model_of(
        fmt::format(R"({{"model_type": "{}", "num_hidden_layers": 4, {}}})", type, keys));
  };
  CHECK(windows(layers("gemma2", R"("sliding_window": 8)")) == "1010");
  CHECK(windows(layers("gemma3_text", R"("sliding_window": 8)")) == "1111");
  CHECK(windows(layers("gemma3_text", R"("sliding_window_pattern": 3)")) == "1101");
  CHECK(windows(layers("gemma3_text", R"("_sliding_window_pattern": 3)")) == "1111");  // not read
  const std::string types = R"("layer_types": ["full_attention", "sliding_attention",
    "full_attention", "full_attention"])";
  const ModelConfig some = layers("gemma3_text", types + R"(, "sliding_window_pattern": 3)");
  CHECK(windows(some) == "0100");
  CHECK(some.window_size == 4096);
  const ModelConfig none = layers("gemma3_text", R"("sliding_window_pattern": 1)");
  CHECK(windows(none) == "0000");
  CHECK_FALSE((none.window_size || none.rotary_base_local));  // no layer would use them
  CHECK(none.window_attn_skip_freq == std::vector<int64_t>{0});
}

TEST_CASE("Gemma 3 has the positions of transformers 4 and 5 in both spellings") {
  const std::string full = R"({"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0})";
  const std::string four = R"({"model_type": "gemma3_text", "rope_theta": 500,
    "rope_local_base_freq": 50, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})";
  const std::string five =
      R"({"model_type": "gemma3_text", "rope_parameters": {"full_attention": )" + full +
      R"(, "sliding_attention": {"rope_type": "default",
    "rope_theta": 50.0}}})";
  // In this key, a base may be left out.
  const std::string mixed = R"({"model_type": "gemma3_text", "rope_local_base_freq": 50,
    "rope_parameters": {"sliding_attention": {"rope_type": "default"}, "full_attention": )" +
                            full + "}}";
  for (const std::string& text : {four, five, mixed}) {
    INFO(text);
    const ModelConfig m = model_of(text);
    CHECK(m.rotary_base == 500);
    CHECK(m.rotary_base_local == 50.0);
    CHECK(m.rope_scaling.type == recipe::RopeScalingType::linear);
    CHECK(m.rope_scaling.factor == 8);
    CHECK(interchange::model_differences(m, model_of(four)).empty());
  }
  const ModelConfig bare = model_of(R"({"model_type": "gemma3_text", "rope_parameters": {}})");
  CHECK((bare.rotary_base == 1e6 && bare.rotary_base_local == 1e4));
}

TEST_CASE("settings that these families cannot express are refused by file and key") {
  for (const auto& [text, gist] :
       {std::pair{R"({"model_type": "smollm3", "num_hidden_layers": 3, "no_rope_layers": [1, 0]})",
                  "no_rope_layers must list a number for each of the 3 layers"},
        {R"({"model_type": "smollm3", "no_rope_layers": 4})", "no_rope_layers must list"},
        {R"({"model_type": "smollm3", "no_rope_layer_interval": 0})",
         "no_rope_layer_interval is 0, and must be at least 1"},
        {R"({"model_type": "smollm3", "num_hidden_layers": 1, "sliding_window": 8,
             "layer_types": ["sliding_attention"]})",
         "layer_types gives a window to 1 of 1 layers"},
        {R"({"model_type": "smollm3", "no_rope_layers": [1, true]})", "no_rope_layers must list"},
        {R"({"model_type": "smollm3", "num_hidden_layers": 2, "no_rope_layers": [1, true]})",
         "no_rope_layers has the text `true`"},
        {R"({"model_type": "smollm3", "num_hidden_layers": 2, "no_rope_layers": [1.0, 0]})",
         "no_rope_layers has the number 1.0"},
        {R"({"model_type": "smollm3", "num_hidden_layers": 2, "no_rope_layers": [1, "0"]})",
         "no_rope_layers has the quoted text"},
        {R"({"model_type": "smollm3", "num_hidden_layers": 2, "no_rope_layers": [1, 2]})",
         "no_rope_layers has the number 2"},
        {R"({"model_type": "smollm3", "no_rope_layer_interval": "four"})",
         "no_rope_layer_interval: expected a whole number, got"},
        {R"({"model_type": "gemma2", "sliding_window": 8, "sliding_window_size": 4096})",
         "sliding_window_size is 4096, and only 8 is supported"},
        {R"({"model_type": "gemma2", "sliding_window_size": 8})",
         "sliding_window_size is 8, and only 4096 is supported"},
        {R"({"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_size": 8})",
         "the key sliding_window_size"},
        {R"({"model_type": "gemma3_text", "sliding_window_pattern": [1, 2]})",
         "sliding_window_pattern: expected a whole number, got a list"},
        {R"({"model_type": "qwen2_moe", "num_hidden_layers": 1, "sliding_window": 8,
             "use_sliding_window": false, "layer_types": ["sliding_attention"]})",
         "1 of 1 layers, with sliding_window 8, and use_sliding_window false"},
        {R"({"model_type": "qwen3_moe", "num_hidden_layers": 1, "sliding_window": 8,
             "layer_types": ["sliding_attention"]})",
         "1 of 1 layers, with sliding_window 8, and use_sliding_window left out"},
        {R"({"model_type": "qwen2", "max_window_layers": "two"})",
         "max_window_layers: expected a whole number, got"},
        {R"({"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 2}})",
         "have a type, and no rope_type"},
        {R"({"model_type": "gemma3_text", "rope_parameters": {"sliding_attention": {
             "type": "linear", "factor": 2}}})",
         "have a type, and no rope_type"},
        {R"({"model_type": "llama", "no_rope_layers": [1, 0]})", "the key no_rope_layers"},
        {R"({"model_type": "olmo2", "hidden_act": "gelu"})", "hidden_act gelu is not supported"},
        {R"({"model_type": "olmo2", "clip_qkv": 8.0})", "the key clip_qkv"},
        {R"({"model_type": "olmo2", "rope_parameters": {"full_attention": {"rope_theta": 5}}})",
         "its rotary positions differ by full_attention"},
        {R"({"model_type": "gemma2", "hidden_activation": "gelu"})",
         "hidden_activation gelu is not supported"},
        {R"({"model_type": "gemma2", "hidden_act": "gelu"})",
         "hidden_act is gelu, and only gelu_pytorch_tanh is supported"},
        {R"({"model_type": "gemma2", "use_bidirectional_attention": true})",
         "use_bidirectional_attention is true"},
        {R"({"model_type": "gemma2", "sliding_window": null})",
         "gives a window to 13 of 26 layers, with sliding_window null"},
        {R"({"model_type": "gemma3_text", "sliding_window_pattern": 0})",
         "sliding_window_pattern is 0"},
        {R"({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0})",
         "attn_logit_softcapping is 50.0, and only null is supported"},
        {R"({"model_type": "gemma3_text", "rope_parameters": {"rope_type": "default"}})",
         "the key rope_type of its rope_parameters"},
        {R"({"model_type": "gemma3_text", "rope_parameters": {"sliding_attention": {
             "rope_type": "linear", "factor": 2}}})",
         "of type linear in layers with a window"},
        {R"({"model_type": "gemma3_text", "rope_parameters": {"full_attention": {}},
             "rope_scaling": {"rope_type": "linear", "factor": 2}})",
         "rope_parameters and rope_scaling"}}) {
    INFO(text);
    CHECK_THAT(error_of(text), Contains("some/config.json") && Contains(gist));
  }
  CHECK_THAT(error_of(R"({"model_type": "gemma2", "final_logit_softcapping": 0})"),
             Contains("final_logit_softcapping"));
}

TEST_CASE("rotary positions that are given twice must be the same") {
  const auto both = [](const char* family, const std::string& keys) {
    return fmt::format(R"({{"model_type": "{}", {}}})", family, keys);
  };
  const std::string parameters =
      R"("rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 500.0})";
  for (const char* scaling :
       {R"({"type": "linear", "factor": 2.0})", R"({"rope_type": "linear", "factor": 2})", "null",
        "{}", R"({"type": "linear", "factor": 2, "rope_theta": 500})"}) {
    INFO(scaling);
    const ModelConfig m = model_of(both(
        "llama", parameters + R"(, "rope_theta": 500, "rope_scaling": )" + std::string(scaling)));
    CHECK((m.rotary_base == 500 && m.rope_scaling.factor == 2));
  }
  const std::string theta = R"(, "rope_theta": 500, "rope_scaling": )";
  for (const auto& [rest, key] :
       {std::pair{theta + R"({"type": "linear", "factor": 4})", "differ in factor"},
        {theta + R"({"type": "dynamic", "factor": 2})", "differ in"},
        {theta + R"({"factor": 2})", "differ in rope_type"},
        {theta + R"({"type": "linear"})", "differ in factor"},
        {theta + R"({"type": "linear", "factor": 2, "rope_theta": 400})", "differ in rope_theta"},
        {theta + R"({"type": "linear", "factor": "2"})", "differ in factor"},
        // transformers then uses the family's base.
        {R"(, "rope_scaling": {"type": "linear", "factor": 2})", "differ in rope_theta"}})
    for (const char* family : {"llama", "qwen3", "olmo2"}) {
      INFO(family << " " << rest);
      CHECK_THAT(error_of(both(family, parameters + rest)),
                 Contains("there are rope_parameters and rope_scaling") && Contains(key));
    }
}

TEST_CASE("null for a switch means false, whatever the family's default") {
  for (const char* family : {"gemma2", "smollm3", "gpt2"}) {
    INFO(family);
    CHECK_FALSE(
        model_of(fmt::format(R"({{"model_type": "{}", "tie_word_embeddings": null}})", family))
            .share_embeddings_and_output_weights);
  }
  CHECK_FALSE(model_of(R"({"model_type": "qwen2_moe", "qkv_bias": null})").qkv_bias());
}

TEST_CASE("the same width of Gemma 2's windows stays where it stood twice") {
  const ModelConfig m = model_of(R"({"model_type": "gemma2"})");
  recipe::Recipe r;
  r.model = m;
  r.model.window_size = 16;
  std::string type;
  const json config = json::parse(interchange::write_config(
      r, {R"({"model_type": "gemma2", "sliding_window": 8, "sliding_window_size": 8})", "bfloat16"},
      type));
  CHECK((type == "gemma2" && config.at("sliding_window_size") == 16));
}

TEST_CASE("a folder of Gemma 3 with images is recognised, and refused with a remedy") {
  const TemporaryFolder temporary;
  std::ofstream(temporary / "config.json") << R"({"model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"hidden_size": 32},
    "vision_config": {"hidden_size": 16}, "mm_tokens_per_image": 4})";
  CHECK_THROWS_WITH(interchange::read_config(temporary.path),
                    Contains((temporary / "config.json").string()) &&
                        Contains("Gemma3ForConditionalGeneration") && Contains("gemma3_text") &&
                        Contains("save_pretrained"));
}

TEST_CASE("a recipe of one of these families is written as that family") {
  const std::string sizes =
      "num_layers: 4, hidden_size: 32, num_attention_heads: 4, vocab_size: 64, "
      "max_position_embeddings: 128";
  json config;
  CHECK(written("{architecture: smollm3, " + sizes + "}", config) == "smollm3");
  CHECK(config.at("no_rope_layers") == json({1, 1, 1, 0}));
  CHECK(config.at("use_sliding_window") == false);
  CHECK(written("{" + sizes + ", no_rope_freq: [0, 1, 1, 0]}", config) == "smollm3");
  CHECK(config.at("no_rope_layers") == json({1, 0, 0, 1}));
  CHECK(config.at("tie_word_embeddings") == false);
  CHECK(written("{architecture: olmo2, " + sizes + ", rope_scaling: {type: linear, factor: 2}}",
                config) == "olmo2");
  CHECK(config.at("rope_scaling") == json{{"type", "linear"}, {"factor", 2.0}});
  CHECK(written("{architecture: gemma2, " + sizes + ", window_size: 16}", config) == "gemma2");
  CHECK(config.at("hidden_activation") == "gelu_pytorch_tanh");
  // transformers 5 requires these types.
  CHECK((config.at("attn_logit_softcapping") == 50.0 && config.at("query_pre_attn_scalar") == 8));
  CHECK(config.at("attn_logit_softcapping").is_number_float());
  CHECK(config.at("query_pre_attn_scalar").is_number_integer());
  written("{architecture: gemma2, " + sizes + ", query_pre_attn_scalar: 1.0e+7}", config);
  CHECK(config.at("query_pre_attn_scalar").is_number_integer());
  CHECK_THROWS_WITH(
      written("{architecture: gemma2, " + sizes + ", query_pre_attn_scalar: 24.5}", config),
      Contains("gemma2: model.query_pre_attn_scalar: 24.5, not a whole number"));
  CHECK(config.at("layer_types") ==
        json({"sliding_attention", "full_attention", "sliding_attention", "full_attention"}));
  CHECK(written("{architecture: gemma2, " + sizes + ", attn_logit_softcapping: none}", config) ==
        "gemma2");
  CHECK(config.at("attn_logit_softcapping").is_null());
  CHECK(written("{architecture: gemma3_text, " + sizes +
                    ", window_size: none, "
                    "window_attn_skip_freq: 0, rotary_base_local: none}",
                config) == "gemma3_text");
  CHECK(config.at("layer_types") ==
        json({"full_attention", "full_attention", "full_attention", "full_attention"}));
  CHECK(config.at("sliding_window").is_number());  // transformers makes a mask from it in any case
  CHECK(written("{architecture: gemma3_text, " + sizes + ", rotary_base_local: none}", config) ==
        "gemma3_text");
  CHECK(config.at("rope_local_base_freq") == 1e6);
  // No family is Gemma without its scale of embeddings.
  CHECK_THROWS_WITH(
      written("{architecture: gemma2, " + sizes + ", embedding_multiplier: 1}", config),
      Contains("gemma2: model.embedding_multiplier: 1, not 5.656854"));
}

TEST_CASE("a norm that the family does not have may not stand beside model.from") {
  for (const auto& [folder, field] : {std::pair{"olmo2", "norm_placement: pre"},
                                      {"gemma2", "layernorm_zero_centered_gamma: false"},
                                      {"gemma2", "embedding_multiplier: 2"},
                                      {"gemma3_text", "qk_layernorm_all_heads: true"},
                                      {"smollm3", "norm_placement: sandwich"}}) {
    INFO(folder << " with " << field);
    Diagnostics diagnostics;
    const auto r = recipe::read_recipe_text(
        interchange::model_source(),
        fmt::format("model:\n  from: {}\n  {}\n", (golden_hf() / folder).string(), field), "r.yaml",
        {}, diagnostics);
    REQUIRE(r);
    interchange::check_folder_model(*r, diagnostics);
    CHECK_THAT(diagnostics.text(recipe::Severity::error),
               Contains(std::string("model.") +
                        std::string(field).substr(0, std::string(field).find(':'))));
  }
}

}  // namespace interchange_layers_test
