#include "plan/options/recipe_options.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/hub_cache.h"
#include "plan/fp8_rows.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

namespace {

FolderOptions::Load load_from(const recipe::CheckpointConfig& c) {
  using Load = FolderOptions::Load;
  if (!c.load) return Load::none;
  return *c.load == "latest" ? Load::latest : Load::path;
}

CheckpointOptions::Async async_saves(recipe::AsyncSave asked) {
  using Async = CheckpointOptions::Async;
  switch (asked) {
    case recipe::AsyncSave::automatic: return Async::automatic;
    case recipe::AsyncSave::yes: return Async::on;
    case recipe::AsyncSave::no: return Async::off;
  }
  throw BugError("checkpoint.async");
}

// `save` may be followed by a moment of the save: "save:rename".
constexpr std::string_view kSaveMoment = "save:";

FaultOptions::Moment fault_moment(const recipe::FaultConfig& fault) {
  using Moment = FaultOptions::Moment;
  if (!fault.at) return Moment::of_phase;
  if (*fault.at == "save_consolidated") return Moment::save_consolidated;
  return *fault.at == "save" || fault.at->starts_with(kSaveMoment) ? Moment::save : Moment::launch;
}

CheckpointOptions::Consolidated consolidated(const recipe::CheckpointConfig& c) {
  using Consolidated = CheckpointOptions::Consolidated;
  if (!c.enabled) return Consolidated::none;
  switch (c.save_consolidated) {
    case recipe::SaveConsolidated::no: return Consolidated::none;
    case recipe::SaveConsolidated::at_end: return Consolidated::at_end;
    case recipe::SaveConsolidated::every: return Consolidated::every;
  }
  throw BugError("checkpoint.save_consolidated");
}

LrDecay lr_decay(const recipe::LrSchedulerConfig& c) {
  switch (c.style) {
    case recipe::LrStyle::constant: return LrDecay::constant;
    case recipe::LrStyle::linear: return LrDecay::linear;
    case recipe::LrStyle::cosine: return LrDecay::cosine;
    case recipe::LrStyle::wsd: return c.wsd_decay_style;
  }
  throw BugError("lr_scheduler.style");
}

// Blocks lie along a GEMM's sum. Those of inputs and gradients, and those of weights.
std::pair<ScaleBlocks, ScaleBlocks> scale_blocks(recipe::Fp8Recipe r) {
  switch (r) {
    case recipe::Fp8Recipe::tensorwise:
    case recipe::Fp8Recipe::delayed: return {ScaleBlocks::none, ScaleBlocks::none};
    case recipe::Fp8Recipe::blockwise: return {ScaleBlocks::rows_128, ScaleBlocks::square_128};
    case recipe::Fp8Recipe::mxfp8: return {ScaleBlocks::rows_32, ScaleBlocks::rows_32};
  }
  throw BugError("fp8_recipe");
}

}  // namespace

RecomputeOptions recompute_options(const recipe::RecomputeConfig& r, int64_t layers) {
  using Module = recipe::RecomputeModule;
  if (r.granularity == recipe::RecomputeGranularity::selective)
    return {.attention_core = r.selects(Module::core_attn),
            .norms = r.selects(Module::layernorm),
            .mlp = r.selects(Module::mlp),
            .latent_up = r.selects(Module::mla_up_proj),
            .experts = r.selects(Module::moe),
            .experts_act = r.selects(Module::moe_act),
            .shared_expert = r.selects(Module::shared_experts)};
  if (r.granularity != recipe::RecomputeGranularity::full) return {};
  const int64_t n = r.num_layers.value_or(1);
  const bool block = r.method == recipe::RecomputeMethod::block;
  return {.group = block ? 1 : n, .layers = block && r.num_layers ? n : layers};
}

ContextOptions context_options(const Recipe& r) {
  return {.methods = r.distributed.cp_comm_type,
          .levels = r.distributed.hierarchical_context_parallel_sizes};
}

ExpertOptions expert_options(const Recipe& r) {
  return {.dispatcher = r.model.moe.token_dispatcher,
          .pad_to_capacity = r.model.moe.pad_expert_input_to_capacity && r.distributed.ep_size > 1,
          .pattern = r.model.moe.num_experts > 0 ? r.debug.route.value_or(RoutePattern::none)
                                                 : RoutePattern::none};
}

