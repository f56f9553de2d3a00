// GPT-2 (Radford et al. 2019).
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

constexpr FamilyKey kGpt2Keys[] = {{"n_embd", "768"},
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

constexpr TensorRow kRows[] = {
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

constexpr std::string_view kMasks[] = {".attn.bias", ".attn.masked_bias"};

void gpt2_defaults(ModelConfig& m) {
  m.normalization = NormKind::layer;
  m.position_embedding = recipe::PositionEmbedding::learned;
  m.activation = recipe::Activation::gelu_tanh;
  m.add_bias_linear = m.add_qkv_bias = true;
  m.share_embeddings_and_output_weights = true;
}

}  // namespace

Family gpt2() {
  return {.model_type = "gpt2",
          .class_name = "GPT2LMHeadModel",
          .config_class = "GPT2Config",
          .keys = kGpt2Keys,
          .defaults = gpt2_defaults,
          .prefix = "transformer.",
          .rows = rows({kRows}),
          .buffers = kMasks,
          .targets = {{.section = "model",
                       .name = "models.gpt2.build_gpt2_model",
                       .sets = {{"model.architecture", "gpt2"}},
                       .defaults = {{"model.vocab_size", "50257"},
                                    {"model.max_position_embeddings", "2048"},
                                    {"model.hidden_size", "768"},
                                    {"model.num_layers", "12"},
                                    {"model.num_attention_heads", "12"}}}}};
}

}  // namespace mtrain::interchange
