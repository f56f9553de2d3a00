// The config.json files of published models with latent attention, and the sizes that follow from
// them.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "interchange/config/quantization.h"
#include "interchange/config/reader.h"
#include "interchange/families.h"
#include "interchange/model_source.h"
#include "interchange/tensor_map.h"
#include "plan/load_recipe.h"
#include "plan/model_size.h"
#include "plan/run_plan.h"
#include "recipe/model_spec.h"
#include "test/support/temporary_folder.h"

namespace interchange_published_test {

using namespace mtrain;

namespace {

// The sizes by which parameters and FLOPs are counted here, independent of the program.
struct Sizes {
  double H, I, L, A, q, kv, nope, rope, v, V, E, K, M, shared, dense;

  // Elements of the linears and norms of attention.
  double attention() const {
    const double queries = q > 0 ? H * q + q + q * A * (nope + rope) : H * A * (nope + rope);
    return queries + H * (kv + rope) + kv + kv * A * (nope + v) + A * v * H;
  }
  // All parameters, if a token meets `experts` experts of each layer with experts.
  double parameters(double experts) const {
    const double layers = L * (attention() + 2 * H);
    return layers + dense * 3 * H * I + (L - dense) * (E * H + 3 * H * M * (experts + shared)) +
           2 * V * H + H;
  }
  // Six for each parameter but the table, and those of attention in full.
  double flops(double length) const {
    return 6 * (parameters(K) - V * H) + 6 * L * A * (nope + rope + v) * length;
  }
};

struct Published {
  const char *name, *architecture, *config;
  Sizes sizes;
  double total, active;  // as the model's authors round them, in units of 10^9
  double exact = 0;      // of the published files, if they hold nothing else
};

const std::vector<Published> kPublished{
    {"DeepSeek-V2-Lite",
     "deepseek_v2",
     R"({"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
      "aux_loss_alpha": 0.001, "bos_token_id": 100000, "eos_token_id": 100001,
      "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
      "initializer_range": 0.02, "intermediate_size": 10944, "kv_lora_rank": 512,
      "max_position_embeddings": 163840, "model_type": "deepseek_v2",
      "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
      "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16,
      "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
      "pretraining_tp": 1, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
      "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096,
      "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 1.0,
      "scoring_func": "softmax", "seq_aux": true, "tie_word_embeddings": false, "topk_group": 1,
      "topk_method": "greedy", "torch_dtype": "bfloat16", "transformers_version": "4.33.1",
      "use_cache": true, "v_head_dim": 128, "vocab_size": 102400})",
     {2048, 10944, 27, 16, 0, 512, 128, 64, 128, 102400, 64, 6, 1408, 2, 1},
     15.7,
     2.4,
     15706484224},
    {"DeepSeek-V2",
     "deepseek_v2",
     R"({"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "bos_token_id": 100000,
      "eos_token_id": 100001, "ep_size": 1, "first_k_dense_replace": 1, "hidden_act": "silu",
      "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 12288,
      "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
      "moe_intermediate_size": 1536, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 160,
      "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 128,
      "num_experts_per_tok": 6, "num_hidden_layers": 60, "num_key_value_heads": 128,
      "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
      "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
      "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 16.0,
      "scoring_func": "softmax", "seq_aux": true, "tie_word_embeddings": false, "topk_group": 3,
      "topk_method": "group_limited_greedy", "torch_dtype": "bfloat16", "use_cache": true,
      "v_head_dim": 128, "vocab_size": 102400})",
     {5120, 12288, 60, 128, 1536, 512, 128, 64, 128, 102400, 160, 6, 1536, 2, 1},
     236,
     21,
     235741434880},
    {"DeepSeek-V3",
     "deepseek_v3",
     R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1,
      "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
      "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
      "max_position_embeddings": 163840, "model_type": "deepseek_v3",
      "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
      "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
      "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
      "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "quantization_config": {"activation_scheme": "dynamic",
      "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
      "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
      "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
      "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5,
      "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4,
      "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.33.1",
      "use_cache": true, "v_head_dim": 128, "vocab_size": 129280})",
     {7168, 18432, 61, 128, 1536, 512, 128, 64, 128, 129280, 256, 8, 2048, 1, 3},
     671,
     37},
    {"Kimi-K2",
     "deepseek_v3",
     R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
      "aux_loss_alpha": 0.001, "bos_token_id": 163584, "eos_token_id": 163585, "ep_size": 1,
      "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 7168,
      "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
      "max_position_embeddings": 131072, "model_type": "kimi_k2", "moe_intermediate_size": 2048,
      "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1,
      "norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 8,
      "num_hidden_layers": 61, "num_key_value_heads": 64, "num_nextn_predict_layers": 0,
      "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
      "quant_method": "fp8", "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06,
      "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0,
      "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
      "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid",
      "seq_aux": true, "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc",
      "torch_dtype": "bfloat16", "transformers_version": "4.48.3", "use_cache": true,
      "v_head_dim": 128, "vocab_size": 163840})",
     {7168, 18432, 61, 64, 1536, 512, 128, 64, 128, 163840, 384, 8, 2048, 1, 1},
     1040,
     32},
    {"Moonlight-16B-A3B",
     "deepseek_v3",
     R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
      "aux_loss_alpha": 0.001, "bos_token_id": 163584, "eos_token_id": 163585, "ep_size": 1,
      "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
      "initializer_range": 0.02, "intermediate_size": 11264, "kv_lora_rank": 512,
      "max_position_embeddings": 8192, "model_type": "deepseek_v3",
      "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
      "n_shared_experts": 2, "norm_topk_prob": true, "num_attention_heads": 16,
      "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
      "num_nextn_predict_layers": 0, "pretraining_tp": 1, "q_lora_rank": null,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
      "rope_scaling": null, "rope_theta": 50000.0, "routed_scaling_factor": 2.446,
      "scoring_func": "sigmoid", "seq_aux": true, "tie_word_embeddings": false, "topk_group": 1,
      "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "use_cache": true,
      "v_head_dim": 128, "vocab_size": 163840})",
     {2048, 11264, 27, 16, 0, 512, 128, 64, 128, 163840, 64, 6, 1408, 2, 1},
     16,
     3},
    {"GLM-4.7-Flash",
     "glm4_moe_lite",
     R"({"architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "dtype": "bfloat16", "eos_token_id": [154820, 154827, 154829],
      "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
      "intermediate_size": 10240, "kv_lora_rank": 512, "max_position_embeddings": 202752,
      "model_type": "glm4_moe_lite", "moe_intermediate_size": 1536, "n_group": 1,
      "n_routed_experts": 64, "n_shared_experts": 1, "norm_topk_prob": true,
      "num_attention_heads": 20, "num_experts_per_tok": 4, "num_hidden_layers": 47,
      "num_key_value_heads": 20, "num_nextn_predict_layers": 1, "pad_token_id": 154820,
      "partial_rotary_factor": 1.0, "q_lora_rank": 768, "qk_nope_head_dim": 192,
      "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": null,
      "rope_theta": 1000000, "routed_scaling_factor": 1.8, "tie_word_embeddings": false,
      "topk_group": 1, "topk_method": "noaux_tc", "transformers_version": "5.0.0rc0",
      "v_head_dim": 256, "vocab_size": 154880})",
     {2048, 10240, 47, 20, 768, 512, 192, 64, 256, 154880, 64, 4, 1536, 1, 1},
     30,
     3}};

