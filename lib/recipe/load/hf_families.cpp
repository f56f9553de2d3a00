#include "recipe/load/hf_families.h"

#include <algorithm>
#include <iterator>

namespace mtrain::recipe {

namespace {

constexpr HfFamilyKey kLlama[] = {
    {"hidden_size", "4096"},       {"intermediate_size", "11008"},
    {"num_hidden_layers", "32"},   {"num_attention_heads", "32"},
    {"num_key_value_heads", ""},   {"head_dim", ""},
    {"vocab_size", "32000"},       {"max_position_embeddings", "2048"},
    {"rms_norm_eps", "1.0e-6"},    {"rope_theta", "10000"},
    {"hidden_act", "silu"},        {"attention_bias", "false"},
    {"mlp_bias", "false"},         {"tie_word_embeddings", "false"},
    {"initializer_range", "0.02"}, {"attention_dropout", "0.0"}};

constexpr HfFamilyKey kMistral[] = {
    {"hidden_size", "4096"},          {"intermediate_size", "14336"},
    {"num_hidden_layers", "32"},      {"num_attention_heads", "32"},
    {"num_key_value_heads", "8"},     {"head_dim", ""},
    {"vocab_size", "32000"},          {"max_position_embeddings", "131072"},
    {"rms_norm_eps", "1.0e-6"},       {"rope_theta", "10000"},
    {"hidden_act", "silu"},           {"sliding_window", "4096"},
    {"tie_word_embeddings", "false"}, {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

constexpr HfFamilyKey kPhi3[] = {
    {"hidden_size", "3072"},          {"intermediate_size", "8192"},
    {"num_hidden_layers", "32"},      {"num_attention_heads", "32"},
    {"num_key_value_heads", ""},      {"head_dim", ""},
    {"vocab_size", "32064"},          {"max_position_embeddings", "4096"},
    {"rms_norm_eps", "1.0e-5"},       {"rope_theta", "10000"},
    {"partial_rotary_factor", "1.0"}, {"hidden_act", "silu"},
    {"sliding_window", ""},           {"tie_word_embeddings", "false"},
    {"initializer_range", "0.02"},    {"attention_dropout", "0.0"},
    {"resid_pdrop", "0.0"},           {"embd_pdrop", "0.0"}};

constexpr HfFamilyKey kQwen2[] = {
    {"hidden_size", "4096"},       {"intermediate_size", "22016"},
    {"num_hidden_layers", "32"},   {"num_attention_heads", "32"},
    {"num_key_value_heads", "32"}, {"head_dim", ""},
    {"vocab_size", "151936"},      {"max_position_embeddings", "32768"},
    {"rms_norm_eps", "1.0e-6"},    {"rope_theta", "10000"},
    {"hidden_act", "silu"},        {"tie_word_embeddings", "false"},
    {"initializer_range", "0.02"}, {"attention_dropout", "0.0"}};

constexpr HfFamilyKey kQwen3[] = {
    {"hidden_size", "4096"},          {"intermediate_size", "22016"},
    {"num_hidden_layers", "32"},      {"num_attention_heads", "32"},
    {"num_key_value_heads", "32"},    {"head_dim", "128"},
    {"vocab_size", "151936"},         {"max_position_embeddings", "32768"},
    {"rms_norm_eps", "1.0e-6"},       {"rope_theta", "10000"},
    {"hidden_act", "silu"},           {"attention_bias", "false"},
    {"tie_word_embeddings", "false"}, {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

// Configurations of Llama's kind may have pretraining_tp, which transformers' SmolLM3 does not
// read.
constexpr HfFamilyKey kSmolLm3[] = {
    {"hidden_size", "2048"},         {"intermediate_size", "11008"},
    {"num_hidden_layers", "36"},     {"num_attention_heads", "16"},
    {"num_key_value_heads", "4"},    {"head_dim", ""},
    {"vocab_size", "128256"},        {"max_position_embeddings", "32768"},
    {"rms_norm_eps", "1.0e-6"},      {"rope_theta", "2000000"},
    {"hidden_act", "silu"},          {"mlp_bias", "false"},
    {"no_rope_layers", ""},          {"no_rope_layer_interval", ""},
    {"pretraining_tp", ""},          {"attention_bias", "false"},
    {"tie_word_embeddings", "true"}, {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

constexpr HfFamilyKey kOlmo2[] = {
    {"hidden_size", "4096"},          {"intermediate_size", "11008"},
    {"num_hidden_layers", "32"},      {"num_attention_heads", "32"},
    {"num_key_value_heads", ""},      {"head_dim", ""},
    {"vocab_size", "50304"},          {"max_position_embeddings", "2048"},
    {"rms_norm_eps", "1.0e-5"},       {"rope_theta", "10000"},
    {"hidden_act", "silu"},           {"attention_bias", "false"},
    {"tie_word_embeddings", "false"}, {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

// Some folders have the width of the windows a second time, which transformers does not read.
constexpr HfFamilyKey kGemma2[] = {{"hidden_size", "2304"},
                                   {"intermediate_size", "9216"},
                                   {"num_hidden_layers", "26"},
                                   {"num_attention_heads", "8"},
                                   {"num_key_value_heads", "4"},
                                   {"head_dim", "256"},
                                   {"vocab_size", "256000"},
                                   {"max_position_embeddings", "8192"},
                                   {"rms_norm_eps", "1.0e-6"},
                                   {"rope_theta", "10000"},
                                   {"hidden_activation", "gelu_pytorch_tanh"},
                                   {"query_pre_attn_scalar", "256"},
                                   {"attn_logit_softcapping", "50.0"},
                                   {"final_logit_softcapping", "30.0"},
                                   {"sliding_window_size", ""},
                                   {"attention_bias", "false"},
                                   {"tie_word_embeddings", "true"},
                                   {"initializer_range", "0.02"},
                                   {"attention_dropout", "0.0"}};

// transformers has a key for a cap of attention scores, too, but its Gemma 3 does not cap them.
constexpr HfFamilyKey kGemma3Text[] = {
    {"hidden_size", "2304"},           {"intermediate_size", "9216"},
    {"num_hidden_layers", "26"},       {"num_attention_heads", "8"},
    {"num_key_value_heads", "4"},      {"head_dim", "256"},
    {"vocab_size", "262208"},          {"max_position_embeddings", "131072"},
    {"rms_norm_eps", "1.0e-6"},        {"rope_theta", "1000000"},
    {"rope_local_base_freq", "10000"}, {"hidden_activation", "gelu_pytorch_tanh"},
    {"query_pre_attn_scalar", "256"},  {"final_logit_softcapping", ""},
    {"sliding_window_pattern", ""},    {"attention_bias", "false"},
    {"tie_word_embeddings", "true"},   {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

constexpr HfFamilyKey kMixtral[] = {
    {"hidden_size", "4096"},          {"intermediate_size", "14336"},
    {"num_hidden_layers", "32"},      {"num_attention_heads", "32"},
    {"num_key_value_heads", "8"},     {"head_dim", ""},
    {"vocab_size", "32000"},          {"max_position_embeddings", "131072"},
    {"rms_norm_eps", "1.0e-5"},       {"rope_theta", "1000000"},
    {"hidden_act", "silu"},           {"sliding_window", ""},
    {"tie_word_embeddings", "false"}, {"num_local_experts", "8"},
    {"num_experts_per_tok", "2"},     {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

constexpr HfFamilyKey kQwen2Moe[] = {{"hidden_size", "2048"},
                                     {"intermediate_size", "5632"},
                                     {"num_hidden_layers", "24"},
                                     {"num_attention_heads", "16"},
                                     {"num_key_value_heads", "16"},
                                     {"head_dim", ""},
                                     {"vocab_size", "151936"},
                                     {"max_position_embeddings", "32768"},
                                     {"rms_norm_eps", "1.0e-6"},
                                     {"rope_theta", "10000"},
                                     {"hidden_act", "silu"},
                                     {"qkv_bias", "true"},
                                     {"tie_word_embeddings", "false"},
                                     {"num_experts", "60"},
                                     {"num_experts_per_tok", "4"},
                                     {"moe_intermediate_size", "1408"},
                                     {"shared_expert_intermediate_size", "5632"},
                                     {"norm_topk_prob", "false"},
                                     {"decoder_sparse_step", "1"},
                                     {"mlp_only_layers", ""},
                                     {"initializer_range", "0.02"},
                                     {"attention_dropout", "0.0"}};

constexpr HfFamilyKey kQwen3Moe[] = {
    {"hidden_size", "2048"},          {"intermediate_size", "6144"},
    {"num_hidden_layers", "24"},      {"num_attention_heads", "32"},
    {"num_key_value_heads", "4"},     {"head_dim", ""},
    {"vocab_size", "151936"},         {"max_position_embeddings", "32768"},
    {"rms_norm_eps", "1.0e-6"},       {"rope_theta", "10000"},
    {"hidden_act", "silu"},           {"attention_bias", "false"},
    {"tie_word_embeddings", "false"}, {"num_experts", "128"},
    {"num_experts_per_tok", "8"},     {"moe_intermediate_size", "768"},
    {"norm_topk_prob", "false"},      {"decoder_sparse_step", "1"},
    {"mlp_only_layers", ""},          {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

constexpr HfFamilyKey kDots1[] = {{"hidden_size", "4608"},
                                  {"intermediate_size", "10944"},
                                  {"num_hidden_layers", "62"},
                                  {"num_attention_heads", "32"},
                                  {"num_key_value_heads", "32"},
                                  {"head_dim", ""},
                                  {"vocab_size", "152064"},
                                  {"max_position_embeddings", "2048"},
                                  {"rms_norm_eps", "1.0e-6"},
                                  {"rope_theta", "10000"},
                                  {"hidden_act", "silu"},
                                  {"attention_bias", "false"},
                                  {"tie_word_embeddings", "false"},
                                  {"n_routed_experts", ""},
                                  {"num_experts_per_tok", ""},
                                  {"moe_intermediate_size", "1408"},
                                  {"n_shared_experts", ""},
                                  {"first_k_dense_replace", "0"},
                                  {"n_group", "1"},
                                  {"topk_group", "1"},
                                  {"norm_topk_prob", "false"},
                                  {"routed_scaling_factor", "1.0"},
                                  {"initializer_range", "0.02"},
                                  {"attention_dropout", "0.0"}};

// The output projection of attention has no bias.
constexpr HfFamilyKey kGlm4Moe[] = {{"hidden_size", "4096"},
                                    {"intermediate_size", "10944"},
                                    {"num_hidden_layers", "46"},
                                    {"num_attention_heads", "96"},
                                    {"num_key_value_heads", "8"},
                                    {"head_dim", ""},
                                    {"vocab_size", "151552"},
                                    {"max_position_embeddings", "131072"},
                                    {"rms_norm_eps", "1.0e-5"},
                                    {"rope_theta", "10000"},
                                    {"partial_rotary_factor", "0.5"},
                                    {"hidden_act", "silu"},
                                    {"attention_bias", "false", "model.add_qkv_bias"},
                                    {"use_qk_norm", "false"},
                                    {"tie_word_embeddings", "false"},
                                    {"n_routed_experts", "128"},
                                    {"num_experts_per_tok", "8"},
                                    {"moe_intermediate_size", "1408"},
                                    {"n_shared_experts", "1"},
                                    {"first_k_dense_replace", "1"},
                                    {"n_group", "1"},
                                    {"topk_group", "1"},
                                    {"norm_topk_prob", "true"},
                                    {"routed_scaling_factor", "1.0"},
                                    {"initializer_range", "0.02"},
                                    {"attention_dropout", "0.0"}};

// Keys of DeepSeek-V3 that transformers does not read for these families. The folders of dots.llm1
// write the name of the choice as that of the scores, too.
constexpr HfOnlyValue kDeepseekV3Router[] = {
    {"topk_method", "noaux_tc"}, {"scoring_func", "sigmoid noaux_tc"}, {"moe_layer_freq", "1"}};

constexpr HfFamilyKey kGpt2[] = {{"n_embd", "768"},
                                 {"n_inner", ""},
                                 {"n_layer", "12"},
                                 {"n_head", "12"},
                                 {"vocab_size", "50257"},
                                 {"n_positions", "1024"},
                                 {"layer_norm_epsilon", "1.0e-5"},
                                 {"activation_function", "gelu_new"},
                                 {"tie_word_embeddings", "true"},
                                 {"initializer_range", "0.02"},
                                 {"resid_pdrop", "0.1"},
                                 {"embd_pdrop", "0.1"},
                                 {"attn_pdrop", "0.1"}};

constexpr HfFamily kFamilies[] = {
    {.model_type = "llama", .keys = kLlama},
    {.model_type = "mistral", .keys = kMistral, .window = HfWindow::every_layer},
    {.model_type = "phi3", .keys = kPhi3, .window = HfWindow::every_layer, .rope = HfRope::phi3},
    {.model_type = "qwen2", .keys = kQwen2, .window = HfWindow::from_layer},
    {.model_type = "qwen3", .keys = kQwen3, .window = HfWindow::from_layer},
    {.model_type = "smollm3", .keys = kSmolLm3, .window = HfWindow::without_rope},
    {.model_type = "olmo2", .keys = kOlmo2, .rope = HfRope::linear_by_type},
    {.model_type = "gemma2", .keys = kGemma2, .window = HfWindow::patterned, .window_pattern = 2},
    {.model_type = "gemma3_text",
     .keys = kGemma3Text,
     .window = HfWindow::patterned,
     .window_pattern = 6,
     .rope = HfRope::of_layer_types},
    {.model_type = "mixtral", .keys = kMixtral, .window = HfWindow::every_layer},
    {.model_type = "qwen2_moe", .keys = kQwen2Moe, .window = HfWindow::alternating},
    {.model_type = "qwen3_moe", .keys = kQwen3Moe, .window = HfWindow::switched},
    {.model_type = "dots1",
     .keys = kDots1,
     .window = HfWindow::late_layers,
     .deepseek_v3_router = true,
     .only = kDeepseekV3Router},
    {.model_type = "glm4_moe",
     .keys = kGlm4Moe,
     .deepseek_v3_router = true,
     .only = kDeepseekV3Router},
    {.model_type = "gpt2", .keys = kGpt2}};

}  // namespace

std::span<const HfFamily> hf_families() { return kFamilies; }

const HfFamily* find_hf_family(std::string_view model_type) {
  const auto* at = std::ranges::find(kFamilies, model_type, &HfFamily::model_type);
  return at == std::end(kFamilies) ? nullptr : at;
}

}  // namespace mtrain::recipe
