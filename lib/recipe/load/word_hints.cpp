#include "recipe/load/word_hints.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/raw_settings.h"
#include "recipe/schema/schema.h"

namespace mtrain::recipe {
namespace {

constexpr const char* kReportHint =
    "leave it out: metrics go to metrics.jsonl in the folder `train.run_dir`";
constexpr const char* kBatches =
    "`train.micro_batch_size` is the batch of a rank, `train.global_batch_size` that of a step "
    "over all ranks";
constexpr const char* kAccumulation =
    "leave it out: it is `train.global_batch_size` / (`train.micro_batch_size` x data-parallel "
    "ranks)";
constexpr const char* kBest =
    "`checkpoint.keep_best`: 1 keeps the checkpoint of the lowest validation loss, as "
    "`checkpoints/best` in the run folder";
constexpr const char* kRanked =
    "leave it out: `checkpoint.keep_best` ranks by the validation loss, lowest first";
constexpr const char* kCheckpointing = "write `recompute: full`, or `recompute: selective`";
constexpr const char* kFsdp =
    "`distributed.strategy`: fsdp2, megatron_fsdp, megatron_ddp or ddp says what is sharded";
constexpr const char* kPrecision = "write `mixed_precision: bf16_mixed`, fp16_mixed or fp32";
constexpr const char* kDataFile =
    "tokenize the text with `mtrain data build`, and name its prefix in `dataset.train`";
constexpr const char* kAdapters = "`peft.dim`, in the section of adapters (LoRA)";
constexpr const char* kSamples =
    "count in steps, samples / `train.global_batch_size`, in `train.steps`; or in `train.epochs`";
constexpr const char* kSaveAll =
    "leave it out: a checkpoint always holds the optimizer and the position in the data";
constexpr const char* kCompile = "leave it out: mtrain is compiled ahead of time";
constexpr const char* kOffload =
    "nothing is kept in host memory: shard over more ranks, or set `recompute.granularity`";
constexpr const char* kWandb = "leave it out: mtrain reports only to files, in `train.run_dir`";
constexpr const char* kLoader = "leave it out: samples are read in the order of `dataset.seed`";

constexpr WordHint kWords[] = {
    // Words of one section. The same words have different meanings elsewhere.
    {"model.name", "`model.architecture`, such as llama; `model.from` is a Hugging Face folder"},
    {"lr_scheduler.name", "lr_scheduler.style"},
    {"lr_scheduler.type", "lr_scheduler.style"},
    {"optimizer.type", "optimizer.name"},
    {"dataset.name", kDataFile},
    {"training.dataset", kDataFile},
    {"training.dataset_path", kDataFile},
    {"distributed.tp", "distributed.tp_size"},
    {"distributed.pp", "distributed.pp_size"},
    {"distributed.cp", "distributed.cp_size"},
    {"distributed.ep", "distributed.ep_size"},
    {"distributed.dp", "distributed.dp_size"},
    {"distributed.vpp", "distributed.vpp_size"},
    {"distributed.data_parallel", "distributed.dp_size"},
    {"distributed.context_parallel", "distributed.cp_size"},
    {"distributed.expert_parallel", "distributed.ep_size"},
    {"model.moe.top_k", "model.moe.router_topk"},
    // Lengths and batches.
    {"num_train_epochs", "train.epochs"},
    {"total_epochs", "train.epochs"},
    {"max_epochs", "train.epochs"},
    {"n_epochs", "train.epochs"},
    {"num_steps", "train.steps"},
    {"max_iters", "train.steps"},
    {"num_iterations", "train.steps"},
    {"total_steps", "train.steps"},
    {"train_steps", "train.steps"},
    {"num_training_steps", "train.steps"},
    {"train_samples", kSamples},
    {"batch_size", kBatches},
    {"train_batch_size", kBatches},
    {"per_device_train_batch_size", "train.micro_batch_size"},
    {"per_gpu_train_batch_size", "train.micro_batch_size"},
    {"train_micro_batch_size_per_gpu", "train.micro_batch_size"},
    {"device_batch_size", "train.micro_batch_size"},
    {"per_device_eval_batch_size",
     "validation uses `train.micro_batch_size`; `validation.steps` counts its batches"},
    {"eval_batch_size",
     "validation uses `train.micro_batch_size`; `validation.steps` counts its batches"},
    {"gradient_accumulation_steps", kAccumulation},
    {"grad_accumulation_steps", kAccumulation},
    {"grad_accum_steps", kAccumulation},
    {"accumulate_grad_batches", kAccumulation},
    {"rampup_batch_size", "the batch has one size, `train.global_batch_size`"},
    {"auto_find_batch_size",
     "the batch is not searched; --dry-run prints the memory of `train.micro_batch_size`"},
    {"max_seq_len", "dataset.seq_length"},
    {"max_seq_length", "dataset.seq_length"},
    {"max_length", "dataset.seq_length"},
    {"block_size", "dataset.seq_length"},
    {"context_length", "dataset.seq_length"},
    {"model_max_length", "dataset.seq_length"},
    {"sequence_len", "dataset.seq_length"},
    {"packing", "`packed_sequence.packed_sequence_size`: tokens of a pack; 0: no packs"},
    {"sample_packing", "`packed_sequence.packed_sequence_size`: tokens of a pack; 0: no packs"},
    // Optimizer and learning rate.
    {"learning_rate", "optimizer.lr"},
    {"adam_epsilon", "optimizer.eps"},
    {"beta1", "`optimizer.betas`: [beta1, beta2]"},
    {"beta2", "`optimizer.betas`: [beta1, beta2]"},
    {"max_grad_norm", "optimizer.clip_grad"},
    {"gradient_clip_val", "optimizer.clip_grad"},
    {"gradient_clipping", "optimizer.clip_grad"},
    {"clip_grad_value", "gradients are clipped by their norm, `optimizer.clip_grad`"},
    {"grad_clip", "optimizer.clip_grad"},
    {"optim", "`optimizer.name`, such as adamw"},
    {"optimizer_type", "`optimizer.name`, such as adamw"},
    {"optim_args", "write its fields: `optimizer.betas`, `optimizer.eps`, ..."},
    {"lr_scheduler_type", "lr_scheduler.style"},
    {"lr_scheduler_kwargs", "write its fields: `lr_scheduler.min_lr`, ..."},
    {"decay_type", "lr_scheduler.style"},
    {"decay_ratio",
     "`lr_scheduler.wsd_decay_steps` counts steps: ratio x `train.steps`, with "
     "`lr_scheduler.style`: wsd"},
    {"min_lr_factor", "`lr_scheduler.min_lr` is a rate: factor x `optimizer.lr`"},
    {"min_lr_ratio", "`lr_scheduler.min_lr` is a rate: ratio x `optimizer.lr`"},
    {"min_lr_rate", "`lr_scheduler.min_lr` is a rate: this part x `optimizer.lr`"},
    {"warmup_ratio",
     "write `lr_scheduler.warmup_steps`: ratio x the steps, which --dry-run prints"},
    {"num_warmup_steps", "lr_scheduler.warmup_steps"},
    {"warmup_iters", "lr_scheduler.warmup_steps"},
    {"lr_decay_samples", "`lr_scheduler.decay_steps` counts steps"},
    {"lr_warmup_samples", "`lr_scheduler.warmup_steps` counts steps"},
    {"lr_wsd_decay_samples", "`lr_scheduler.wsd_decay_steps` counts steps"},
    {"decoupled_lr", "all tensors have one rate, `optimizer.lr`"},
    {"label_smoothing_factor", "leave it out: the loss is next-token cross entropy"},
    {"neftune_noise_alpha", "leave it out: no noise is added to the embeddings"},
    {"data_seed", "dataset.seed"},
    // Element types, recomputation, compilation.
    {"precision", kPrecision},
    {"half_precision_backend", kPrecision},
    {"dtype_policy", kPrecision},
    {"mixed_precision_param", "distributed.mp_policy.param_dtype"},
    {"mixed_precision_reduce", "distributed.mp_policy.reduce_dtype"},
    {"bf16_full_eval", "leave it out: validation computes as training does"},
    {"tf32", "leave it out: `mixed_precision.name` decides the element types"},
    {"gradient_checkpointing", kCheckpointing},
    {"gradient_checkpointing_kwargs", kCheckpointing},
    {"activation_checkpoint", kCheckpointing},
    {"mode", kCheckpointing},  // in torchtitan's section activation_checkpoint
    {"selective_ac_option", "`recompute.modules` says what is computed again"},
    {"torch_compile", kCompile},
    {"torch_compile_backend", kCompile},
    {"enable_compiled_autograd", kCompile},
    {"use_flash_attention", "leave it out: attention never writes the scores"},
    {"use_flash_attention_2", "leave it out: attention never writes the scores"},
    {"flash_attention", "leave it out: attention never writes the scores"},
    {"enable_cpu_offload", kOffload},
    {"optimizer_cpu_offload", kOffload},
    {"use_cpu", "`train.device`: cpu"},
    {"no_cuda", "`train.device`: cpu"},
    {"accelerator", "`train.device`: cuda or cpu"},
    {"devices", "the launcher says how many ranks there are: mtrain-launch --nproc_per_node N"},
    {"num_gpus", "the launcher says how many ranks there are: mtrain-launch --nproc_per_node N"},
    {"num_nodes", "the launcher says how many hosts there are: mtrain-launch --nnodes N"},
    // Checkpoints, logs, evaluation.
    {"overwrite_output_dir", "a run folder is never overwritten: name another `train.run_dir`"},
    {"dump_folder", "train.run_dir"},
    {"logging_dir", "train.run_dir"},
    {"run_name", "the last part of `train.run_dir` is the run's name"},
    {"log_freq", "train.log_every"},
    {"logging_steps", "train.log_every"},
    {"log_every_n_steps", "train.log_every"},
    {"logging_strategy", "`train.log_every` counts steps"},
    {"logging_first_step", "leave it out: `train.log_every` counts steps"},
    {"log_level", "leave it out: there is one level"},
    {"disable_tqdm", "leave it out: the live line is drawn only on a terminal"},
    {"report_to", kReportHint},
    {"use_wandb", kWandb},
    {"wandb_name", kWandb},
    {"wandb_run_name", kWandb},
    {"enable_wandb", kWandb},
    {"enable_tensorboard", "leave it out: `train.tensorboard_dir` is written unless it is none"},
    {"save_tb_folder", "train.tensorboard_dir"},
    {"tensorboard_log_interval", kReportHint},
    {"save_steps", "checkpoint.every_steps"},
    {"save_every", "checkpoint.every_steps"},
    {"save_freq", "checkpoint.every_steps"},
    {"checkpoint_interval", "checkpoint.every_steps"},
    {"interval",
     "steps between checkpoints are `checkpoint.every_steps`, between log lines "
     "`train.log_every`"},
    {"save_strategy", "`checkpoint.every_steps` counts steps; `checkpoint.at_end` saves the end"},
    {"save_total_limit", "checkpoint.keep"},
    {"keep_latest_k", "checkpoint.keep"},
    {"save_safetensors", "leave it out: weights are saved as safetensors"},
    {"save_only_model", kSaveAll},
    {"last_save_model_only", kSaveAll},
    {"no_save_optim", kSaveAll},
    {"no_save_rng", kSaveAll},
    {"no_load_optim",
     "weights alone are read by `model.from`, a full state by "
     "`checkpoint.load`"},
    {"no_load_rng",
     "weights alone are read by `model.from`, a full state by "
     "`checkpoint.load`"},
    {"enable_checkpoint", "`checkpoint.enabled`"},
    {"folder", "checkpoint.dir"},
    {"resume", "`checkpoint.load`: latest, or the path of a checkpoint"},
    {"resume_from_checkpoint", "`checkpoint.load`: latest, or the path of a checkpoint"},
    {"load_step", "`checkpoint.load`: the path of the checkpoint of that step"},
    {"initial_load_path", "`model.from`: the Hugging Face folder whose weights to begin with"},
    {"async_mode", "`checkpoint.async`: true, false or auto"},
    {"export_dtype", "`mtrain export hf --dtype` writes another type"},
    {"eval_steps",
     "`validation.every_steps` is the distance of two evaluations, "
     "`validation.steps` their length"},
    {"eval_strategy", "`validation.every_steps` counts steps; 0: only at the end"},
    {"evaluation_strategy", "`validation.every_steps` counts steps; 0: only at the end"},
    {"val_check_interval", "validation.every_steps"},
    {"limit_val_batches", "validation.steps"},
    {"do_train", "leave it out: `mtrain` trains, `mtrain eval` evaluates"},
    {"do_eval", "leave it out: `mtrain` trains, `mtrain eval` evaluates"},
    {"push_to_hub", "leave it out: `mtrain export hf` writes a folder, nothing is uploaded"},
    {"hub_model_id", "leave it out: `mtrain export hf` writes a folder, nothing is uploaded"},
    {"load_best_model_at_end", kBest},
    {"save_best", kBest},
    {"save_top_k", "checkpoint.keep_best"},
    {"metric_for_best_model", kRanked},
    {"greater_is_better", kRanked},
    // The model.
    {"model_name", "`model.from`: a Hugging Face folder, or --recipe with a ready recipe's name"},
    {"model_name_or_path", "model.from"},
    {"hf_assets_path", "`model.from`, and `tokenizer.path` for the tokenizer alone"},
    {"flavor", "--recipe takes the name of a ready recipe; sizes are `model.num_layers`, ..."},
    {"model_size", "--recipe takes the name of a ready recipe; sizes are `model.num_layers`, ..."},
    {"model.dim", "model.hidden_size"},
    {"embed_dim", "model.hidden_size"},
    {"embedding_dim", "model.hidden_size"},
    {"n_layers", "model.num_layers"},
    {"n_heads", "model.num_attention_heads"},
    {"num_heads", "model.num_attention_heads"},
    {"n_kv_heads", "model.num_query_groups"},
    {"n_head_kv", "model.num_query_groups"},
    {"hidden_dim", "`model.hidden_size`, or `model.ffn_hidden_size` for that of the MLP"},
    {"ffn_dim", "model.ffn_hidden_size"},
    {"ffn_dim_multiplier", "`model.ffn_hidden_size` is the width itself"},
    {"multiple_of", "`model.ffn_hidden_size` is the width itself"},
    {"norm_eps", "model.norm_epsilon"},
    {"norm_type", "model.normalization"},
    {"model.dropout",
     "`model.hidden_dropout`, `model.attention_dropout`, `model.embedding_dropout`"},
    {"tie_embeddings", "model.share_embeddings_and_output_weights"},
    {"rope_base", "model.rotary_base"},
    {"use_rotary_position_embeddings", "`model.position_embedding`: rope"},
    {"use_lora", kAdapters},
    {"lora_rank", "peft.dim"},
    {"lora_r", "peft.dim"},
    // The data.
    {"tokenizer_path", "tokenizer.path"},
    {"tokenizer_name", "tokenizer.path"},
    {"tokenizer_name_or_path", "tokenizer.path"},
    {"vocab_file", "`tokenizer.path`: tokenizer.json, or the folder that holds it"},
    {"merge_file", "`tokenizer.path`: tokenizer.json, or the folder that holds it"},
    {"dataset_name", kDataFile},
    {"dataset_path", kDataFile},
    {"train_file", kDataFile},
    {"train_data", kDataFile},
    {"data_files", kDataFile},
    {"dataset_valid", "dataset.validation"},
    {"valid_data", "dataset.validation"},
    {"valid_path", "dataset.validation"},
    {"eval_dataset", "dataset.validation"},
    {"validation_file",
     "tokenize the text with `mtrain data build`, and name its prefix in `dataset.validation`"},
    {"dataset_text_field", "`mtrain data build --json-field` names the field of the text"},
    {"text_column", "`mtrain data build --json-field` names the field of the text"},
    {"data_cache_path", "leave it out: the order of the samples is computed"},
    {"dataloader_num_workers", kLoader},
    {"dataloader_drop_last", kLoader},
    {"group_by_length", kLoader},
    // The layout.
    {"tensor_parallel_size", "distributed.tp_size"},
    {"tensor_parallel_degree", "distributed.tp_size"},
    {"tensor_parallel", "distributed.tp_size"},
    {"pipeline_parallel_size", "distributed.pp_size"},
    {"pipeline_parallel_degree", "distributed.pp_size"},
    {"pipeline_parallel", "distributed.pp_size"},
    {"context_parallel_degree", "distributed.cp_size"},
    {"expert_parallel_size", "distributed.ep_size"},
    {"expert_parallel_degree", "distributed.ep_size"},
    {"expert_tensor_parallel_degree", "distributed.expert_tp_size"},
    {"data_parallel_degree", "distributed.dp_size"},
    {"data_parallel_shard_degree",
     "`distributed.dp_replicate_size` groups share the ranks; what is left is sharded over"},
    {"data_parallel_replicate_degree", "distributed.dp_replicate_size"},
    {"pipeline_parallel_schedule", "distributed.pipeline.pp_schedule"},
    {"pipeline_parallel_schedule_csv", "distributed.pipeline.pp_schedule_csv"},
    {"pipeline_parallel_microbatch_size", "distributed.pipeline.pp_microbatch_size"},
    {"pipeline_parallel_layers_per_stage", "distributed.pipeline.layers_per_stage"},
    {"pipeline_parallel_split_points",
     "`distributed.pipeline.layout` says what each stage holds, such as Et*4|t*5|t*4L"},
    {"fsdp_reshard_after_forward", "distributed.reshard_after_forward"},
    {"context_parallel_rotate_method", "distributed.cp_comm_type"},
    {"disable_loss_parallel", "leave it out: the loss is always sharded over tp"},
    {"fsdp", kFsdp},
    {"deepspeed", kFsdp},
    {"zero_stage", kFsdp},
    {"zero_optimization", kFsdp},
    {"sharding_strategy", kFsdp},
    {"use_fsdp", kFsdp},
    {"ddp_backend", "comm.backend"},
    {"ddp_timeout", "comm.timeout_s"},
    {"ddp_bucket_cap_mb", "`ddp.bucket_size` counts parameters, not MB"},
    {"ddp_find_unused_parameters", "leave it out: every parameter is used"},
    {"init_timeout_seconds", "comm.timeout_s"},
    {"train_timeout_seconds", "comm.timeout_s"},
    {"no_async_tensor_model_parallel_allreduce", "`comm_overlap.tp_comm_overlap`: false"},
};

}  // namespace

std::span<const WordHint> word_hints() { return kWords; }

bool WordHint::is_name() const {
  return text.find(' ') == std::string_view::npos && text[0] != '`';
}

std::string WordHint::hint() const {
  return is_name() ? fmt::format("write `{}`", text) : std::string(text);
}

const WordHint* find_word_hint(std::string_view path) {
  const auto find = [](std::string_view word) {
    const auto row = std::ranges::find(word_hints(), word, &WordHint::word);
    return row == word_hints().end() ? nullptr : &*row;
  };
  const WordHint* whole = find(path);
  return whole ? whole : find(path.substr(path.rfind('.') + 1));
}

const ForeignSection* find_foreign_section(std::string_view path) {
  static constexpr ForeignSection kSections[] = {{"training", "train"},
                                                 {"trainer", "train"},
                                                 {"training_args", "train"},
                                                 {"training_arguments", "train"},
                                                 {"job", "train"},
                                                 {"metrics", "train"},
                                                 {"logging", "train"},
                                                 {"parallelism", "distributed"},
                                                 {"parallel", "distributed"},
                                                 {"pipeline", "distributed.pipeline"},
                                                 {"fsdp_config", "distributed"},
                                                 {"optim", "optimizer"},
                                                 {"activation_checkpoint", "recompute"},
                                                 {"quantize", "mixed_precision"},
                                                 {"data", "dataset"},
                                                 {"data_args", "dataset"},
                                                 {"model_args", "model"},
                                                 {"model_config", "model"},
                                                 {"checkpointing", "checkpoint"}};
  const auto row = std::ranges::find(kSections, path, &ForeignSection::name);
  return row == std::end(kSections) ? nullptr : row;
}

namespace {

// Returns the names of the settings and sections that lie directly in `section`; "" is the root.
std::string keys_of(const std::string& section) {
  const std::string prefix = section.empty() ? "" : section + ".";
  std::vector<std::string> keys;
  for (const SchemaRow& row : schema_rows()) {
    if (!row.path.starts_with(prefix)) continue;
    const std::string key =
        row.path.substr(prefix.size(), row.path.find('.', prefix.size()) - prefix.size());
    if (std::ranges::count(keys, key) == 0) keys.push_back(key);
  }
  std::string list;
  for (const std::string& key : keys) list += (list.empty() ? "" : ", ") + key;
  return list;
}

}  // namespace

std::string hint_for_unknown(const std::string& path) {
  if (const WordHint* row = find_word_hint(path)) return row->hint();
  std::string key = path;
  const size_t dot = path.find('.');
  if (const ForeignSection* foreign = find_foreign_section(path.substr(0, dot))) {
    if (dot == std::string::npos)
      return fmt::format("its settings are in `{}` here", foreign->section);
    key = std::string(foreign->section) + path.substr(dot);
    if (const SchemaRow* row = find_row(key)) return fmt::format("write `{}`", row->path);
    if (const auto paths = paths_of_word(path.substr(path.rfind('.') + 1)); paths.size() == 1)
      if (const SchemaRow* row = find_row(paths[0])) return fmt::format("write `{}`", row->path);
  }
  if (const std::string meant = nearest_key(key); !meant.empty()) {
    const SchemaRow* row = find_row(meant);
    return row && row->path != meant ? fmt::format("did you mean `{}` (`{}`)?", meant, row->path)
                                     : fmt::format("did you mean `{}`?", meant);
  }
  // The key may be a misspelt word of another tool.
  std::vector<std::string> words;
  for (const WordHint& row : word_hints()) words.emplace_back(row.word);
  if (const std::string word = nearest(key.substr(key.rfind('.') + 1), words); !word.empty())
    return find_word_hint(word)->is_name()
               ? fmt::format("did you mean `{}`?", find_word_hint(word)->text)
               : fmt::format("did you mean {}? {}", word, find_word_hint(word)->hint());
  std::string section = key.substr(0, key.rfind('.') == std::string::npos ? 0 : key.rfind('.'));
  if (keys_of(section).empty()) section.clear();
  return fmt::format("{} {}",
                     section.empty() ? "the sections are" : "the keys of " + section + " are",
                     keys_of(section));
}

}  // namespace mtrain::recipe
