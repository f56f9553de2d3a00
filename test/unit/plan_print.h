// Prints the parts of a plan that a run acts on as "member=value", and lists their members.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/core.h>

#include "plan/run_plan.h"

namespace plan_print {

using namespace mtrain;
using namespace mtrain::plan;

// Names every member of a struct, in order. A struct that gains one does not compile until it is
// named here, too.
#define MEMBERS(Type, ...)                  \
  void add(const Type& o) {                 \
    const auto& [__VA_ARGS__] = o;          \
    add_members(#__VA_ARGS__, __VA_ARGS__); \
  }                                         \
  static inline const bool MT_JOIN(list_, __LINE__) = list_members(#Type, #__VA_ARGS__);
#define MT_JOIN(a, b) MT_JOIN_NOW(a, b)
#define MT_JOIN_NOW(a, b) a##b

class Print {
 public:
  explicit Print(const RunPlan& p) {
    all(p.layout, p.overlap.tp_gemm_overlap.values, p.overlap.cp_overlap,
        p.overlap.shared_expert_overlap, p.overlap.moe_dispatch_chunks, p.graphs.on, p.graphs.first,
        p.graphs.end, p.graphs.communicates, p.graphs.full_step, p.schedule_shape, p.pipeline,
        p.data_parallel, p.tensor, p.context, p.experts, p.model, p.recompute, p.compute_dtype,
        p.logits_dtype, p.logits_rows, p.head_in_fp32, p.fp8, p.sample_length, p.optimizer,
        p.lr_schedule, p.loss_scale, p.train, p.validation, p.checkpoint, p.folders, p.dataset,
        p.device, p.comm, p.debug);
  }
  std::string text;

  // Returns {struct, member} for every member that is printed.
  using Members = std::vector<std::pair<std::string, std::string>>;
  static const Members& members() { return listed(); }

 private:
  static Members& listed() {
    static Members list;
    return list;
  }
  static bool list_members(const char* type, std::string_view names) {
    for (const std::string& name : split(names)) listed().emplace_back(type, name);
    return true;
  }
  static std::vector<std::string> split(std::string_view names) {  // "a, b"
    std::vector<std::string> list;
    for (size_t end = 0; end != names.npos;) {
      end = names.find(", ");
      list.emplace_back(names.substr(0, end));
      if (end != names.npos) names.remove_prefix(end + 2);
    }
    return list;
  }

  template <class... T>
  void all(const T&... values) {
    (add(values), ...);
  }
  template <class... T>
  void add_members(std::string_view names, const T&... values) {
    const std::vector<std::string> list = split(names);
    size_t i = 0;
    ((text += list.at(i++) + "=", add(values)), ...);
  }
  template <class T>
  void add(const T& value) {
    if constexpr (std::is_enum_v<T>)
      text += fmt::format("{} ", int(value));
    else
      text += fmt::format("{} ", value);
  }
  template <class T>
  void add(const std::optional<T>& value) {
    value ? add(*value) : add(std::string("none"));
  }
  template <class T>
  void add(const std::vector<T>& values) {
    for (const T& value : values) add(value);
    text += "; ";
  }
  template <class T, size_t N>
  void add(const std::array<T, N>& values) {
    for (const T& value : values) add(value);
  }
  template <class... T>
  void add(const std::variant<T...>& value) {
    std::visit([&](const auto& v) { add(v); }, value);
  }
  void add(const std::map<std::string, std::string>& values) {
    for (const auto& [key, value] : values) all(key, value);
  }
  void add(const std::shared_ptr<const schedule::Schedule>& table) { add(table != nullptr); }

  MEMBERS(GemmOverlap, method, splits, aggregate, sm_margin)
  MEMBERS(Layout, world, tp, pp, cp, ep, dp, dp_replicate, dp_shard, expert_tp, ep_shard,
          stages_per_rank, stages, micro_batch, micro_batches, flushes, layers_of_stage,
          predicts_apart)
  MEMBERS(ScheduleShape, schedule, pp, stages_per_rank, micro_batches, group, moe_overlap, table)
  MEMBERS(schedule::PartCost, forward, backward, weights)
  MEMBERS(schedule::PassCosts, attention, mlp, route, experts, shared, exchange, exchange_latency,
          head, host_reads_rows, shared_overlaps)
  MEMBERS(PipelineOptions, overlap, one_by_one, dtype, compute_dtype, paired_gradient,
          delayed_layers, delay_mlp_wgrads, pair_costs, split_wgrad, head_shares_table,
          max_gathered, deferred_outputs)
  MEMBERS(ReduceOptions, dtype, average)
  MEMBERS(GatheredParamsOptions, overlap, during_update, together, registered, symmetric)
  MEMBERS(ShardedParamsOptions, reshard_after_forward, reshard_experts, forward_prefetch,
          backward_prefetch, passes_pair, registered, symmetric)
  MEMBERS(DataParallelOptions, shards, reduce, overlap_grad_reduce, bucket_size, defer_reduce,
          gather_as, gather_updated, gather)
  MEMBERS(TensorOptions, sequence_parallel)
  MEMBERS(ExpertOptions, dispatcher, pad_to_capacity, pattern)
  MEMBERS(ContextOptions, methods, levels)
  MEMBERS(RouterForm, score, over_chosen, normalize, scale, groups, best_groups, group_experts)
  MEMBERS(RouterLossCoeffs, batch, sample, global, z)
  MEMBERS(spec::Experts, count, per_token, ffn, shared_ffn, shared_gate, activation, form, logits,
          loss_coeffs, bias, bias_rate, capacity_factor, drops_lightest)
  MEMBERS(spec::DenseMlp, ffn, activation, bias)
  MEMBERS(spec::RopeScaling, type, factor, low_freq_factor, high_freq_factor, original_positions,
          beta_fast, beta_slow, truncate, attention_factor, lane_factors, valid_positions)
  MEMBERS(spec::Rotary, dims, base, scaling)
  MEMBERS(spec::LatentProjections, q_rank, kv_rank, rope_dim, norm_eps)
  MEMBERS(spec::GroupedAttention, heads, kv_heads, head_dim, window, rotary, head_norm, score_scale,
          score_cap, qkv_bias, proj_bias, value_head_dim, latent)
  MEMBERS(spec::LayerSpec, input_norms, output_norms, attention, mlp)
  MEMBERS(spec::Lora, dim, expert_dim, alpha, dropout, layers)
  MEMBERS(spec::NormSpec, kind, eps, plus_one, bias)
  MEMBERS(spec::ModelSpec, hidden, vocab, max_positions, learned_positions, norm, layers,
          tied_embeddings, embedding_scale, residual_scale, logit_scale, logit_cap, hidden_dropout,
          embedding_dropout, init_std, lora, mtp)
  MEMBERS(spec::TokenPrediction, depths, repeated, loss_factor)
  MEMBERS(RecomputeOptions, attention_core, norms, mlp, latent_up, experts, experts_act,
          shared_expert, group, layers, keeps_router, cheap)
  MEMBERS(MuonOptions, on, momentum, nesterov, ns_steps, coefficients, eps, scale, scale_factor,
          bf16, per_shard, others_lr_scale)
  MEMBERS(OptimizerGroup, match, lr_over_peak, lr_scale, weight_decay, adamw)
  MEMBERS(OptimizerOptions, beta1, beta2, eps, weight_decay, decoupled_decay, clip_grad,
          master_weights, stochastic_rounding, moments, muon, groups)
  MEMBERS(LrScheduleOptions, decay, lr, min_lr, init_lr, warmup_steps, decay_begin, decay_end)
  MEMBERS(LossScaleOptions, on, dynamic, initial, min, window, hysteresis)
  MEMBERS(Fp8Options, on, begin, end, formats, delayed, margin, history, most_recent, rows_multiple)
  MEMBERS(LinearFormats, input, weight, gradient)
  MEMBERS(QuantFormat, element, blocks)
  MEMBERS(TrainOptions, epochs, epoch_samples, steps, global_batch_size, seed, log_every,
          time_every, check_loss, check_grads, spikes, find_stragglers, grads_per_micro_batch,
          exit_interval, exit_minutes)
  MEMBERS(SpikeOptions, skip, factor)
  MEMBERS(ValidationOptions, every_steps, steps)
  MEMBERS(LocalCopyOptions, dir, every_steps, replicas, max_bytes, replica_bytes_per_s)
  MEMBERS(CheckpointOptions, every_steps, keep, keep_every, keep_best, at_end, local, consolidated,
          io_threads, stop_on_error, async, skip_when_busy)
  MEMBERS(FolderOptions, run_dir, checkpoint_dir, tensorboard_dir, load, load_path, load_or_start,
          weights_from, ignore_keys)
  MEMBERS(DocumentShare, begin, end)
  MEMBERS(DatasetOptions::Blend, prefixes, weights, documents)
  MEMBERS(TokenizerOptions, path, model_vocab, unknown, assumed)
  MEMBERS(DatasetOptions::Mock, samples, vocab_size)
  MEMBERS(DatasetOptions, train, validation, rows, mock_train, mock_validation, seq_length,
          packed_size, drop_long, packing, max_packs, seed, tokenizer)
  MEMBERS(DevicePlan, kind, threads, norm_sm_margin, gemm_sm_margin, dependent_launch,
          stream_sanitizer, compute_slowdown, deterministic, own_attention, own_grouped_gemm, nvtx,
          environment)
  MEMBERS(CommOptions, backend, timeout_s, link_latency_us, link_gbps, link_streams)
  MEMBERS(FaultOptions, kind, phase, moment, launch, of_save, rank, step, factor)
  MEMBERS(StepRange, first, last)
  MEMBERS(DebugOptions, trace, trace_steps, faults)
};
#undef MEMBERS
#undef MT_JOIN
#undef MT_JOIN_NOW

}  // namespace plan_print
