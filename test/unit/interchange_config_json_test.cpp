// Tests that model.from reads the model of a Hugging Face configuration.
#include <fstream>

#include <fmt/core.h>

#include "interchange/model_source.h"
#include "recipe/model_spec.h"
#include "recipe_cases.h"
#include "test/support/temporary_folder.h"

namespace interchange_config_json_test {

using namespace mtrain;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

// A Hugging Face folder that has a configuration only, and a recipe that names it.
class Folder {
 public:
  void config(const std::string& text) const { std::ofstream(folder_ / "config.json") << text; }
  // Returns the recipe with these settings more, and its errors.
  std::pair<Recipe, std::string> read(const Overrides& more = {}) const {
    Overrides set{"model.from=" + folder_.path.string(), "model.init=random"};
    set.insert(set.end(), more.begin(), more.end());
    Diagnostics diagnostics;
    Recipe r =
        plan::load_recipe_text(interchange::model_source(), "dataset: {train: x, seq_length: 64}\n",
                               "r.yaml", set, diagnostics, 1);
    return {std::move(r), diagnostics.text(Severity::error)};
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("model.from reads the sizes of a Hugging Face folder") {
  const Folder folder;
  folder.config(
      R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu", "attention_bias": false,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "rope_scaling": {"rope_type": "llama3",
    "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192}})");
  const auto [llama, llama_errors] = folder.read();
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
  CHECK(folder.read({"model.hidden_size=256"}).second.empty());
  CHECK_THAT(folder.read({"model.hidden_size=128"}).second,
             Contains("model.hidden_size") && Contains("config.json") && Contains("256"));

  folder.config(
      R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 128,
    "vocab_size": 300})");
  CHECK_THAT(folder.read().second, Contains("attention_dropout"));
  const auto [gpt2, gpt2_errors] = folder.read({"model.attention_dropout=0"});
  REQUIRE(gpt2_errors.empty());
  CHECK(gpt2.model.architecture == Architecture::gpt2);
  CHECK(gpt2.model.share_embeddings_and_output_weights);
  CHECK(gpt2.model.hidden_dropout == 0.1);  // transformers' default for an omitted key

  folder.config(R"({"model_type": "qwen3", "hidden_size": 64, "sliding_window": null,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}})");
  CHECK(folder.read().first.model.rotary_base == 1e6);
  CHECK(folder.read().first.model.kv_channels == 128);
  // Beside the rotary positions, or among them, which transformers 5 prefers.
  for (const char* factor :
       {R"("partial_rotary_factor": 0.75)",
        R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75})",
        R"("partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.75})"}) {
    folder.config(fmt::format(R"({{"model_type": "phi3", {}}})", factor));
    CHECK(folder.read().first.model.rotary_percent == 0.75);
    CHECK(folder.read().first.model.rotary_dim() == 72);
    CHECK_THAT(folder.read({"model.rotary_percent=0.5"}).second, Contains("model.rotary_percent"));
  }
}

TEST_CASE("model.from reads which layers have experts, and how these are chosen") {
  const Folder folder;
  folder.config(R"({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
    "intermediate_size": 96, "router_aux_loss_coef": 0.02, "router_jitter_noise": 0.0})");
  const auto [mixtral, mixtral_errors] = folder.read();
  INFO(mixtral_errors);
  REQUIRE(mixtral_errors.empty());
  CHECK(mixtral.model.architecture == Architecture::mixtral);
  CHECK(mixtral.model.moe.num_experts == 4);
  CHECK(mixtral.model.moe.ffn_hidden_size == 96);
  CHECK(mixtral.model.rotary_base == 1e6);

  folder.config(R"({"model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 4,
    "norm_topk_prob": false, "decoder_sparse_step": 2, "mlp_only_layers": [1]})");
  const auto [qwen, qwen_errors] = folder.read();
  INFO(qwen_errors);
  REQUIRE(qwen_errors.empty());
  CHECK(qwen.model.moe.router_pre_softmax);
  CHECK_FALSE(qwen.model.moe.norm_topk_prob);
  const spec::ModelSpec layers = recipe::model_spec(qwen.model);
  CHECK_FALSE(layers.layer(0).experts());
  CHECK_FALSE(layers.layer(1).experts());
  CHECK(layers.layer(3).experts());
}