recipe::Recipe read(const Published& p) {
  Diagnostics diagnostics;
  recipe::Recipe r = interchange::read_config_json(p.config, p.name, diagnostics);
  CHECK(diagnostics.text(recipe::Severity::error) == "");
  return r;
}

}  // namespace

TEST_CASE("published models with latent attention are read, and have their published sizes") {
  for (const Published& p : kPublished) {
    CAPTURE(p.name);
    const recipe::Recipe r = read(p);
    CHECK(enum_name(r.model.architecture) == p.architecture);
    CHECK(r.model.multi_latent_attention);
    const plan::ModelParameters counted =
        plan::count_parameters(recipe::model_spec(r.model), r.model.vocab_size);
    CHECK(counted.total() == p.sizes.parameters(p.sizes.E));
    CHECK(counted.active() == p.sizes.parameters(p.sizes.K));
    if (p.exact > 0) CHECK(counted.total() == p.exact);
    // Authors round, and some leave the tables out of the active parameters.
    CHECK(counted.total() / 1e9 == Approx(p.total).epsilon(0.02));
    CHECK(counted.active() / 1e9 < 1.4 * p.active);
    CHECK((counted.active() - 2 * p.sizes.V * p.sizes.H) / 1e9 < 1.1 * p.active);
    CHECK(counted.dense_layers == int64_t(p.sizes.dense));
    for (const double length : {4096.0, 32768.0})
      CHECK(plan::token_cost(recipe::model_spec(r.model)).flops(int64_t(length)) ==
            Approx(p.sizes.flops(length)).epsilon(1e-9));
  }
}