namespace {

MuonOptions::Scale muon_scale(recipe::MuonScale scale) {
  switch (scale) {
    case recipe::MuonScale::original: return MuonOptions::Scale::original;
    case recipe::MuonScale::match_rms_adamw: return MuonOptions::Scale::match_rms_adamw;
    case recipe::MuonScale::spectral: return MuonOptions::Scale::spectral;
    case recipe::MuonScale::unit_rms_norm: return MuonOptions::Scale::unit_rms_norm;
  }
  throw BugError("a rule of Muon's scale");
}

MuonOptions muon_options(const recipe::OptimizerConfig& o) {
  const recipe::MuonConfig& m = o.muon;
  return {.on = o.name == recipe::OptimizerName::muon,
          .momentum = m.momentum,
          .nesterov = m.nesterov,
          .ns_steps = m.ns_steps,
          .coefficients = m.coefficients,
          .eps = m.eps,
          .scale = muon_scale(m.scale_mode),
          .scale_factor = m.scale_factor,
          .bf16 = m.ns_dtype == recipe::MuonGemm::bf16,
          .per_shard = m.tp_mode == recipe::MuonTpMode::blockwise,
          .others_lr_scale = m.adamw_lr.value_or(o.lr) / o.lr};
}

std::vector<OptimizerGroup> optimizer_groups(const recipe::OptimizerConfig& o) {
  std::vector<OptimizerGroup> groups;
  for (const recipe::OptimizerGroup& g : o.groups)
    groups.push_back({.match = g.match,
                      .lr_over_peak = g.lr ? std::optional(*g.lr / o.lr) : std::nullopt,
                      .lr_scale = g.lr_scale,
                      .weight_decay = g.weight_decay,
                      .adamw = g.name == recipe::OptimizerName::adamw});
  return groups;
}

}  // namespace

OptimizerOptions optimizer_options(const recipe::OptimizerConfig& o) {
  return {.beta1 = o.betas[0],
          .beta2 = o.betas[1],
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .decoupled_decay = o.decoupled_weight_decay,
          .clip_grad = o.clip_grad,
          .master_weights = o.master_weights,
          .stochastic_rounding = o.rounds_stochastically(),
          .moments = o.moments == recipe::MomentType::bf16 ? DType::bf16 : DType::f32,
          .muon = muon_options(o),
          .groups = optimizer_groups(o)};
}

LossScaleOptions loss_scale_options(const recipe::MixedPrecisionConfig& p) {
  return {.on = p.name == recipe::Precision::fp16_mixed,
          .dynamic = !p.loss_scale,
          .initial = p.loss_scale.value_or(p.initial_loss_scale),
          .min = p.min_loss_scale,
          .window = p.loss_scale_window,
          .hysteresis = p.hysteresis};
}

LrScheduleOptions lr_schedule_options(const recipe::OptimizerConfig& optimizer,
                                      const recipe::LrSchedulerConfig& c, int64_t train_steps) {
  const int64_t end = c.decay_steps.value_or(train_steps);
  const int64_t begin = c.style == recipe::LrStyle::wsd
                            ? std::max(c.warmup_steps, end - c.wsd_decay_steps.value_or(0))
                            : c.warmup_steps;
  return {.decay = lr_decay(c),
          .lr = optimizer.lr,
          .min_lr = c.min_lr,
          .init_lr = c.init_lr,
          .warmup_steps = c.warmup_steps,
          .decay_begin = begin,
          .decay_end = end};
}

LinearFormats linear_formats(const recipe::MixedPrecisionConfig& p) {
  const auto [rows, weight] = scale_blocks(p.fp8_recipe);
  const bool hybrid = p.fp8 == recipe::Fp8Format::hybrid;
  return {.input = {DType::f8e4m3, rows},
          .weight = {DType::f8e4m3, weight},
          .gradient = {hybrid ? DType::f8e5m2 : DType::f8e4m3, rows}};
}

// The further layers, those of multi-token prediction, compute like the model's last one.
Fp8Options fp8_options(const Recipe& r, int64_t layers, int64_t further) {
  const auto& p = r.mixed_precision;
  const bool some = p.first_last_layers_bf16;
  const int64_t at_start = some ? p.num_layers_at_start_in_bf16 : 0,
                at_end = some ? p.num_layers_at_end_in_bf16 : 0;
  const bool last = at_end == 0 && at_start < layers;
  return {.on = p.fp8 != recipe::Fp8Format::none,
          .begin = at_start,
          .end = layers - at_end + (last ? further : 0),
          .formats = linear_formats(p),
          .delayed = p.fp8_recipe == recipe::Fp8Recipe::delayed,
          .margin = p.fp8_margin,
          .history = p.fp8_amax_history_len,
          .most_recent = p.fp8_amax_compute_algo == recipe::Fp8AmaxChoice::most_recent,
          .rows_multiple = fp8_rows_multiple(r)};
}

