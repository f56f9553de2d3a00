#include "plan/run_plan.h"

#include <algorithm>

#include "base/error.h"
#include "plan/change_layout.h"
#include "plan/cheap_recompute.h"
#include "plan/expert_traffic.h"
#include "plan/logits_rows.h"
#include "plan/meeting_plan.h"
#include "plan/options/recipe_options.h"
#include "plan/pass_costs.h"
#include "plan/recipe_schedule.h"
#include "recipe/adapters.h"
#include "recipe/model_spec.h"
#include "recipe/recipe.h"
#include "schedule/catalog.h"
#include "schedule/lower.h"

namespace mtrain::plan {

namespace {

mesh::MeshSizes mesh_sizes(const Layout& l) {
  return {.pp = l.pp,
          .dp_replicate = l.dp_replicate,
          .dp_shard = l.dp_shard,
          .cp = l.cp,
          .tp = l.tp,
          .ep = l.ep,
          .undivided_experts = l.undivided_experts()};
}

DType compute_dtype(const recipe::MixedPrecisionConfig& precision) {
  switch (precision.name) {
    case recipe::Precision::fp32: return DType::f32;
    case recipe::Precision::bf16_mixed: return DType::bf16;
    case recipe::Precision::fp16_mixed: return DType::f16;
  }
  throw BugError("mixed_precision.name");
}

// The type in which gradients travel: fp32, the type that the recipe names, or the weights' type
// (bf16 if that is fp32).
DType reduce_dtype(const Recipe& r) {
  if (r.mixed_precision.grad_reduce_in_fp32) return DType::f32;
  const auto& given = r.distributed.mp_policy.reduce_dtype;
  const DType own = compute_dtype(r.mixed_precision);
  if (given) return *given == recipe::ElementType::fp16 ? DType::f16 : DType::bf16;
  return own == DType::f32 ? DType::bf16 : own;
}

// Messages have the type that the recipe gives for the pipeline. Otherwise they have that of
// FSDP2's outputs, or else that of the weights.
DType message_dtype(const Recipe& r) {
  const auto& own = r.distributed.pipeline.dtype;
  const auto& outputs = r.distributed.mp_policy.output_dtype;
  return own       ? element_dtype(*own)
         : outputs ? element_dtype(*outputs)
                   : compute_dtype(r.mixed_precision);
}

// As in AutoModel, a table that is shared with the embedding keeps its type.
bool head_in_fp32(const Recipe& r) {
  return r.distributed.strategy == recipe::Strategy::fsdp2 && r.distributed.ep_size > 1 &&
         r.distributed.moe.lm_head_precision == recipe::ElementType::fp32 &&
         compute_dtype(r.mixed_precision) != DType::f32 &&
         !r.model.share_embeddings_and_output_weights;
}

// The loss reads logits in fp32. They are rounded only for a 16-bit output_dtype that differs from
// the weights' type.
std::optional<DType> logits_dtype(const Recipe& r) {
  if (head_in_fp32(r)) return std::nullopt;
  const auto& outputs = r.distributed.mp_policy.output_dtype;
  if (!outputs || *outputs == recipe::ElementType::fp32) return std::nullopt;
  const DType dtype = element_dtype(*outputs);
  return dtype == compute_dtype(r.mixed_precision) ? std::nullopt : std::optional(dtype);
}

// Whether some rank runs a forward together with a backward. dualpipev does so without a flag.
bool passes_pair(const schedule::Schedule& s) {
  return std::ranges::any_of(s.ranks, [](const schedule::ActionList& list) {
    return std::ranges::any_of(list, &schedule::Action::overlaps_next);
  });
}

DataParallelOptions data_parallel_options(const Recipe& r, const Layout& l, const Overlap& overlap,
                                          bool passes_pair) {
  using During = GatheredParamsOptions::DuringUpdate;
  const auto& d = r.distributed;
  DataParallelOptions o;
  o.shards = shard_level(r);
  o.reduce = {.dtype = reduce_dtype(r), .average = r.ddp.average_in_collective};
  o.bucket_size = overlap.bucket_size;
  const auto with_registration = [&](ShardedParamsOptions gather) {
    gather.registered = overlap.registered_gather, gather.symmetric = overlap.symmetric_windows;
    return gather;
  };
  if (overlap.fp8_param_gather) o.gather_as = linear_formats(r.mixed_precision).weight.element;
  if (d.strategy == recipe::Strategy::fsdp2) {  // its own settings, not `overlap`, decide
    o.defer_reduce = d.defer_fsdp_grad_sync;
    const bool reshard = d.reshard_after_forward.value_or(d.pp_size == 1);
    o.gather = with_registration(
        {.reshard_after_forward = reshard,
         .reshard_experts = l.ep > 1 && (d.pp_size == 1 || d.reshard_after_forward)
                                ? d.moe.reshard_after_forward.value_or(reshard)
                                : reshard,
         .forward_prefetch = d.fsdp2_forward_prefetch_depth,
         .backward_prefetch = d.fsdp2_backward_prefetch_depth,
         .passes_pair = passes_pair});
    return o;
  }
  o.overlap_grad_reduce = overlap.overlap_grad_reduce;
  o.gather_updated.overlap = overlap.overlap_param_gather;
  if (o.shards != ShardLevel::parameters)
    o.gather_updated.registered = overlap.registered_gather,
    o.gather_updated.symmetric = overlap.symmetric_windows;
  if (l.stages_per_rank > 1 && l.pp > 1) {
    o.gather_updated.during_update =
        overlap.overlap_param_gather_with_optimizer_step ? During::first_stage : During::none;
    o.gather_updated.together = overlap.align_param_gather;
  }
  o.defer_reduce = false;
  const int64_t ahead = overlap.overlap_param_gather ? 1 : 0;
  o.gather = {.forward_prefetch = ahead, .backward_prefetch = ahead};
  if (o.shards == ShardLevel::parameters) o.gather = with_registration(o.gather);
  return o;
}

PipelineOptions pipeline_options(const Recipe& r, const Layout& l, const Overlap& overlap,
                                 const schedule::Schedule& s) {
  PipelineOptions options{.overlap = overlap.overlap_p2p_comm,
                          .dtype = message_dtype(r),
                          .compute_dtype = compute_dtype(r.mixed_precision),
                          .split_wgrad = overlap.delay_wgrad_compute};
  const auto& d = r.distributed;
  if (d.strategy == recipe::Strategy::fsdp2 && l.pp > 1 && l.shares_gradients() &&
      !d.reshard_after_forward)
    options.max_gathered = kStagesGathered;
  if (overlap.defer_embedding_wgrad_compute) options.deferred_outputs = deferred_outputs(r, l);
  options.one_by_one = !overlap.overlap_p2p_comm && !overlap.batch_p2p_comm;
  if (!overlap.fine_grained_1f1b) return options;
  using Gradient = schedule::PairedGradient;
  options.paired_gradient = overlap.overlap_p2p_backward_on_comm_stream ? Gradient::at_once
                            : runs_blocking(with_messages(s), schedule::Blocking::paired_gradients)
                                ? Gradient::in_order
                                : Gradient::at_end;  // in_order would deadlock
  options.delayed_layers = overlap.overlap_p2p_wgrad_delayed_layer_number;
  options.delay_mlp_wgrads = overlap.overlap_p2p_with_transformer_layer_wgrad;
  return options;
}

// Adds a note to the row of the fine-grained 1F1B if its schedule lets no computation wait for a
// gradient.
void explain_pairs(RunPlan& plan) {
  if (!plan.overlap.fine_grained_1f1b ||
      plan.pipeline.paired_gradient != schedule::PairedGradient::at_end)
    return;
  for (OverlapRow& row : plan.overlap.table)
    if (row.field == "comm_overlap.fine_grained_1f1b")
      row.reason += "; in these groups no computation waits for a gradient";
}

// Fills the fields that follow from the sizes of a layout and say how its ranks work together, all
// but the schedule. The plan must have its layout and its model.
void copy_layout_options(const Recipe& r, RunPlan& plan) {
  plan.tensor = {.sequence_parallel = r.distributed.sequence_parallel};
  plan.context = context_options(r);
  plan.experts = expert_options(r);
  plan.train = train_options(r);
}

void copy_recomputation(const Recipe& r, RunPlan& plan) {
  plan.recompute = recompute_options(r.recompute, plan.model.layer_count());
  plan.recompute.keeps_router = plan.layout.ep > 1 &&
                                r.distributed.strategy == recipe::Strategy::fsdp2 &&
                                r.distributed.moe.ignore_router_for_ac;
}

// Fills the fields of the plan that each follow from one section of the recipe.
void copy_options(const Recipe& r, int64_t vocab, RunPlan& plan) {
  plan.model = recipe::model_spec(r.model, vocab, plan.sample_length);
  plan.model.lora = recipe::adapters_of(r.peft, r.model, plan.model);
  plan.parameters = count_parameters(plan.model, vocab);
  plan.token_cost = token_cost(plan.model);
  copy_layout_options(r, plan);
  copy_recomputation(r, plan);
  plan.fp8 = fp8_options(r, plan.model.main_layers(), plan.model.mtp.layers());
  plan.optimizer = optimizer_options(r.optimizer);
  plan.loss_scale = loss_scale_options(r.mixed_precision);
  plan.lr_schedule = lr_schedule_options(r.optimizer, r.lr_scheduler, r.train.steps);
  plan.validation = validation_options(r);
  plan.checkpoint = checkpoint_options(r);
  plan.folders = folder_options(r);
  plan.dataset = dataset_options(r);
  plan.comm = comm_options(r);
  plan.debug = debug_options(r);
}

// Fills what follows from the layout, which the plan must have, before there is a schedule.
void resolve_sizes(const Recipe& r, RunPlan& plan) {
  plan.overlap = resolve_overlap(r, plan.layout);
  plan.graphs = resolve_cuda_graphs(r, plan.layout, plan.overlap);
  plan.fp8_weights = resolve_fp8_weight_cache(r, plan.layout, plan.overlap);
  plan.schedule_shape = schedule_shape(r, plan.layout, plan.overlap);
}

}  // namespace

mesh::Mesh RunPlan::moe_mesh() const { return mesh::moe_mesh(mesh_sizes(layout)); }

const MemoryEstimate& RunPlan::fullest() const {
  MT_CHECK(!memory.empty(), "a plan without a vocabulary has no memory");
  return *std::ranges::max_element(memory, {}, &MemoryEstimate::total);
}

RunPlan make_plan(const Recipe& r, int64_t world, int64_t vocab) {
  const Layout layout = layout_of(r, world);
  RunPlan plan{.layout = layout, .mesh = mesh::device_mesh(mesh_sizes(layout))};
  resolve_sizes(r, plan);
  plan.schedule = schedule_of(plan.schedule_shape);
  plan.pipeline = pipeline_options(r, layout, plan.overlap, plan.schedule);
  explain_pairs(plan);
  plan.data_parallel = data_parallel_options(r, layout, plan.overlap, passes_pair(plan.schedule));
  plan.compute_dtype = compute_dtype(r.mixed_precision);
  plan.logits_dtype = logits_dtype(r);
  plan.head_in_fp32 = head_in_fp32(r);
  plan.sample_length = sample_length(r);
  plan.head_chunks = resolve_head_chunks(r, layout);
  plan.device = device_plan(r, world, plan.overlap);
  copy_options(r, vocab, plan);
  plan.pipeline.head_shares_table =
      plan.model.tied_embeddings &&
      (plan.model.mtp.depths > 0 ||
       plan.schedule.rank_of(0) == plan.schedule.rank_of(plan.schedule.stages - 1));
  plan.text = plan_text(r, plan, vocab);
  if (vocab > 0) resolve_logits_rows(r, plan);
  if (expert_bytes_per_step(plan) > 0) plan.pass_costs = pass_costs(r, plan);
  if (plan.overlap.overlap_moe_expert_parallel_comm) plan.pipeline.pair_costs = plan.pass_costs;
  resolve_cheap_recompute(r, plan);
  if (vocab > 0) plan.text.logits = logits_text(r, plan);
  return plan;
}

void change_layout(const Recipe& r, Layout layout, Overlap overlap, RunPlan& plan) {
  MT_CHECK(plan.model.vocab > 0, "a plan without a vocabulary has no memory");
  plan.layout = std::move(layout);
  plan.overlap = std::move(overlap);
  plan.graphs = resolve_cuda_graphs(r, plan.layout, plan.overlap);
  plan.schedule_shape = schedule_shape(r, plan.layout, plan.overlap);
  const Layout& l = plan.layout;
  plan.schedule.ranks.clear();
  const bool listed = plan.overlap.fine_grained_1f1b || plan.schedule_shape.table;
  if (listed) plan.schedule = schedule_of(plan.schedule_shape);
  plan.pipeline = pipeline_options(r, l, plan.overlap, plan.schedule);
  const bool pairs = listed ? passes_pair(plan.schedule)
                            : l.pp > 1 && schedule::passes_pair(
                                              schedule::schedule_kind(plan.schedule_shape.schedule),
                                              schedule_size(plan.schedule_shape));
  plan.data_parallel = data_parallel_options(r, l, plan.overlap, pairs);
  plan.head_chunks = resolve_head_chunks(r, l);
  plan.device = device_plan(r, l.world, plan.overlap);
  copy_layout_options(r, plan);
  resolve_logits_rows(r, plan);
  change_recomputation(r, plan);
}

void change_recomputation(const Recipe& r, RunPlan& plan) {
  copy_recomputation(r, plan);
  plan.recompute.cheap = r.recompute.cheap.value_or(true);
  plan.fp8_weights = resolve_fp8_weight_cache(r, plan.layout, plan.overlap);
  if (plan.overlap.overlap_moe_expert_parallel_comm)
    plan.pipeline.pair_costs = plan.pass_costs = pass_costs(r, plan);
  plan.memory.clear();
}

}  // namespace mtrain::plan
