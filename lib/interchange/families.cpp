#include "interchange/families.h"

#include <algorithm>
#include <initializer_list>

namespace mtrain::interchange {

namespace {

constexpr TensorRow kTrunk[] = {
    {"embedding.weight", "embed_tokens.weight"},
    {"layers.{l}.attention.proj.weight", "layers.{l}.self_attn.o_proj.weight"},
    {"layers.{l}.attention.proj.bias", "layers.{l}.self_attn.o_proj.bias"},
    {"final_norm.weight", "norm.weight"},
    {"output.weight", "lm_head.weight"}};

constexpr TensorRow kInputNorms[] = {
    {"layers.{l}.attention.norm.weight", "layers.{l}.input_layernorm.weight"},
    {"layers.{l}.mlp.norm.weight", "layers.{l}.post_attention_layernorm.weight"}};

// The same name means the norm of the MLP's input above, and that of attention's output here.
constexpr TensorRow kOutputNorms[] = {
    {"layers.{l}.attention.out_norm.weight", "layers.{l}.post_attention_layernorm.weight"},
    {"layers.{l}.mlp.out_norm.weight", "layers.{l}.post_feedforward_layernorm.weight"}};

constexpr TensorRow kSandwichInputs[] = {
    {"layers.{l}.attention.norm.weight", "layers.{l}.input_layernorm.weight"},
    {"layers.{l}.mlp.norm.weight", "layers.{l}.pre_feedforward_layernorm.weight"}};

constexpr TensorRow kAttention[] = {
    {"layers.{l}.attention.qkv.weight", "layers.{l}.self_attn.q_proj.weight", Rows::query},
    {"layers.{l}.attention.qkv.weight", "layers.{l}.self_attn.k_proj.weight", Rows::key},
    {"layers.{l}.attention.qkv.weight", "layers.{l}.self_attn.v_proj.weight", Rows::value},
    {"layers.{l}.attention.qkv.bias", "layers.{l}.self_attn.q_proj.bias", Rows::query},
    {"layers.{l}.attention.qkv.bias", "layers.{l}.self_attn.k_proj.bias", Rows::key},
    {"layers.{l}.attention.qkv.bias", "layers.{l}.self_attn.v_proj.bias", Rows::value}};

constexpr TensorRow kHeadNorms[] = {
    {"layers.{l}.attention.q_norm.weight", "layers.{l}.self_attn.q_norm.weight"},
    {"layers.{l}.attention.k_norm.weight", "layers.{l}.self_attn.k_norm.weight"}};

constexpr TensorRow kMlp[] = {
    {"layers.{l}.mlp.gate_up.weight", "layers.{l}.mlp.gate_proj.weight", Rows::gate},
    {"layers.{l}.mlp.gate_up.weight", "layers.{l}.mlp.up_proj.weight", Rows::up},
    {"layers.{l}.mlp.down.weight", "layers.{l}.mlp.down_proj.weight"}};

constexpr TensorRow kMlpBiases[] = {
    {"layers.{l}.mlp.gate_up.bias", "layers.{l}.mlp.gate_proj.bias", Rows::gate},
    {"layers.{l}.mlp.gate_up.bias", "layers.{l}.mlp.up_proj.bias", Rows::up},
    {"layers.{l}.mlp.down.bias", "layers.{l}.mlp.down_proj.bias"}};

// Phi-3 stacks queries, keys and values, and gate and input projection, in mtrain's order.
constexpr TensorRow kStacked[] = {
    {"layers.{l}.attention.qkv.weight", "layers.{l}.self_attn.qkv_proj.weight"},
    {"layers.{l}.mlp.gate_up.weight", "layers.{l}.mlp.gate_up_proj.weight"},
    {"layers.{l}.mlp.down.weight", "layers.{l}.mlp.down_proj.weight"}};

constexpr TensorRow kMixtral[] = {
    {"layers.{l}.mlp.router.weight", "layers.{l}.block_sparse_moe.gate.weight"},
    {"layers.{l}.mlp.experts.gate_up.weight", "layers.{l}.block_sparse_moe.experts.{e}.w1.weight",
     Rows::gate},
    {"layers.{l}.mlp.experts.gate_up.weight", "layers.{l}.block_sparse_moe.experts.{e}.w3.weight",
     Rows::up},
    {"layers.{l}.mlp.experts.down.weight", "layers.{l}.block_sparse_moe.experts.{e}.w2.weight"}};

constexpr TensorRow kQwenExperts[] = {
    {"layers.{l}.mlp.router.weight", "layers.{l}.mlp.gate.weight"},
    {"layers.{l}.mlp.experts.gate_up.weight", "layers.{l}.mlp.experts.{e}.gate_proj.weight",
     Rows::gate},
    {"layers.{l}.mlp.experts.gate_up.weight", "layers.{l}.mlp.experts.{e}.up_proj.weight",
     Rows::up},
    {"layers.{l}.mlp.experts.down.weight", "layers.{l}.mlp.experts.{e}.down_proj.weight"}};

constexpr TensorRow kQwenSharedExpert[] = {
    {"layers.{l}.mlp.shared_expert.gate.weight", "layers.{l}.mlp.shared_expert_gate.weight"},
    {"layers.{l}.mlp.shared_expert.gate_up.weight", "layers.{l}.mlp.shared_expert.gate_proj.weight",
     Rows::gate},
    {"layers.{l}.mlp.shared_expert.gate_up.weight", "layers.{l}.mlp.shared_expert.up_proj.weight",
     Rows::up},
    {"layers.{l}.mlp.shared_expert.down.weight", "layers.{l}.mlp.shared_expert.down_proj.weight"}};

// The router's biases are a buffer of transformers', by which experts are chosen.
constexpr TensorRow kDeepseekV3Experts[] = {
    {"layers.{l}.mlp.router.bias", "layers.{l}.mlp.gate.e_score_correction_bias"},
    {"layers.{l}.mlp.shared_expert.gate_up.weight",
     "layers.{l}.mlp.shared_experts.gate_proj.weight", Rows::gate},
    {"layers.{l}.mlp.shared_expert.gate_up.weight", "layers.{l}.mlp.shared_experts.up_proj.weight",
     Rows::up},
    {"layers.{l}.mlp.shared_expert.down.weight", "layers.{l}.mlp.shared_experts.down_proj.weight"}};

// All experts of a layer as one tensor, which transformers 5 computes with.
constexpr TensorRow kFusedMixtral[] = {
    {"layers.{l}.mlp.router.weight", "layers.{l}.mlp.gate.weight"},
    {"layers.{l}.mlp.experts.gate_up.weight", "layers.{l}.mlp.experts.gate_up_proj"},
    {"layers.{l}.mlp.experts.down.weight", "layers.{l}.mlp.experts.down_proj"}};
constexpr TensorRow kFusedQwen[] = {
    {"layers.{l}.mlp.experts.gate_up.weight", "layers.{l}.mlp.experts.gate_up_proj"},
    {"layers.{l}.mlp.experts.down.weight", "layers.{l}.mlp.experts.down_proj"}};

constexpr TensorRow kGpt2[] = {
    {"embedding.weight", "wte.weight"},
    {"position_embedding.weight", "wpe.weight"},
    {"layers.{l}.attention.norm.weight", "h.{l}.ln_1.weight"},
    {"layers.{l}.attention.norm.bias", "h.{l}.ln_1.bias"},
    {"layers.{l}.attention.qkv.weight", "h.{l}.attn.c_attn.weight", Rows::all, true},
    {"layers.{l}.attention.qkv.bias", "h.{l}.attn.c_attn.bias"},
    {"layers.{l}.attention.proj.weight", "h.{l}.attn.c_proj.weight", Rows::all, true},
    {"layers.{l}.attention.proj.bias", "h.{l}.attn.c_proj.bias"},
    {"layers.{l}.mlp.norm.weight", "h.{l}.ln_2.weight"},
    {"layers.{l}.mlp.norm.bias", "h.{l}.ln_2.bias"},
    {"layers.{l}.mlp.up.weight", "h.{l}.mlp.c_fc.weight", Rows::all, true},
    {"layers.{l}.mlp.up.bias", "h.{l}.mlp.c_fc.bias"},
    {"layers.{l}.mlp.down.weight", "h.{l}.mlp.c_proj.weight", Rows::all, true},
    {"layers.{l}.mlp.down.bias", "h.{l}.mlp.c_proj.bias"},
    {"final_norm.weight", "ln_f.weight"},
    {"final_norm.bias", "ln_f.bias"},
    {"output.weight", "lm_head.weight"}};

constexpr std::string_view kRopeBuffers[] = {".rotary_emb.inv_freq"};
constexpr std::string_view kMasks[] = {".attn.bias", ".attn.masked_bias"};

std::vector<TensorRow> rows(std::initializer_list<std::span<const TensorRow>> tables) {
  std::vector<TensorRow> all;
  for (const auto& table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

Family with_further_layers(Family family, std::string_view key, int64_t omitted) {
  family.further_layers = key;
  family.further_layers_omitted = omitted;
  return family;
}

std::vector<Family> make_families() {
  const auto llama = [](std::string_view type, std::string_view class_name,
                        std::vector<TensorRow> theirs, std::vector<TensorRow> fused = {}) {
    return Family{type, class_name, "model.", std::move(theirs), std::move(fused), kRopeBuffers};
  };
  return {
      llama("llama", "LlamaForCausalLM", rows({kTrunk, kInputNorms, kAttention, kMlp, kMlpBiases})),
      llama("mistral", "MistralForCausalLM", rows({kTrunk, kInputNorms, kAttention, kMlp})),
      llama("qwen2", "Qwen2ForCausalLM", rows({kTrunk, kInputNorms, kAttention, kMlp})),
      llama("qwen3", "Qwen3ForCausalLM", rows({kTrunk, kInputNorms, kAttention, kHeadNorms, kMlp})),
      llama("phi3", "Phi3ForCausalLM", rows({kTrunk, kInputNorms, kStacked})),
      llama("mixtral", "MixtralForCausalLM", rows({kTrunk, kInputNorms, kAttention, kMixtral}),
            rows({kFusedMixtral})),
      llama("qwen2_moe", "Qwen2MoeForCausalLM",
            rows({kTrunk, kInputNorms, kAttention, kMlp, kQwenExperts, kQwenSharedExpert}),
            rows({kFusedQwen})),
      llama("qwen3_moe", "Qwen3MoeForCausalLM",
            rows({kTrunk, kInputNorms, kAttention, kHeadNorms, kMlp, kQwenExperts}),
            rows({kFusedQwen})),
      llama("smollm3", "SmolLM3ForCausalLM",
            rows({kTrunk, kInputNorms, kAttention, kMlp, kMlpBiases})),
      llama("olmo2", "Olmo2ForCausalLM",
            rows({kTrunk, kOutputNorms, kAttention, kHeadNorms, kMlp})),
      llama("gemma2", "Gemma2ForCausalLM",
            rows({kTrunk, kSandwichInputs, kOutputNorms, kAttention, kMlp})),
      llama("gemma3_text", "Gemma3ForCausalLM",
            rows({kTrunk, kSandwichInputs, kOutputNorms, kAttention, kHeadNorms, kMlp})),
      llama("dots1", "Dots1ForCausalLM",
            rows({kTrunk, kInputNorms, kAttention, kHeadNorms, kMlp, kQwenExperts,
                  kDeepseekV3Experts}),
            rows({kFusedQwen})),
      with_further_layers(llama("glm4_moe", "Glm4MoeForCausalLM",
                                rows({kTrunk, kInputNorms, kAttention, kHeadNorms, kMlp,
                                      kQwenExperts, kDeepseekV3Experts}),
                                rows({kFusedQwen})),
                          "num_nextn_predict_layers", 1),
      {"gpt2", "GPT2LMHeadModel", "transformer.", rows({kGpt2}), {}, kMasks}};
}

}  // namespace

const Family* find_family(std::string_view model_type) {
  static const std::vector<Family> families = make_families();
  const auto at = std::ranges::find(families, model_type, &Family::model_type);
  return at == families.end() ? nullptr : &*at;
}

}  // namespace mtrain::interchange