TrainOptions train_options(const Recipe& r) {
  return {.epochs = r.train.epochs,
          .epoch_samples = r.epoch_samples,
          .steps = r.steps_known() ? r.train.steps : 0,
          .global_batch_size = r.train.global_batch_size,
          .seed = r.train.seed,
          .log_every = r.train.log_every,
          .time_every = r.train.time_every,
          .check_loss = r.debug.check_nan,
          .check_grads = r.debug.check_nan && r.ddp.check_for_nan_in_grad,
          .spikes = {.skip = r.train.on_spike == recipe::OnSpike::skip,
                     .factor = r.train.spike_factor.value_or(0)},
          // Ranks of expert parallelism have as much work as tokens choose their experts.
          .find_stragglers =
              r.train.straggler != recipe::OnStraggler::off && r.distributed.ep_size <= 1,
          .grads_per_micro_batch =
              r.distributed.pp_size > 1 && r.distributed.pipeline.scale_grads_in_schedule,
          .exit_interval = r.train.exit_interval,
          .exit_minutes = r.train.exit_duration_in_mins};
}

ValidationOptions validation_options(const Recipe& r) {
  return {.every_steps = r.validation.every_steps, .steps = r.validation.steps};
}

LocalCopyOptions local_copies(const recipe::CheckpointConfig& c) {
  constexpr double kGib = 1 << 30, kBytesPerGbit = 1e9 / 8;
  if (!c.enabled) return {};
  return {.dir = c.local.dir,
          .every_steps = c.local.every_steps,
          .replicas = int(c.local.replicas),
          .max_bytes = int64_t(c.local.max_gib * kGib),
          .replica_bytes_per_s = c.local.replica_gbps * kBytesPerGbit};
}

CheckpointOptions checkpoint_options(const Recipe& r) {
  return {.every_steps = r.checkpoint.enabled ? r.checkpoint.every_steps : 0,
          .keep = r.checkpoint.keep,
          .keep_every = r.checkpoint.keep_every,
          .keep_best = r.checkpoint.enabled ? r.checkpoint.keep_best : 0,
          .at_end = r.checkpoint.enabled && r.checkpoint.at_end,
          .local = local_copies(r.checkpoint),
          .consolidated = consolidated(r.checkpoint),
          .io_threads = r.checkpoint.io_threads,
          .stop_on_error = r.checkpoint.on_error == recipe::SaveErrors::stop,
          .async = async_saves(r.checkpoint.async),
          .skip_when_busy = r.checkpoint.when_busy == recipe::BusySave::skip};
}

// A printed recipe has no folder that depends on run_dir, which another run may change.
std::string tensorboard_dir(const recipe::TrainConfig& train) {
  const std::string& dir = train.tensorboard_dir;
  if (dir == recipe::kNoTensorboard || dir == "false") return "";
  return dir.empty() ? train.run_dir + "/tb" : dir;
}

FolderOptions folder_options(const Recipe& r) {
  return {.run_dir = r.train.run_dir,
          .checkpoint_dir = r.checkpoint.dir,
          .tensorboard_dir = tensorboard_dir(r.train),
          .load = load_from(r.checkpoint),
          .load_path = r.checkpoint.load.value_or(""),
          .load_or_start = r.checkpoint.load_or_start,
          .weights_from = r.model.init == recipe::WeightInit::weights ? r.model.from.value_or("")
                                                                      : std::string(),
          .ignore_keys = r.model.ignore_keys};
}

TokenizerOptions tokenizer_options(const Recipe& r) {
  using enum recipe::TokenizerType;
  const recipe::TokenizerConfig& t = r.tokenizer;
  TokenizerOptions options{.model_vocab = r.model.vocab_size};
  if (t.type == huggingface && t.path) options.path = hub_model_folder(*t.path).string();
  options.unknown = t.type == null || (t.type == huggingface && !t.path);
  options.assumed = t.type == byte && !r.given("tokenizer.type") && r.model.vocab_size > 0;
  return options;
}

