#include "recipe/load/foreign_keys.h"

#include <algorithm>
#include <iterator>

#include "base/strings.h"

namespace mtrain::recipe {
namespace {

bool off(const Node& value) {
  if (value.unset()) return true;
  const std::string word = to_lower(value.text);
  return value.kind == Node::Kind::scalar &&
         (word == "false" || word == "no" || word == "off" || word == "0" || word == "0.0");
}
bool on(const Node& value) {
  const std::string word = to_lower(value.text);
  return word == "true" || word == "yes" || word == "on";
}
bool nothing(const Node& value) {
  return value.kind == Node::Kind::list ? value.items.empty() : off(value);
}
bool fp32(const Node& value) {
  return value.unset() || value.text == "torch.float32" || value.text == "float32" ||
         value.text == "fp32";
}

bool bf16(const Node& value) {
  return value.unset() || value.text == "torch.bfloat16" || value.text == "bfloat16" ||
         value.text == "bf16" || value.text == "auto";
}
bool before_adapters(const Node& value) { return value.unset() || value.text == "pre"; }
bool kaiming(const Node& value) {
  return value.unset() || value.text == "kaiming" || value.text == "uniform";
}
bool is_bf16_autocast(const Node& section) {
  for (size_t i = 0; i < section.keys.size(); ++i)
    if (section.keys[i].name == "dtype" && !bf16(section.items[i])) return false;
  return true;
}
bool is_full_model(const Node& value) {
  return value.unset() || value.text == "all" || value.text == "language" ||
         value.text == "default" || value.text == "auto";
}

constexpr Severity kNone = Severity::resolved;    // the key has no effect in mtrain
constexpr Severity kIgnored = Severity::warning;  // mtrain ignores what it asks for
constexpr Severity kRefused = Severity::error;

constexpr const char* kOwnModel = "mtrain's own model needs no patches";
constexpr const char* kTorchDdp = "it chooses internals of torch's DDP";
constexpr const char* kMegatronFsdp = "it chooses internals of megatron-fsdp's buffers";
constexpr const char* kFixedBuffers =
    "units take turns in a few full buffers, which are never freed, in any case";
constexpr const char* kOwnKernels = "mtrain chooses its kernels by device, type and shape";
constexpr const char* kAnyRows = "the experts' 8-bit GEMMs take any number of rows";
constexpr const char* kOwnTransport = "mtrain's own transports carry the tokens";
constexpr const char* kStreams =
    "on a GPU the stream of the experts' exchanges has the highest priority";
constexpr const char* kReports = "metrics are written to metrics.jsonl in train.run_dir";
constexpr const char* kOwnLoader = "samples are read in the order that dataset.seed decides";
constexpr const char* kPackedByLength =
    "packs are made from the lengths of documents that are tokenized already";
constexpr const char* kTokenMean =
    "the loss is always the mean over the tokens of the global batch";
constexpr const char* kCounters = "random numbers are functions of the element, not of the rank";
constexpr const char* kNoPadding = "rows are computed at their own lengths, without padding";
constexpr const char* kOwnTokenizer = "the tokenizer's own files say how a text begins";
constexpr const char* kOtherTask = "mtrain trains all weights of a language model on text";

// A key whose value is kept. resolve_foreign.cpp or a rule compares it with fields and reports it.
constexpr ForeignKey kept(std::string_view path) {
  return {.path = path,
          .severity = kNone,
          .reason = "it decides a setting together with others",
          .harmless = [](const Node&) { return true; },
          .kept = true};
}

// A kept key of Muon. If the optimizer is Muon, `reason` and `hint` refuse values not supported.
constexpr ForeignKey kept_of_muon(std::string_view path, std::string_view reason,
                                  std::string_view hint) {
  ForeignKey key = kept(path);
  key.severity = kRefused, key.reason = reason, key.hint = hint;
  return key;
}

constexpr ForeignKey kForeignKeys[]{
    // AutoModel's distributed section.
    ForeignKey{"distributed.pipeline.patch_inner_model", kNone, kOwnModel},
    ForeignKey{"distributed.pipeline.patch_causal_lm_model", kNone, kOwnModel},
    ForeignKey{"distributed.pipeline.patch_stage_backward_maybe_with_nosync", kNone, kOwnModel},
    ForeignKey{"distributed.pipeline.pp_batch_size", kNone,
               "step_scheduler.local_batch_size is what a pipeline works on"},
    ForeignKey{"distributed.pipeline.pp_seq_len", kNone,
               "the length of a message follows from dataset.seq_length"},
    ForeignKey{"distributed.pipeline.loss_fn", kNone, "the loss is next-token cross entropy"},
    ForeignKey{"distributed.offload_policy.*", kRefused,
               "parameters and optimizer cannot be kept in host memory yet",
               "shard over more ranks, or set optimizer.master_weights: false or recompute: full, "
               "to need less memory",
               off},
    ForeignKey{"distributed.autocast_dtype",
               kIgnored,
               "is ignored: weights and activations are in distributed.mp_policy.param_dtype",
               {},
               bf16},
    ForeignKey{"distributed.enable_compile", kNone, "mtrain is compiled ahead of time"},
    ForeignKey{"distributed.multimodal.*", kIgnored, "is ignored: models here have text alone"},
    ForeignKey{"distributed.activation_checkpointing_scope",
               kIgnored,
               "is ignored: models here have one tower, the language model",
               {},
               is_full_model},
    ForeignKey{"distributed.moe.mp_policy.*", kIgnored,
               "is ignored: experts have the types of distributed.mp_policy"},
    ForeignKey{"distributed.use_hf_tp_plan", kNone, "mtrain's model has its own plan for tp_size"},
    ForeignKey{"distributed.tp_plan.*", kNone, "mtrain's model has its own plan for tp_size"},
    ForeignKey{"distributed.patch_is_packed_sequence", kNone, kOwnModel},
    ForeignKey{"distributed.megatron_fsdp_unit_modules.*", kNone,
               "each layer is a unit, and embedding and output layer are one each"},
    ForeignKey{"distributed.init_fsdp_with_meta_device", kNone,
               "each rank initializes only the values that it keeps"},
    ForeignKey{"distributed.preserve_fp32_weights", kNone,
               "optimizer.master_weights keeps fp32 weights"},
    ForeignKey{"distributed.disable_bucketing", kNone, "every unit is reduced by itself"},
    ForeignKey{"distributed.calculate_per_token_loss", kNone, kTokenMean},
    ForeignKey{"distributed.keep_fp8_transpose_cache", kNone, kMegatronFsdp},
    ForeignKey{"distributed.fsdp_double_buffer", kNone, kFixedBuffers},
    ForeignKey{"ddp.fsdp_double_buffer", kNone, kFixedBuffers},
    ForeignKey{"comm_overlap.fsdp_double_buffer", kNone, kFixedBuffers},
    ForeignKey{"distributed.report_nan_in_param_grad", kNone,
               "debug.check_nan names the tensor that is not finite"},
    ForeignKey{"distributed.broadcast_buffers", kNone, kTorchDdp},
    ForeignKey{"distributed.find_unused_parameters", kNone, kTorchDdp},
    ForeignKey{"distributed.static_graph", kNone, kTorchDdp},
    ForeignKey{"distributed.gradient_as_bucket_view", kNone, kTorchDdp},
    // AutoModel's other sections.
    ForeignKey{"recipe.*", kNone, "it chooses a trainer of AutoModel"},
    ForeignKey{"ci.*", kNone, "it describes tests of AutoModel"},
    ForeignKey{"skypilot.*", kNone, "it describes machines of a cloud"},
    ForeignKey{"autocast.*",
               kIgnored,
               "is ignored: mixed_precision and distributed.mp_policy decide the element types",
               {},
               is_bf16_autocast},
    ForeignKey{"nvtx", kIgnored, "is ignored: debug.nvtx marks what a GPU computes", {}, off},
    ForeignKey{"longalign", kRefused, "LongAlign's batches are not supported", "leave it out", off},
    ForeignKey{"neftune.*", kRefused, "noise on embeddings is not supported", "leave it out"},
    ForeignKey{"benchmark.*", kNone, "--profile and scripts/bench measure"},
    ForeignKey{"fp8.precompute_float8_dynamic_scale_for_fsdp", kNone,
               "gathers in 8 bits reduce all maxima of a unit together, right after its update"},
    ForeignKey{"fp8.force_recompute_fp8_weight_in_bwd", kNone, kOwnKernels},
    ForeignKey{"fp8.filter_fqns.*", kIgnored,
               "is ignored: all of the layers' linears are multiplied in 8 bits, and no other"},
    ForeignKey{"compile.*", kNone, "mtrain is compiled ahead of time"},
    ForeignKey{"dataloader.shuffle",
               kIgnored,
               "is ignored: samples are read in the order that dataset.seed decides",
               {},
               on},
    ForeignKey{"dataloader.*", kNone, kOwnLoader},
    ForeignKey{"validation_dataloader.*", kNone, kOwnLoader},
    ForeignKey{"wandb.*", kNone, kReports},
    ForeignKey{"mlflow.*", kNone, kReports},
    ForeignKey{"comet.*", kNone, kReports},
    ForeignKey{"mfu.*", kNone, "every log line has the MFU where the device's peak is known"},
    ForeignKey{"moe_metrics.*", kNone, kReports},
    ForeignKey{"prewarm.*", kNone, "the first step prepares what its kernels need"},
    ForeignKey{"parallelizer.*", kIgnored, "is ignored: the distributed section decides"},
    ForeignKey{"peft.use_dora", kRefused,
               "DoRA, which also trains the magnitudes of weights, is not supported",
               "remove it: LoRA trains A and B alone", off},
    ForeignKey{"peft.dropout_position",
               kIgnored,
               "is ignored: peft.dropout drops from the adapters' inputs",
               {},
               before_adapters},
    ForeignKey{"peft.lora_A_init",
               kIgnored,
               "is ignored: A begins with Kaiming's uniform numbers",
               {},
               kaiming},
    ForeignKey{"peft.lora_A_init_method",
               kIgnored,
               "is ignored: A begins with Kaiming's uniform numbers",
               {},
               kaiming},
    ForeignKey{"peft.lora_dtype", kNone, "adapters have fp32 master weights"},
    ForeignKey{"peft.use_triton", kNone, kOwnKernels},
    ForeignKey{"peft.use_memory_efficient_lora", kNone, kOwnKernels},
    ForeignKey{"quantization.*", kRefused, "quantized weights cannot be trained", kOtherTask},
    ForeignKey{"qat.*", kRefused, "quantization-aware training is not supported", kOtherTask},
    ForeignKey{"teacher_model.*", kRefused, "distillation is not supported", kOtherTask},
    ForeignKey{"kd_loss_fn.*", kRefused, "distillation is not supported", kOtherTask},
    ForeignKey{"kd_ratio", kRefused, "distillation is not supported", kOtherTask},
    ForeignKey{"dllm.*", kRefused, "diffusion language models are not supported", kOtherTask},
    ForeignKey{"step_scheduler.gc_every_steps", kNone, "there is no garbage collector"},
    ForeignKey{"step_scheduler.start_step", kRefused, "a run begins where its checkpoint ends",
               "leave it out; checkpoint.load=latest continues a run", off},
    ForeignKey{"step_scheduler.start_epoch", kRefused, "a run begins where its checkpoint ends",
               "leave it out; checkpoint.load=latest continues a run", off},
    ForeignKey{"step_scheduler.preemption_signal", kNone,
               "SIGTERM and SIGINT end a run after its step, with a checkpoint"},
    ForeignKey{"clip_grad_norm.foreach", kNone, "one kernel reads each tensor"},
    ForeignKey{"loss_fn.reduction", kRefused,
               "a step's loss is the mean over the labels of its global batch", "leave it out",
               [](const Node& value) { return value.text == "sum" || value.text == "mean"; }},
    ForeignKey{"loss_fn.logit_softcapping", kRefused, "the model's configuration decides the cap",
               "write model.final_logit_softcapping", off},
    ForeignKey{"optimizer.amsgrad", kRefused, "AMSGrad is not supported", "leave it out", off},
    ForeignKey{"optimizer.maximize", kRefused, "the loss is minimized", "leave it out", off},
    kept("model.revision"),
    ForeignKey{"model.local_files_only", kNone, "nothing is downloaded"},
    ForeignKey{"model.token", kNone, "nothing is downloaded"},
    ForeignKey{"model.topk_method", kRefused, "only noaux_tc is supported here",
               "name a folder whose config.json has it in model.from",
               [](const Node& value) { return value.text == "noaux_tc"; }},
    ForeignKey{"dataset.unshifted", kRefused, "labels are the next tokens", "leave it out", off},
    ForeignKey{"validation_dataset.unshifted", kRefused, "labels are the next tokens",
               "leave it out", off},
    ForeignKey{"step_scheduler.log_remote_every_steps", kNone, kReports},
    ForeignKey{"step_scheduler.save_checkpoint_every_epoch",
               kIgnored,
               "is ignored: checkpoint.every_steps and checkpoint.at_end decide",
               {},
               off},
    ForeignKey{"scheduler.lr_warmup_steps",
               kIgnored,
               "is ignored: Megatron counts it in samples, and scheduler.lr_warmup_iters decides",
               {},
               off},
    ForeignKey{"scheduler.lr_decay_steps",
               kIgnored,
               "is ignored: Megatron counts it in samples, and scheduler.lr_decay_iters decides",
               {},
               off},
    ForeignKey{
        "scheduler.lr_wsd_decay_steps",
        kIgnored,
        "is ignored: Megatron counts it in samples, and scheduler.lr_wsd_decay_iters decides",
        {},
        off},
    ForeignKey{"loss_fn.fp32_upcast", kNone, "the loss reads logits in fp32"},
    ForeignKey{"loss_fn.ignore_index", kRefused, "masked tokens are marked by the data",
               "leave it out", [](const Node& n) { return n.unset() || n.text == "-100"; }},
    ForeignKey{"step_scheduler.loss_average_window_steps", kNone, kReports},
    ForeignKey{"rng.ranked", kNone, kCounters},
    ForeignKey{"model.trust_remote_code", kNone, "no code of a model's folder is run"},
    ForeignKey{"model.torch_dtype",
               kIgnored,
               "is ignored: mixed_precision and distributed.mp_policy decide the element types",
               {},
               bf16},
    ForeignKey{"model.dtype",
               kIgnored,
               "is ignored: mixed_precision and distributed.mp_policy decide the element types",
               {},
               bf16},
    ForeignKey{"model.attn_implementation", kNone, kOwnKernels},
    ForeignKey{"model.backend.attn", kNone, kOwnKernels},
    ForeignKey{"model.backend.linear", kNone, kOwnKernels},
    ForeignKey{"model.backend.rms_norm", kNone, kOwnKernels},
    ForeignKey{"model.backend.rope_fusion", kNone, kOwnKernels},
    ForeignKey{"model.backend.experts", kNone, kOwnKernels},
    ForeignKey{"model.backend.dispatcher", kNone, kOwnTransport},
    ForeignKey{"model.backend.dispatcher_num_sms", kNone, kOwnTransport},
    ForeignKey{"model.backend.dispatcher_share_token_dispatcher", kNone, kOwnTransport},
    ForeignKey{"model.backend.enable_deepep", kNone, kOwnTransport},
    ForeignKey{"model.backend.enable_hf_state_dict_adapter", kNone,
               "checkpoints have Hugging Face's names where they are consolidated"},
    ForeignKey{"model.backend.enable_fsdp_optimizations", kNone, kOwnModel},
    ForeignKey{"model.backend.fake_gate_noise", kRefused, "noise on the router is not supported",
               "leave it out", off},
    ForeignKey{"model.backend.*",
               kIgnored,
               "is ignored: mtrain chooses its kernels by device, type and shape",
               {},
               off},
    ForeignKey{"model.load_base_model", kRefused,
               "is not read: model.from and model.init say where weights come from",
               "set model.init: random for new weights",
               [](const Node& n) { return n.unset() || on(n); }},
    ForeignKey{"model.cache_dir", kNone, "nothing is downloaded"},
    ForeignKey{"dist_env.init_method", kNone, "the launcher's variables say where ranks meet"},
    ForeignKey{"freeze_config.*", kRefused, "all weights are trained", kOtherTask},
    ForeignKey{"processor.*", kRefused, "models here have text alone", kOtherTask},
    ForeignKey{"recipe_args.*", kNone, "it chooses a trainer of AutoModel"},
    ForeignKey{"checkpoint.pretrained_checkpoint", kRefused,
               "checkpoints of Megatron and NeMo cannot be read",
               "to begin with weights write model: {from: FOLDER}, a Hugging Face folder, whose "
               "config.json has the sizes; to continue a run of mtrain write checkpoint.load",
               off},
    ForeignKey{"checkpoint.finetune", kRefused,
               "is not needed: a run with model.from begins at step 0, with a new optimizer",
               "leave it out", off},
    ForeignKey{"model.architectures", kNone, "model.architecture names the family"},
    ForeignKey{"model.use_cache", kNone, "training keeps no key-value cache"},
    ForeignKey{"model.output_hidden_states", kNone, "hidden states stay within the model"},
    ForeignKey{"model.force_hf", kNone, "mtrain has one model, its own"},
    ForeignKey{"model.use_liger_kernel", kNone, kOwnKernels},
    ForeignKey{"model.use_sdpa_patching", kNone, kOwnKernels},
    ForeignKey{"model.bos_token_id", kNone, "documents end with the tokenizer's end of text"},
    ForeignKey{"model.eos_token_id", kNone, "documents end with the tokenizer's end of text"},
    ForeignKey{"model.pad_token_id", kNone, "nothing is learned from padding"},
    ForeignKey{"dataset.padding", kNone, kNoPadding},
    ForeignKey{"dataset.pad_to_max_length", kNone, kNoPadding},
    ForeignKey{"dataset.fp8", kNone, kNoPadding},
    ForeignKey{"dataset.mask_reasoning_content", kRefused,
               "the text of a model's reasoning always counts as its answer", "leave it out", off},
    ForeignKey{"dataset.use_hf_chat_template", kRefused, "is not read",
               "write dataset.train.template: tokenizer", off},
    ForeignKey{"dataset.skip_invalid_samples", kRefused, "a row that cannot be used is an error",
               "remove such rows", off},
    ForeignKey{"dataset.tokenizer.add_bos_token", kNone, kOwnTokenizer},
    ForeignKey{"dataset.tokenizer.add_eos_token", kRefused, "rows end as the data end",
               "write dataset.train.end_of_text: true", off},
    ForeignKey{"validation_dataset.padding", kNone, kNoPadding},
    ForeignKey{"validation_dataset.pad_to_max_length", kNone, kNoPadding},
    ForeignKey{"validation_dataset.fp8", kNone, kNoPadding},
    ForeignKey{"validation_dataset.seq_len", kNone, "held-out text is cut as training text is"},
    ForeignKey{"validation_dataset.mask_reasoning_content", kRefused,
               "the text of a model's reasoning always counts as its answer", "leave it out", off},
    ForeignKey{"validation_dataset.use_hf_chat_template", kRefused, "is not read",
               "write dataset.validation.template: tokenizer", off},
    ForeignKey{"tokenizer.trust_remote_code", kNone, "no code of a tokenizer is run"},
    ForeignKey{"tokenizer.add_bos_token", kNone, kOwnTokenizer},
    ForeignKey{"dataset.shuffle_files", kNone, "samples are shuffled across files"},
    ForeignKey{"dataset.bos_token", kNone, "samples follow each other without gaps"},
    ForeignKey{"dataset.align_to_bos", kRefused, "samples begin where the one before ends",
               "leave it out", off},
    ForeignKey{"validation_dataset.shuffle_files", kNone, "held-out text keeps its order"},
    ForeignKey{"validation_dataset.bos_token", kNone, "samples follow each other without gaps"},
    ForeignKey{"validation_dataset.align_to_bos", kRefused,
               "samples begin where the one before ends", "leave it out", off},
    ForeignKey{"dataset.index_mapping_dir", kNone, "the order of the samples is computed"},
    ForeignKey{"dataset.splits_to_build", kRefused, "training reads the first part of the split",
               "write splits_to_build: train, and the share as the first number of split",
               [](const Node& value) { return value.text == "train"; }},
    ForeignKey{"dataset.tokenizer.trust_remote_code", kNone, "no code of a tokenizer is run"},
    ForeignKey{"validation_dataset.index_mapping_dir", kNone,
               "the order of the samples is computed"},
    ForeignKey{"validation_dataset.splits_to_build", kRefused,
               "validation reads the second part of the split",
               "write splits_to_build: validation, and the share as the second number of split",
               [](const Node& value) { return value.text == "validation"; }},
    ForeignKey{"validation_dataset.seq_length", kNone, "held-out text is cut as training text is"},
    ForeignKey{"validation_dataset.num_val_samples", kIgnored,
               "is ignored: validation.steps says how many"},
    ForeignKey{"validation_dataset.tokenizer.*", kNone, "the tokenizer is that of the model"},
    ForeignKey{"packed_sequence.num_proc", kNone, kPackedByLength},
    ForeignKey{"dataset.num_proc", kNone, kPackedByLength},
    ForeignKey{"packed_sequence.prepacked", kRefused, "packs are always made from documents",
               "leave it out, and tokenize the documents with `mtrain data build`", off},
    ForeignKey{"packed_sequence.split_across_pack",
               kIgnored,
               "is ignored: a document that is longer than a pack is split, or left out by "
               "packed_sequence.drop_long_samples",
               {},
               on},
    ForeignKey{"optimizer.foreach", kNone, "one kernel updates each tensor"},
    ForeignKey{"optimizer.fused", kNone, "one kernel updates each tensor"},
    ForeignKey{"optimizer.capturable", kNone, "one kernel updates each tensor"},
    ForeignKey{"optimizer.master_weight_bits", kNone, "master weights are fp32"},
    ForeignKey{"optimizer.compress_state_dict", kNone, "moments are saved in their own type"},
    ForeignKey{"optimizer.bias_correction", kRefused, "the moments' bias is always corrected",
               "leave it out", [](const Node& n) { return !off(n); }},
    ForeignKey{"optimizer.store_param_remainders", kNone,
               "optimizer.master_weights keeps full fp32 weights"},
    kept("optimizer.exp_avg_dtype"),
    kept("optimizer.exp_avg_sq_dtype"),
    kept("optimizer.main_grads_dtype"),
    ForeignKey{"optimizer.main_params_dtype", kRefused, "master weights are fp32",
               "leave it out; optimizer.master_weights: false keeps none", fp32},
    ForeignKey{"optimizer.use_precision_aware_optimizer", kNone,
               "optimizer.moments and optimizer.master_weights decide the types"},
    ForeignKey{"optimizer.use_triton", kNone, kOwnKernels},
    ForeignKey{"optimizer.flatten", kNone, "matrices have two dimensions"},
    kept_of_muon("optimizer.muon_split_qkv",
                 "Muon takes q, k and v as three matrices, as it takes gate and up as two",
                 "leave it out"),
    kept_of_muon("optimizer.muon_coefficient_type", "mtrain has no names for lists of coefficients",
                 "write optimizer.muon.coefficients; docs/recipes.md has those of quintic"),
    ForeignKey{"optimizer.muon_fp32_matmul_prec", kNone,
               "optimizer.muon.ns_dtype decides the type of the iteration's GEMMs"},
    kept_of_muon("optimizer.muon_scalar_optimizer", "AdamW updates what Muon does not",
                 "leave it out"),
    ForeignKey{"checkpoint.single_rank_consolidation", kNone, "a checkpoint is complete already"},
    ForeignKey{"checkpoint.staging_dir", kNone, "files are renamed when they are complete"},
    ForeignKey{"checkpoint.wait_for_staging", kNone, "files are renamed when they are complete"},
    ForeignKey{"checkpoint.consolidation_timeout_minutes", kNone,
               "a checkpoint is complete already"},
    ForeignKey{"checkpoint.dequantize_base_checkpoint", kNone, "weights are not quantized"},
    ForeignKey{"checkpoint.best_metric_key", kNone,
               "checkpoint.keep_best ranks by the validation loss, the one metric there is"},
    ForeignKey{"checkpoint.model_cache_dir", kNone, "nothing is downloaded"},
    ForeignKey{"checkpoint.model_repo_id", kNone, "nothing is downloaded"},
    ForeignKey{"checkpoint.v4_compatible", kNone, "weights are saved as safetensors"},
    ForeignKey{"checkpoint.diffusers_compatible", kNone, "weights are saved as safetensors"},
    ForeignKey{"checkpoint.cpu_offload", kNone, "tensors are written through a small buffer"},
    ForeignKey{"checkpoint.allow_legacy_pickle_restore", kNone, "no pickle is read"},
    // Megatron-Bridge's sections, and Megatron's flags.
    kept("scheduler.lr_warmup_fraction"),
    kept("scheduler.start_weight_decay"),
    kept("scheduler.end_weight_decay"),
    ForeignKey{"scheduler.weight_decay_incr_style", kRefused,
               "a weight decay that grows is not supported", "write constant",
               [](const Node& n) { return n.unset() || n.text == "constant"; }},
    ForeignKey{"scheduler.override_opt_param_scheduler", kNone,
               "the recipe's schedule always wins over that of a checkpoint"},
    ForeignKey{"scheduler.use_checkpoint_opt_param_scheduler", kRefused,
               "the recipe's schedule wins over that of a checkpoint",
               "leave it out, and write the schedule of the checkpoint's run", off},
    kept("tokenizer.vocab_size"),
    kept("model.pipeline_dtype"),
    ForeignKey{"model.calculate_per_token_loss", kNone, kTokenMean},
    ForeignKey{"ddp.calculate_per_token_loss", kNone, kTokenMean},
    ForeignKey{"model.attention_softmax_in_fp32", kNone,
               "the softmax of attention is always computed in fp32"},
    ForeignKey{"model.apply_query_key_layer_scaling", kNone,
               "the scores of attention are computed in fp32, and need no scaling"},
    ForeignKey{"model.moe_enable_deepep", kNone, kOwnTransport},
    ForeignKey{"model.cuda_graph_scope",
               kIgnored,
               "is ignored: a graph has a micro-batch's forward and backward, or with "
               "full_iteration those of a step",
               {},
               [](const Node& n) { return nothing(n) || n.text == "full"; }},
    ForeignKey{"model.cuda_graph_warmup_steps", kNone,
               "mtrain decides in which step a graph is captured"},
    ForeignKey{"rng.te_rng_tracker", kNone, kCounters},
    ForeignKey{"model.use_te_rng_tracker", kNone, kCounters},
    ForeignKey{"model.fine_grained_activation_offloading", kRefused,
               "activations cannot be kept in host memory", "set recompute.granularity", off},
    ForeignKey{"model.offload_modules", kRefused, "activations cannot be kept in host memory",
               "set recompute.granularity and recompute.modules", nothing},
    ForeignKey{"model.cpu_offloading", kRefused, "activations cannot be kept in host memory",
               "set recompute.granularity", off},
    ForeignKey{"comm_overlap.tp_comm_bootstrap_backend", kNone,
               "there are no user buffers to be set up"},
    ForeignKey{"model.tp_comm_bootstrap_backend", kNone, "there are no user buffers to be set up"},
    ForeignKey{"comm_overlap.data_parallel_size", kNone, "it follows from the number of ranks"},
    ForeignKey{"rerun_state_machine.*", kNone, "debug.check_nan stops at what is not finite"},
    ForeignKey{"ft.*", kNone, "mtrain-launch --max_restarts starts a job again"},
    ForeignKey{"straggler.*", kNone, kReports},
    ForeignKey{"nvrx_straggler.*", kNone, kReports},
    ForeignKey{"inprocess_restart.*", kNone, "mtrain-launch --max_restarts starts a job again"},
    ForeignKey{"profiling.*", kNone, "--profile and --trace show where time goes"},
    ForeignKey{"tensor_inspect.*", kNone, "debug.check_nan names tensors that are not finite"},
    ForeignKey{"optimizer_config_override_provider.*", kNone,
               "biases and norms are left out of weight decay"},
    ForeignKey{"logger.timing_log_level", kNone, kReports},
    ForeignKey{"logger.log_throughput", kNone, kReports},
    ForeignKey{"logger.log_timers_to_tensorboard", kNone, kReports},
    ForeignKey{"logger.wandb_project", kNone, kReports},
    ForeignKey{"logger.wandb_entity", kNone, kReports},
    ForeignKey{"logger.wandb_exp_name", kNone, kReports},
    ForeignKey{"logger.mlflow_experiment", kNone, kReports},
    ForeignKey{"train.manual_gc", kNone, "there is no garbage collector"},
    ForeignKey{"train.manual_gc_interval", kNone, "there is no garbage collector"},
    ForeignKey{"train.manual_gc_eval", kNone, "there is no garbage collector"},
    ForeignKey{"train.exit_signal_handler", kNone,
               "SIGTERM and SIGINT end the run, which saves as checkpoint.at_end says"},
    ForeignKey{"train.empty_unused_memory_level", kNone, "memory is reused in stream order"},
    ForeignKey{"train.train_sync_interval", kNone, "the host waits only for a value it needs"},
    ForeignKey{"model.transformer_impl", kNone, kOwnKernels},
    ForeignKey{"model.attention_backend", kNone, kOwnKernels},
    ForeignKey{"model.cross_entropy_loss_fusion", kNone, "cross entropy is always fused"},
    ForeignKey{"model.cross_entropy_fusion_impl", kNone, "cross entropy is always fused"},
    ForeignKey{"model.gradient_accumulation_fusion", kNone,
               "weight gradients are always added in the GEMM"},
    ForeignKey{"model.apply_rope_fusion", kNone, kOwnKernels},
    ForeignKey{"model.bias_activation_fusion", kNone, kOwnKernels},
    ForeignKey{"model.bias_dropout_fusion", kNone, kOwnKernels},
    ForeignKey{"model.masked_softmax_fusion", kNone, kOwnKernels},
    ForeignKey{"model.persist_layer_norm", kNone, kOwnKernels},
    ForeignKey{"model.deallocate_pipeline_outputs", kNone, "a message is freed once it is sent"},
    ForeignKey{"model.batch_p2p_sync", kNone, "events order messages; the host does not wait"},
    ForeignKey{"model.use_cpu_initialization", kNone,
               "initial weights do not depend on the device"},
    ForeignKey{"model.perform_initialization", kNone, "model.init says where weights come from"},
    ForeignKey{"model.moe_grouped_gemm", kNone, "experts are computed in groups"},
    ForeignKey{"model.moe_permute_fusion", kNone, kOwnKernels},
    ForeignKey{"model.moe_router_fusion", kNone, kOwnKernels},
    ForeignKey{"model.moe_use_legacy_grouped_gemm", kNone, kOwnKernels},
    ForeignKey{"model.moe_router_padding_for_fp8", kNone, kAnyRows},
    ForeignKey{"model.moe_router_padding_for_quantization", kNone, kAnyRows},
    ForeignKey{"model.moe_flex_dispatcher_backend", kNone, kOwnTransport},
    ForeignKey{"model.moe_deepep_num_sms", kNone, kOwnTransport},
    ForeignKey{"model.moe_hybridep_num_sms", kNone, kOwnTransport},
    ForeignKey{"model.high_priority_a2a_comm_stream", kNone, kStreams},
    ForeignKey{"comm_overlap.high_priority_a2a_comm_stream", kNone, kStreams},
    ForeignKey{"model.moe_input_jitter_eps", kRefused,
               "noise on the router's input is not supported", "leave it out", off},
    ForeignKey{"model.moe_apply_probs_on_input", kRefused,
               "weights of the router multiply the experts' activation", "leave it out", off},
    ForeignKey{"model.moe_extended_tp", kRefused,
               "experts are not divided over the ranks of ep and tp together",
               "leave it out, and set ep_size", off},
    ForeignKey{"model.moe_latent_size", kRefused, "experts of a latent space are not supported",
               "leave it out", off},
    ForeignKey{"model.moe_layer_recompute", kRefused, "is not read",
               "write recompute: {granularity: selective, modules: [moe]}", off},
    ForeignKey{"model.moe_per_layer_logging", kNone, "metrics.jsonl has figures over all layers"},
    ForeignKey{.path = "model.group_query_attention",
               .severity = kNone,
               .reason = "model.num_query_groups decides",
               .kept = true},
    ForeignKey{"model.make_vocab_size_divisible_by", kNone,
               "the vocabulary is padded to a multiple of 128 x tp_size"},
    ForeignKey{"model.should_pad_vocab", kNone,
               "the vocabulary is padded to a multiple of 128 x tp_size"},
    ForeignKey{"mixed_precision.pipeline_dtype", kNone, "distributed.pipeline.dtype decides"},
    ForeignKey{"mixed_precision.autocast_dtype", kNone, "there is no autocast"},
    ForeignKey{"mixed_precision.autocast_enabled",
               kIgnored,
               "is ignored: there is no autocast, and mixed_precision.name decides the types",
               {},
               off},
    ForeignKey{"dist.align_grad_reduce", kNone, "buckets are reduced when they are full"},
    ForeignKey{"dist.use_gloo_process_groups", kNone, "comm.backend decides"},
    ForeignKey{"dist.lazy_init", kNone, "groups are made when they are first used"},
    ForeignKey{"dist.local_rank", kNone, "the launcher says it"},
    ForeignKey{"checkpoint.ckpt_format", kNone, "weights are saved as safetensors"},
    ForeignKey{"checkpoint.fully_parallel_save", kNone,
               "rank 0 writes what it gathers piece by piece"},
    ForeignKey{"checkpoint.fully_parallel_load", kNone, "every rank reads what it owns"},
    ForeignKey{"checkpoint.async_strategy", kNone, "a thread of each rank writes"},
    ForeignKey{"checkpoint.use_persistent_ckpt_worker", kNone, "a thread of each rank writes"},
    ForeignKey{"checkpoint.dist_ckpt_strictness", kNone, "every tensor must be there"},
    ForeignKey{"ddp.gradient_reduce_div_fusion", kNone,
               "gradients are scaled once, before they are reduced"},
    ForeignKey{"ddp.pad_buckets_for_high_nccl_busbw", kNone, kOwnKernels},
    ForeignKey{"ddp.num_distributed_optimizer_instances",
               kIgnored,
               "is ignored: distributed.dp_replicate_size shards within groups (fsdp2)",
               {},
               [](const Node& n) { return n.unset() || n.text == "1"; }},
    ForeignKey{"dataset.num_workers", kNone, kOwnLoader},
    ForeignKey{"dataset.num_dataset_builder_threads", kNone,
               "the order of the samples is computed"},
    ForeignKey{"dataset.data_sharding", kNone, kOwnLoader},
    ForeignKey{"dataset.dataloader_type", kNone, kOwnLoader},
    ForeignKey{"dataset.pin_memory", kNone, kOwnLoader},
    ForeignKey{"dataset.persistent_workers", kNone, kOwnLoader},
    ForeignKey{"dataset.skip_getting_attention_mask_from_dataset", kNone,
               "attention is causal; in packs it stays within a document"},
    ForeignKey{"use_mcore_models", kNone, "mtrain has one model, its own"},
    ForeignKey{"use_flash_attn", kNone, "attention never writes the scores"},
    ForeignKey{"mock_data", kRefused, "there is no made-up data",
               "scripts/quickstart.sh makes a small corpus; `mtrain data build` tokenizes text"},
};

// Whether `pattern`, the path of a row, which may end in ".*", covers `path`.
bool covers(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with(".*")) return pattern == path;
  pattern.remove_suffix(2);
  return path.starts_with(pattern) &&
         (path.size() == pattern.size() || path[pattern.size()] == '.');
}

}  // namespace

const ForeignKey* find_foreign_key(std::string_view path) {
  const auto row = std::ranges::find_if(
      kForeignKeys, [&](const ForeignKey& key) { return covers(key.path, path); });
  return row == std::end(kForeignKeys) ? nullptr : &*row;
}

const ForeignKey* find_foreign_flag(std::string_view word) {
  for (const std::string_view prefix : {"no_", "disable_"})
    if (word.starts_with(prefix)) {
      // If a flag has no effect in mtrain, neither has its opposite.
      const ForeignKey* plain = find_foreign_flag(word.substr(prefix.size()));
      return plain && plain->severity == Severity::resolved && !plain->kept ? plain : nullptr;
    }
  const auto row = std::ranges::find_if(kForeignKeys, [&](const ForeignKey& key) {
    return key.path.substr(key.path.rfind('.') + 1) == word;
  });
  return row == std::end(kForeignKeys) ? nullptr : &*row;
}

}  // namespace mtrain::recipe
