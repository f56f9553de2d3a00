#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "interchange/config.h"
#include "interchange/config/keys.h"
#include "interchange/config/reader.h"
#include "interchange/export.h"
#include "interchange/families.h"
#include "interchange/model_differences.h"
#include "interchange/model_source.h"
#include "interchange/tensor_map.h"
#include "recipe/model_spec.h"
#include "test/support/interchange_testing.h"
#include "test/support/temporary_folder.h"

namespace interchange_config_test {

using namespace mtrain;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

recipe::Recipe recipe_of(const std::string& model) {
  Diagnostics diagnostics;
  const auto r = recipe::read_recipe_text(interchange::model_source(), "model: " + model + "\n",
                                          "r.yaml", {}, diagnostics);
  INFO(diagnostics.text(recipe::Severity::error));
  REQUIRE(r);
  REQUIRE_FALSE(diagnostics.has_errors());
  return *r;
}

std::string error_of(const std::string& model) {
  std::string type;
  try {
    interchange::write_config(recipe_of(model), {"", "float32"}, type);
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error, but " + type;
}

json written(const std::string& model, std::string& type) {
  return json::parse(interchange::write_config(recipe_of(model), {"", "bfloat16"}, type));
}

const std::string kSizes =
    "num_layers: 2, hidden_size: 32, num_attention_heads: 4, "
    "vocab_size: 64, max_position_embeddings: 128";

}  // namespace

TEST_CASE("every family with keys has tensors") {
  for (const std::string_view type : interchange::model_types()) {
    INFO(type);
    const interchange::Family* family = interchange::find_family(type);
    REQUIRE(family);
    CHECK(family->model_type == type);
  }
  CHECK_FALSE(interchange::find_family("mamba"));
}

TEST_CASE("a model of Mixtral's kind without experts is written as a family with dense layers") {
  std::string type;
  const Recipe r = recipe_of(
      "{architecture: mixtral, num_layers: 2, hidden_size: 32, num_attention_heads: 4, "
      "vocab_size: 61, max_position_embeddings: 64}");
  REQUIRE(r.model.moe.num_experts == 0);
  interchange::write_config(r, {"", "float32"}, type);
  CHECK(type == "llama");
  CHECK(interchange::TensorMap(recipe::model_spec(r.model), *interchange::find_family(type))
            .parameters() > 0);
}

TEST_CASE("a gate by gelu has transformers' word, and a model beyond Llama is not a Llama") {
  const std::string sizes =
      "{architecture: llama, num_layers: 2, hidden_size: 32, num_attention_heads: 4, vocab_size: "
      "61, "
      "max_position_embeddings: 64";
  std::string type;
  const json config = written(sizes + ", activation: geglu}", type);
  CHECK(config.at("hidden_act") == "gelu_pytorch_tanh");
  CHECK(type == "llama");
  CHECK_THAT(error_of(sizes + ", qk_layernorm: true, embedding_multiplier: 2}"),
             Contains("model.embedding_multiplier"));
  CHECK_THAT(error_of(sizes + ", final_logit_softcapping: 30}"),
             Contains("model.final_logit_softcapping"));
}

TEST_CASE("a configuration that is written is read as the same model, in both spellings") {
  for (const std::string& name : golden_hf_cases()) {
    INFO(name);
    const recipe::Recipe r = interchange::read_config(golden_hf() / name);
    const std::string base = read_file(golden_hf() / name / "config.json");
    for (const std::string& text : {std::string(), base}) {
      std::string type;
      const json config = json::parse(interchange::write_config(r, {text, "bfloat16"}, type));
      CHECK(type == json::parse(base).at("model_type"));
      CHECK(config.at("architectures") == json::parse(base).at("architectures"));
      CHECK(config.at("torch_dtype") == "bfloat16");
      // The golden folders have transformers 5's spelling; mtrain writes the spelling that all
      // versions read. transformers 5 accepts no integer for this key.
      const char* scale = "routed_scaling_factor";
      CHECK((!config.contains(scale) || config.at(scale).is_number_float()));
      CHECK_FALSE(config.contains("rope_parameters"));
      CHECK_FALSE(config.contains("dtype"));
      Diagnostics diagnostics;
      const recipe::Recipe again =
          interchange::read_config_json(config.dump(), "config.json", diagnostics);
      CHECK(diagnostics.text(recipe::Severity::error) == "");
      CHECK(interchange::model_differences(r.model, again.model).empty());
      // Keys that do not describe the model are copied from the folder of its origin.
      if (!text.empty()) CHECK(config.at("eos_token_id") == json::parse(base).at("eos_token_id"));
    }
  }
}

TEST_CASE("a model is written as a family that computes it") {
  std::string type;
  CHECK(written("{" + kSizes + "}", type).at("rope_theta") == 10000);
  CHECK(type == "llama");
  // Biases of queries, keys and values alone are what Qwen2 has.
  written("{" + kSizes + ", add_qkv_bias: true}", type);
  CHECK(type == "qwen2");
  CHECK(written("{" + kSizes + ", attention_bias: true}", type).at("attention_bias") == true);
  CHECK(type == "llama");
  const json biased = written("{" + kSizes + ", add_bias_linear: true}", type);
  CHECK(type == "llama");
  CHECK((biased.at("attention_bias") == true && biased.at("mlp_bias") == true));
  CHECK(written("{" + kSizes + ", mlp_bias: true}", type).at("attention_bias") == false);
  CHECK(type == "llama");
  CHECK(written("{" + kSizes + ", window_size: 16}", type).at("sliding_window") == 16);
  CHECK(type == "mistral");
  const json qwen = written("{architecture: qwen3, " + kSizes + ", window_size: 16}", type);
  CHECK(qwen.at("use_sliding_window") == true);
  CHECK(qwen.at("max_window_layers") == 0);
  const auto layers = [&](const char* family, const char* freq) {
    return written(fmt::format("{{architecture: {}, {}, num_layers: 4, window_size: 16, "
                               "window_attn_skip_freq: {}}}",
                               family, kSizes.substr(kSizes.find("hidden_size")), freq),
                   type);
  };
  const json late = layers("qwen2", "[0, 0, 1, 1]");
  CHECK((type == "qwen2" && late.at("max_window_layers") == 2 && !late.contains("layer_types")));
  const json odd = layers("qwen3", "2");
  CHECK((type == "qwen3" && odd.at("sliding_window") == 16));
  CHECK(odd.at("layer_types") ==
        json({"sliding_attention", "full_attention", "sliding_attention", "full_attention"}));
  // Mistral has windows in every layer, Qwen2 has biases; SmolLM3 may list the layers.
  CHECK(layers("mistral", "2").at("layer_types") == odd.at("layer_types"));
  CHECK(type == "smollm3");
  for (const auto& [setting, field] :
       {std::pair{"qk_layernorm: true, query_pre_attn_scalar: 4",
                  "model.query_pre_attn_scalar: 4, not 8"},
        {"attn_logit_softcapping: 50", "model.attn_logit_softcapping: 50, not none"},
        {"no_rope_freq: 2, qk_layernorm: true", "model.no_rope_freq: [2], not [0]"},
        {"window_size: 16, rotary_base_local: 100", "model.rotary_base_local: 100, not 10000"}})
    CHECK_THAT(error_of("{" + kSizes + ", " + setting + "}"), Contains(field));
}

TEST_CASE("scaled and partial rotary positions are written as a family that has them") {
  std::string type;
  const json llama3 = written("{" + kSizes + ", rope_scaling: {type: llama3, factor: 8}}", type);
  CHECK(llama3.at("rope_scaling").at("rope_type") == "llama3");
  CHECK(llama3.at("rope_scaling").at("original_max_position_embeddings") == 8192);
  const json yarn =
      written("{" + kSizes + ", rope_scaling: {type: yarn, factor: 4, truncate: no}}", type)
          .at("rope_scaling");
  CHECK(yarn == json{{"rope_type", "yarn"},
                     {"factor", 4},
                     {"original_max_position_embeddings", 8192},
                     {"beta_fast", 32},
                     {"beta_slow", 1},
                     {"truncate", false}});
  // Phi-3 has no such positions, so a model of that family is written as another.
  written("{architecture: phi3, " + kSizes + ", rope_scaling: {type: yarn, factor: 4}}", type);
  CHECK(type == "llama");
  const std::string longrope =
      "rope_scaling: {type: longrope, short_factor: [1, 1.5, 2, 3], long_factor: [2, 4, 8, 16], "
      "original_max_position_embeddings: 32}";
  const json of_phi3 = written("{architecture: phi3, " + kSizes + ", " + longrope + "}", type);
  CHECK(type == "phi3");
  CHECK(of_phi3.at("original_max_position_embeddings") == 32);
  CHECK(of_phi3.at("rope_scaling") == json{{"type", "longrope"},
                                           {"short_factor", {1, 1.5, 2, 3}},
                                           {"long_factor", {2, 4, 8, 16}}});
  const json of_llama = written("{" + kSizes + ", " + longrope + "}", type);
  CHECK(type == "llama");
  CHECK(of_llama.at("rope_scaling").at("original_max_position_embeddings") == 32);
  CHECK(of_llama.at("original_max_position_embeddings") == 32);
  // Phi-3 alone rotates a part of each head.
  CHECK(written("{" + kSizes + ", rotary_percent: 0.75}", type).at("partial_rotary_factor") ==
        0.75);
  CHECK(type == "phi3");
}

TEST_CASE("a model with multipliers is written as Granite") {
  std::string type;
  const json all = written("{" + kSizes +
                               ", attention_multiplier: 0.015625, embedding_multiplier: 12, "
                               "residual_multiplier: 0.22, logits_scaling: 8}",
                           type);
  CHECK(type == "granite");
  CHECK(all.at("attention_multiplier") == 0.015625);
  CHECK(all.at("embedding_multiplier") == 12);
  CHECK(all.at("residual_multiplier") == 0.22);
  CHECK(all.at("logits_scaling") == 8);
  // The scores of other models are divided by a root, which the key multiplies by.
  const json one = written("{" + kSizes + ", residual_multiplier: 0.5}", type);
  CHECK(type == "granite");
  CHECK(one.at("attention_multiplier").get<double>() == Approx(1 / std::sqrt(8.0)));
  CHECK(one.at("logits_scaling") == 1);
  written("{" + kSizes + "}", type);
  CHECK(type == "llama");
}

TEST_CASE("a model with experts is written as the family of its router") {
  std::string type;
  // Dense layers are listed, however the recipe names the layers with experts.
  const json moe = written("{architecture: qwen3_moe, " + kSizes +
                               ", moe: {num_experts: 4, first_dense_layers: 1, "
                               "ffn_hidden_size: 16}}",
                           type);
  CHECK(type == "qwen3_moe");
  CHECK(moe.at("mlp_only_layers") == json::array({0}));
  CHECK(moe.at("decoder_sparse_step") == 1);
  CHECK(
      written("{architecture: mixtral, " + kSizes + ", moe: {num_experts: 4, ffn_hidden_size: 16}}",
              type)
          .at("intermediate_size") == 16);
  CHECK(type == "mixtral");
  // GLM-4.5-Air has DeepSeek-V3's router without norms of queries and keys.
  const std::string experts =
      "moe: {num_experts: 8, router_topk: 4, num_groups: 4, group_topk: 2, ffn_hidden_size: 16, "
      "shared_expert_ffn_hidden_size: 32, first_dense_layers: 1, router_score: sigmoid, "
      "router_topk_scaling_factor: 2.5, router_bias_update_rate: 0.001}";
  const json glm = written(
      "{architecture: deepseek_moe, " + kSizes + ", add_qkv_bias: true, " + experts + "}", type);
  CHECK(type == "glm4_moe");
  const json want{{"n_routed_experts", 8},
                  {"num_experts_per_tok", 4},
                  {"n_group", 4},
                  {"topk_group", 2},
                  {"moe_intermediate_size", 16},
                  {"n_shared_experts", 2},
                  {"first_k_dense_replace", 1},
                  {"routed_scaling_factor", 2.5},
                  {"norm_topk_prob", true},
                  {"use_qk_norm", false},
                  {"attention_bias", true},
                  {"num_nextn_predict_layers", 0},
                  {"partial_rotary_factor", 1.0}};
  for (const auto& [key, value] : want.items()) {
    INFO(key);
    CHECK(glm.at(key) == value);
  }
  const json dots =
      written("{" + kSizes + ", qk_layernorm: true, window_size: 16, attention_bias: true, " +
                  experts + "}",
              type);
  CHECK(type == "dots1");
  CHECK(dots.at("attention_bias") == true);
  CHECK(dots.at("sliding_window") == 16);
  CHECK(dots.at("max_window_layers") == 0);
  CHECK_FALSE(dots.contains("use_sliding_window"));
}

TEST_CASE("a model that no family computes is refused by the fields in which it differs") {
  CHECK_THAT(error_of("{" + kSizes + ", normalization: layernorm}"),
             Contains("model.normalization: layernorm, not rmsnorm"));
  CHECK_THAT(error_of("{" + kSizes + ", add_qkv_bias: true, rotary_percent: 0.5}"),
             Contains("no family") && Contains("phi3: model.add_qkv_bias: true, not false"));
  CHECK_THAT(error_of("{" + kSizes + ", add_qkv_bias: true, qk_layernorm: true}"),
             Contains("no family"));
  CHECK_THAT(error_of("{architecture: deepseek_moe, " + kSizes +
                      ", moe: {num_experts: 4, num_shared_experts: 1, ffn_hidden_size: 16}}"),
             Contains("no family") &&
                 Contains("qwen2_moe: model.moe.shared_expert_gate: false, not true"));
}

TEST_CASE("routers of DeepSeek-V3's kind that transformers computes in another way are refused") {
  struct Row {
    const char *family, *key, *value, *gist;
  };
  for (const Row& row :
       {Row{"dots1", "n_group", "3", "n_group 3 does not divide the 8 experts"},
        Row{"dots1", "topk_group", "3", "2 experts for a token"},
        Row{"dots1", "num_experts_per_tok", "5", "cannot come from 1 of 2 groups"},
        Row{"deepseek_v2_limited", "topk_group", "null", "cannot choose 3 experts for a token"},
        Row{"deepseek_v2_limited", "topk_group", "1", "from 1 of 4 groups"},
        Row{"deepseek_v2_limited", "n_group", "3", "from 2 of 3 groups"},
        Row{"deepseek_v2_limited", "n_group", "0", "from 2 of 0 groups"},
        Row{"deepseek_v2_limited", "topk_method", "\"noaux_tc\"",
            "only greedy or group_limited_greedy is supported"},
        Row{"deepseek_v2_lite", "num_experts_per_tok", "null", "num_experts_per_tok must be"},
        Row{"deepseek_v3", "num_experts_per_tok", "null", "num_experts_per_tok must be"},
        Row{"deepseek_v3", "rope_interleave", "null", "rope_interleave is false, and only true"},
        Row{"glm4_moe_lite", "rope_interleave", "false", "rope_interleave is false, and only true"},
        Row{"glm4_moe_lite", "first_k_dense_replace", "2", "begins with 1 dense layers"},
        Row{"glm4_moe_lite", "mlp_layer_types", "[\"dense\"]", "for 2 layers"},
        Row{"glm4_moe_lite", "mlp_layer_types", "[\"dense\", \"moe\"]", "`dense` and `sparse`"},
        Row{"glm4_moe_lite", "mlp_layer_types", "\"dense\"", "must be a list"},
        Row{"glm4_moe", "mlp_layer_types", "[\"dense\", \"sparse\"]",
            "the key mlp_layer_types is not understood"},
        Row{"dots1", "n_routed_experts", "null", "n_routed_experts must be at least 1"},
        Row{"dots1", "n_shared_experts", "0", "n_shared_experts must be at least 1"},
        Row{"glm4_moe", "n_group", "null", "n_group must be at least 1"},
        Row{"glm4_moe_tied", "topk_method", "\"group_limited_greedy\"",
            "topk_method is group_limited_greedy, and only noaux_tc is supported"},
        Row{"dots1", "scoring_func", "\"softmax\"", "only sigmoid or noaux_tc is supported"},
        Row{"dots1_window", "sliding_window", "null", "gives a window to 2 of 2 layers"},
        Row{"dots1", "use_qk_norm", "true", "the key use_qk_norm is not understood"},
        Row{"deepseek_v3", "rope_interleave", "false", "rope_interleave"},
        Row{"deepseek_v3", "attention_bias", "true", "attention_bias"},
        Row{"deepseek_v3", "num_key_value_heads", "1", "each query head has keys"},
        Row{"qwen3_moe", "topk_method", "\"noaux_tc\"", "the key topk_method is not understood"}}) {
    CAPTURE(row.family, row.key, row.value);
    const TemporaryFolder temporary;
    json config = json::parse(read_file(golden_hf() / row.family / "config.json"));
    config[row.key] = json::parse(row.value);
    write_file_atomic(temporary / "config.json", config.dump());
    CHECK_THROWS_WITH(interchange::read_config(temporary.path),
                      Contains((temporary / "config.json").string()) && Contains(row.gist));
  }
  // Keys of folders that transformers does not read.
  json config = json::parse(read_file(golden_hf() / "dots1" / "config.json"));
  config["topk_method"] = config["scoring_func"] = "noaux_tc";
  config["moe_layer_freq"] = 1;
  config["ep_size"] = 1;
  Diagnostics diagnostics;
  interchange::read_config_json(config.dump(), "config.json", diagnostics);
  CHECK(diagnostics.text(recipe::Severity::error) == "");
  config["norm_topk_prob"] = nullptr;
  const recipe::Recipe r = interchange::read_config_json(config.dump(), "config.json", diagnostics);
  CHECK_FALSE(r.model.moe.norm_topk_prob);
  config["norm_topk_prob"] = true;
  // The only expert of a token would have a weight of 1.
  config["num_experts_per_tok"] = config["n_group"] = config["topk_group"] = 1;
  interchange::read_config_json(config.dump(), "config.json", diagnostics);
  CHECK_THAT(diagnostics.text(recipe::Severity::error), Contains("norm_topk_prob"));
}

TEST_CASE("checkpoints of a model that no family computes are not promised in their form") {
  const auto messages_of = [](const std::string& model, const std::string& setting) {
    Diagnostics diagnostics;
    const auto r = recipe::read_recipe_text(
        interchange::model_source(),
        "model: {num_layers: 2, hidden_size: 32, "
        "num_attention_heads: 4" +
            model + "}\ncheckpoint: {save_consolidated: " + setting + "}\n",
        "r.yaml", {}, diagnostics);
    REQUIRE(r);
    interchange::check_consolidated(*r, diagnostics);
    return diagnostics.text(recipe::Severity::error);
  };
  // The vocabulary comes from a tokenizer, which is not open yet.
  CHECK(messages_of("", "every") == "");
  CHECK(messages_of(", normalization: layernorm", "false") == "");
  CHECK_THAT(messages_of(", normalization: layernorm", "final"),
             Contains("r.yaml:2") && Contains("checkpoint.save_consolidated") &&
                 Contains("have no Hugging Face form") &&
                 Contains("model.normalization: layernorm, not rmsnorm"));
}

TEST_CASE("a model field beside model.from may say nothing that the folder does not compute") {
  struct Row {
    const char *folder, *field, *value;
  };
  for (const Row& row :
       {Row{"llama", "window_size", "128"}, Row{"mistral", "window_size", "128"},
        Row{"llama", "normalization", "layernorm"},
        Row{"qwen2", "rope_scaling", "{type: linear, factor: 4}"},
        Row{"llama", "qk_layernorm", "true"}, Row{"mixtral", "moe", "{router_score: sigmoid}"},
        Row{"qwen3_moe", "moe", "{router_topk_scaling_factor: 2.5}"},
        Row{"dots1", "moe", "{router_bias: false}"}, Row{"glm4_moe", "attention_bias", "true"}}) {
    INFO(row.folder << " with " << row.field << ": " << row.value);
    const auto checked = [&](const std::string& beside) {
      Diagnostics diagnostics;
      const auto r = recipe::read_recipe_text(
          interchange::model_source(),
          fmt::format("model:\n  from: {}\n{}", (golden_hf() / row.folder).string(), beside),
          "r.yaml", {}, diagnostics);
      if (r) interchange::check_folder_model(*r, diagnostics);
      return diagnostics.text(recipe::Severity::error);
    };
    CHECK(checked("") == "");
    CHECK_THAT(checked(fmt::format("  {}: {}\n", row.field, row.value)),
               Contains(fmt::format("model.{}", row.field)) && Contains("config.json"));
  }
}

TEST_CASE("any JSON is read: tabs, one line, escapes beyond the basic plane") {
  const TemporaryFolder temporary;
  const auto hidden = [&](const std::string& text) {
    write_file_atomic(temporary / "config.json", text);
    return interchange::read_config(temporary.path).model.hidden_size;
  };
  CHECK(hidden("{\n\t\"model_type\": \"llama\",\n\t\"hidden_size\": 128\n}") == 128);
  CHECK(hidden(R"({"model_type":"llama","hidden_size":128,"_name_or_path":"\ud83d\ude00\/"})") ==
        128);
}

TEST_CASE("all mistakes of a configuration are reported at once") {
  const TemporaryFolder temporary;
  std::ofstream(temporary / "config.json") << R"({"model_type": "llama", "logit_scale": 3,
    "pretraining_tp": 2, "rope_scaling": {"rope_type": "dynamic", "factor": 4}, "hidden_size": "wide"})";
  CHECK_THROWS_WITH(interchange::read_config(temporary.path),
                    Contains("logit_scale") && Contains("pretraining_tp is 2") &&
                        Contains("dynamic") && Contains("wide"));
  std::ofstream(temporary / "config.json") << R"({"model_type": "phi3", "hidden_size": 64,
    "num_attention_heads": 8, "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1],
    "long_factor": [1, 1, 1]}})";
  CHECK_THROWS_WITH(interchange::read_config(temporary.path),
                    Contains("long_factor has 3 factors, and a head has 4 lanes"));
  const auto refuses = [&](const std::string& text, std::vector<std::string> words) {
    write_file_atomic(temporary / "config.json", text);
    INFO(text);
    words.push_back((temporary / "config.json").string());
    for (const std::string& word : words)
      CHECK_THROWS_WITH(interchange::read_config(temporary.path), Contains(word));
  };
  // Each names the file, the family and the key.
  refuses(R"({"model_type": "llama", "hidden_size": "wide"})", {"model_type llama", "hidden_size"});
  refuses(R"({"model_type": "mixtral", "num_local_experts": -1})",
          {"model_type mixtral", "num_local_experts"});
  refuses(R"({"model_type": "qwen3", "num_hidden_layers": 9223372036854775808})",
          {"model_type qwen3", "num_hidden_layers"});
  refuses(R"({"model_type": "llama", "logit_scale": 3})", {"model_type llama", "logit_scale"});
  refuses(R"({"model_type": "gpt2", "n_embd": 8, "n_embd": 16})", {"`n_embd` is given twice"});
  refuses(R"({"model_type": "llama", "rope_scaling": {"factor": 1, "factor": 2}})",
          {"`rope_scaling.factor` is given twice"});
  // Sizes that do not fit each other.
  refuses(R"({"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 3})",
          {"model_type llama", "num_attention_heads 4 is not a multiple of num_key_value_heads 3"});
  refuses(R"({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5})",
          {"model_type mixtral", "num_experts_per_tok 5 is more than num_local_experts 4"});
  refuses(R"({"model_type": "mixtral", "num_local_experts": 0})",
          {"model_type mixtral", "has experts, and num_local_experts is 0"});
  refuses(R"({"model_type": "llava", "vision_config": {}})",
          {"llava", "vision_config", "save_pretrained()"});
  for (const char* vocab : {"0", "null"}) {
    const std::string text = fmt::format(R"({{"model_type": "llama", "vocab_size": {}}})", vocab);
    write_file_atomic(temporary / "config.json", text);
    CHECK_THROWS_WITH(interchange::read_config(temporary.path),
                      Contains("config.json (model_type llama): it names no vocabulary"));
    Diagnostics diagnostics;
    interchange::read_config_json(text, "config.json", diagnostics);
    CHECK_THAT(diagnostics.text(recipe::Severity::error), Contains("vocab_size"));
  }
  CHECK_THROWS_WITH(
      interchange::read_config("meta-llama/Llama-3.2-1B"),
      Contains("Hugging Face Hub") && Contains("hf download meta-llama/Llama-3.2-1B"));
  CHECK_THROWS_WITH(interchange::read_config(temporary / "none"), Contains("there is no folder"));
}

}  // namespace interchange_config_test