TEST_CASE("model.from refuses what is not supported, contradicts itself or is not JSON") {
  const Folder folder;
  for (const auto& [text, gist] :
       {std::pair{R"({"model_type": "mamba"})", "model_type `mamba`"},
        {R"({"model_type": "mixtral", "router_jitter_noise": 0.1})", "router_jitter_noise is 0.1"},
        {R"({"model_type": "llama", "logit_scale": 3})", "logit_scale"},
        {R"({"model_type": "mistral", "mlp_bias": true})", "mlp_bias is true"},
        {R"({"model_type": "llama", "hidden_act": "gelu"})", "hidden_act gelu is not supported"},
        {R"({"model_type": "gpt2", "activation_function": "silu"})",
         "activation_function silu is not supported"},
        {R"({"model_type": "gpt2", "activation_function": "silu"})", "silu is not supported"},
        {R"({"model_type": "mistral", "num_hidden_layers": 2,
             "layer_types": ["full_attention", "sliding_attention"]})",
         "layer_types gives a window to 1 of 2 layers"},
        {R"({"model_type": "qwen2", "num_hidden_layers": 2, "layer_types": ["full_attention"]})",
         "layer_types must give for each of the 2 layers"},
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
         "of type linear are not supported for such models"},
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
         "of type su are not supported"},
        {R"({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 4}})",
         "of type dynamic are not supported"},
        {R"({"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 4}})",
         "of type llama3 lack low_freq_factor"},
        {R"({"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4,
             "beta_fast": 2}})",
         "the key beta_fast of its rotary positions"},
        {R"({"model_type": "llama", "partial_rotary_factor": 0.75})",
         "partial_rotary_factor is 0.75, and only 1 is supported"},
        {R"({"model_type": "qwen3", "rope_parameters": {"rope_type": "default",
             "partial_rotary_factor": 0.75}})",
         "partial_rotary_factor is 0.75, and only 1 is supported"},
        {R"({"model_type": "llama", "quantization_config": {"bits": 4}})", "dequantize()"},
        {R"([1, 2])", "not a JSON object"},
        {R"({"model_type": )", "not JSON at byte 16"}}) {
    folder.config(text);
    CHECK_THAT(folder.read().second, Contains(gist));
  }
}

TEST_CASE("model.from tells a name of the Hub from a folder") {
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(),
                         "dataset: {train: x}\nmodel: {from: meta-llama/Llama-3.2-1B}\n", "r.yaml",
                         {}, diagnostics, 1);
  CHECK_THAT(listed(diagnostics), Contains("Hugging Face Hub") && Contains("model.from"));
  CHECK(count(diagnostics, Severity::error) == 1);
}

TEST_CASE("config.json says which layers have a window") {
  const TemporaryFolder temporary;
  const auto window = [&](const std::string& text) {
    std::ofstream(temporary / "config.json") << text;
    Diagnostics diagnostics;
    const auto r =
        recipe::read_recipe_text(interchange::model_source(), "model: {init: random}\n", "r.yaml",
                                 {"model.from=" + temporary.path.string()}, diagnostics);
    INFO(text << "\n" << diagnostics.text(Severity::error));
    CHECK_FALSE(diagnostics.has_errors());
    return r ? r->model.window_size.value_or(0) : -1;
  };
  CHECK(window(R"({"model_type": "mistral"})") == 4096);  // transformers' default
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
    const auto r = recipe::read_recipe_text(interchange::model_source(), "model: {init: random}\n",
                                            "r.yaml", set, diagnostics);
    std::string has = diagnostics.has_errors() ? diagnostics.text(Severity::error) : "";
    if (!r || diagnostics.has_errors()) return has;
    for (const spec::LayerSpec& layer : recipe::model_spec(r->model).layers)
      has += layer.grouped().window > 0 ? '1' : '0';
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
    const auto r =
        recipe::read_recipe_text(interchange::model_source(), "model: {init: random}\n", "r.yaml",
                                 {"model.from=" + temporary.path.string()}, diagnostics);
    REQUIRE_FALSE(diagnostics.has_errors());
    CHECK(r->model.moe.num_experts == 16);
  }
}

}  // namespace interchange_config_json_test