DatasetOptions dataset_options(const Recipe& r) {
  const auto tokens = [](const recipe::SamplesConfig& samples, const std::vector<std::string>& made,
                         const std::vector<std::string>& prefixes) {
    return samples.on() ? made : prefixes;
  };
  const auto mock = [](const recipe::SamplesConfig& s) {
    constexpr int64_t kSamples = 1'000'000;
    return s.format == recipe::SampleFormat::mock
               ? DatasetOptions::Mock{s.limit.value_or(kSamples), s.vocab_size.value_or(0)}
               : DatasetOptions::Mock{};
  };
  const auto share = [](const recipe::SamplesConfig& samples, const std::vector<double>& split,
                        SplitPart part) {
    return samples.on() ? DocumentShare{} : document_share(split, part);
  };
  const recipe::DatasetConfig& d = r.dataset;
  return {.train = {tokens(d.train_samples, r.train_tokens, d.train), d.train_weights,
                    share(d.train_samples, d.split, SplitPart::train)},
          .validation = {tokens(d.validation_samples, r.validation_tokens, d.validation),
                         d.validation_weights,
                         share(d.validation_samples, d.validation_split, SplitPart::validation)},
          .rows = data_form(r) == recipe::DataForm::rows,
          .mock_train = mock(d.train_samples),
          .mock_validation = mock(d.validation_samples),
          .seq_length = r.dataset.seq_length,
          .packed_size = r.packed_sequence.packed_sequence_size,
          .drop_long = r.packed_sequence.drop_long_samples,
          .packing = r.packed_sequence.packing_strategy,
          .max_packs = r.packed_sequence.max_packs.value_or(0),
          .seed = r.dataset.seed.value_or(r.train.seed),
          .tokenizer = tokenizer_options(r)};
}

DevicePlan device_plan_without_overlap(const Recipe& r) {
  return {.kind = r.train.device == recipe::DeviceChoice::cuda ? DeviceKind::cuda : DeviceKind::cpu,
          .threads = r.train.threads,
          .stream_sanitizer = r.debug.stream_sanitizer,
          .compute_slowdown = r.debug.compute_slowdown,
          .deterministic = r.debug.deterministic,
          .own_attention = r.debug.own_attention,
          // The faster engine is found by measuring, and measurements differ from run to run.
          .own_grouped_gemm = r.debug.own_grouped_gemm || r.debug.deterministic,
          .nvtx = r.debug.nvtx};
}

// Returns the names of the streams that carry the communication which the recipe's link slows.
std::vector<std::string> link_streams(const recipe::LinkConfig& link) {
  using enum recipe::LinkTraffic;
  std::vector<std::string> streams;
  for (const recipe::LinkTraffic traffic : link.only) {
    const auto of = [&]() -> std::vector<std::string> {
      switch (traffic) {
        case dp: return {"dp_grad", "dp_param"};
        case tp: return {"tp"};
        case cp: return {"cp"};
        case pp: return {"pp", "pp_recv", "pp_send"};
        case ep: return {"ep", "ep_counts"};
      }
      throw BugError("a kind of communication");
    }();
    streams.insert(streams.end(), of.begin(), of.end());
  }
  return streams;
}

CommOptions comm_options(const Recipe& r) {
  return {.backend = r.comm.backend,
          .timeout_s = r.comm.timeout_s,
          .link_latency_us = r.comm.link.latency_us,
          .link_gbps = r.comm.link.gbps,
          .link_streams = link_streams(r.comm.link)};
}

DebugOptions debug_options(const Recipe& r) {
  return {.trace = r.debug.trace,
          .trace_steps = parse_step_range(r.debug.trace_steps.value_or("")).value_or(StepRange()),
          .faults = fault_options(r)};
}

std::vector<FaultOptions> fault_options(const Recipe& r) {
  std::vector<FaultOptions> faults;
  for (const recipe::FaultConfig& f : r.debug.fault) {
    if (f.empty()) continue;
    faults.push_back(
        {.kind = f.kind.value_or(f.kill ? FaultKind::kill : FaultKind::stop),
         .phase = f.phase,
         .moment = fault_moment(f),
         .launch = f.at.value_or(""),
         .of_save = f.at && f.at->starts_with(kSaveMoment) ? f.at->substr(kSaveMoment.size()) : "",
         .rank = f.rank,
         .step = f.step,
         .factor = f.factor.value_or(1)});
  }
  return faults;
}

}  // namespace mtrain::plan
