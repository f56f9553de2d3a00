#include "interchange/config/harmless_keys.h"

#include <set>
#include <string>

#include "base/strings.h"

namespace mtrain::interchange {

namespace {

// Keys, separated by blanks, and their source. A key with which any family computes must not be
// here, even if mtrain does not build that family: a folder that has the key may compute with it.
struct HarmlessKeys {
  std::string_view source, keys;
};
constexpr HarmlessKeys kHarmless[] = {
    {"PretrainedConfig of transformers 4.30, keys of the class and the outputs",
     "_commit_hash _name_or_path architectures chunk_size_feed_forward finetuning_task id2label "
     "is_encoder_decoder label2id name_or_path num_labels output_attentions output_hidden_states "
     "output_past prefix problem_type return_dict task_specific_params tokenizer_class "
     "transformers_version use_cache"},
    {"PretrainedConfig of transformers 4.30, how TensorFlow, TorchScript and TPUs run it",
     "tf_legacy_loss torchscript use_bfloat16 xla_device"},
    {"PretrainedConfig of transformers 4.57",
     "_attn_implementation _attn_implementation_autoset _attn_implementation_internal "
     "_output_attentions attn_implementation auto_map gradient_checkpointing"},
    {"PretrainedConfig of transformers 5.0",
     "_experts_implementation experts_implementation ignore_keys_at_rope_validation"},
    {"PretrainedConfig of transformers 4.34 and 4.35", "_flash_attn_2_enabled"},
    {"ids of tokens that PretrainedConfig of transformers 4.30 and tokenizers' scripts write",
     "decoder_start_token_id sep_token_id unk_token_id"},
    {"defaults of generation in PretrainedConfig of transformers 4.30 to 4.57",
     "bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping "
     "encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id "
     "forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size "
     "num_beam_groups num_beams num_return_sequences output_scores remove_invalid_values "
     "repetition_penalty return_dict_in_generate suppress_tokens temperature top_k top_p "
     "typical_p"},
    {"GenerationConfig of transformers 4.30 to 5.0, which old folders write into config.json",
     "assistant_confidence_threshold assistant_early_exit assistant_lookbehind cache_config "
     "cache_implementation compile_config constraints disable_compile dola_layers "
     "encoder_repetition_penalty epsilon_cutoff eta_cutoff force_words_ids forced_decoder_ids "
     "generation_kwargs guidance_scale low_memory max_matching_ngram_size max_new_tokens max_time "
     "min_new_tokens min_p num_assistant_tokens num_assistant_tokens_schedule output_logits "
     "penalty_alpha prefill_chunk_size prompt_lookup_num_tokens renormalize_logits "
     "return_legacy_cache sequence_bias stop_strings target_lookbehind token_healing top_h "
     "watermarking_config"},
    {"heads of GPT2Config that classify and choose, and its longest text, which n_positions says",
     "n_ctx summary_activation summary_first_dropout summary_proj_to_labels summary_type "
     "summary_use_proj"},
    {"GPT2Config, the order of two operations", "reorder_and_upcast_attn"},
    {"losses of routers in training, which a recipe says",
     "aux_loss_alpha output_router_logits router_aux_loss_coef seq_aux"},
    {"configurations with latent attention of transformers 5, a sum of two other keys",
     "qk_head_dim"},
    {"DeepSeek's own code, how many ranks share the experts", "ep_size"},
    {"unsloth, which writes them into the folders that it loads",
     "_model_name_or_path unsloth_fixed unsloth_version"},
    {"scripts of training (FastChat, LLaVA), the longest text that they cut to",
     "model_max_length tokenizer_model_max_length"},
    {"the first conversions of LLaMA, and OpenLLaMA", "is_llama_config"},
    {"transformers.js", "transformers.js_config"},
    {"exports of mtrain, the names of other keys", "_mtrain_ignored_keys"}};

}  // namespace

bool is_harmless_key(std::string_view key) {
  static const std::set<std::string, std::less<>> all = [] {
    std::set<std::string, std::less<>> keys;
    for (const HarmlessKeys& row : kHarmless)
      for (std::string& k : split(row.keys, ' ')) keys.insert(std::move(k));
    return keys;
  }();
  return all.contains(key);
}

}  // namespace mtrain::interchange