TEST_CASE("published models with latent attention have names for all their tensors") {
  for (const Published& p : kPublished) {
    CAPTURE(p.name);
    const recipe::Recipe r = read(p);
    const interchange::TensorMap map(recipe::model_spec(r.model),
                                     *interchange::find_family(p.architecture));
    const auto experts = int64_t(p.sizes.L - p.sizes.dense);
    const bool biased = r.model.moe.router_bias;
    // Elements of the routers' biases are not parameters.
    int64_t biases = 0;
    for (const interchange::MappedTensor& t : map.tensors())
      if (t.is_state) biases += t.shape.count();
    CHECK(biases == (biased ? experts * int64_t(p.sizes.E) : 0));
    CHECK(double(map.parameters()) == p.sizes.parameters(p.sizes.E));
  }
}

TEST_CASE("the memory of a rank of published models follows from its share of the parameters") {
  for (const Published& p : kPublished) {
    CAPTURE(p.name);
    const TemporaryFolder folder;
    write_file_atomic(folder / "config.json", p.config);
    // 16 ranks, each with an eighth of the experts; an optimizer shared by all, or by two for
    // experts.
    constexpr int64_t kRanks = 16, kEp = 8;
    Diagnostics diagnostics;
    const recipe::Recipe r = plan::load_recipe_text(
        interchange::model_source(), "model: {}\n", p.name,
        {"model.from=" + folder.path.string(), "tokenizer={type: huggingface, path: unused}",
         "dataset={train: unused, seq_length: 4096}", "train.device=cpu", "train.run_dir=unused",
         "train.global_batch_size=64", "train.micro_batch_size=1", "mixed_precision=bf16_mixed",
         "distributed={strategy: megatron_ddp, ep_size: 8}"},
        diagnostics, kRanks);
    REQUIRE(diagnostics.text(recipe::Severity::error) == "");
    const plan::MemoryEstimate memory = plan::make_plan(r, kRanks, r.model.vocab_size).memory.at(0);
    const double experts = p.sizes.parameters(p.sizes.E) - p.sizes.parameters(0),
                 others = p.sizes.parameters(0);
    CHECK(memory.parameters == Approx(others + experts / kEp).epsilon(1e-3));
    CHECK(memory.params == Approx(2 * (others + experts / kEp)).epsilon(1e-3));
    CHECK(memory.grads == Approx(4 * (others + experts / kEp)).epsilon(1e-3));
    CHECK(memory.optimizer ==
          Approx(12 * (others / kRanks + experts / kEp / (kRanks / kEp))).epsilon(1e-3));
  }
}

TEST_CASE("the published configurations say in which blocks weights are quantized") {
  for (const Published& p : kPublished) {
    CAPTURE(p.name);
    const auto block = interchange::read_scale_block(p.config, p.name);
    const bool quantized = std::string(p.config).find("fp8") != std::string::npos;
    REQUIRE(block.has_value() == quantized);
    if (block) CHECK((block->rows == 128 && block->columns == 128));
  }
}

}  // namespace interchange_published_test
