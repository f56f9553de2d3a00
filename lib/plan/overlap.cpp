#include "plan/overlap.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/gpu_facts.h"
#include "base/strings.h"
#include "plan/expert_overlap.h"
#include "plan/overlap_row.h"
#include "plan/recipe_schedule.h"
#include "plan/tp_gemm_overlap.h"
#include "recipe/recipe.h"

namespace mtrain::plan {
namespace {

using Off = OverlapRow::Off;

// fsdp2 reduces at least this many parameters at once. This is enough for a link's full speed, and
// little is left to wait for at the end of backward.
constexpr int64_t kFsdp2Piece = 1 << 20;
constexpr size_t kRows = 40;  // about as many as the table has

class Resolver {
 public:
  Resolver(const Recipe& r, const Layout& l) : r_(r), l_(l) {}

  Overlap run() {
    o_.table.reserve(kRows);
    resolve_tp();
    resolve_p2p();
    resolve_data_parallel();
    resolve_cp();
    resolve_expert_exchanges(r_, l_, o_);
    resolve_wgrad();
    resolve_launch();
    return std::move(o_);
  }

 private:
  template <class... Args>
  bool decide(const Args&... args) {
    return plan::decide(o_.table, args...);
  }

  void resolve_tp() {
    o_.tp_comm_overlap =
        decide("comm_overlap.tp_comm_overlap", r_.comm_overlap.tp_comm_overlap,
               all({{l_.tp >= 2, "there is no tensor parallelism (tp_size 1)", Off::idle},
                    {r_.distributed.sequence_parallel,
                     "it needs distributed.sequence_parallel: true", Off::idle}},
                   r_.model.moe.num_experts > 0
                       ? "gathers and scatters hide behind GEMMs; but not those of routed experts, "
                         "whose rows have no chunks"
                       : "gathers and scatters hide behind GEMMs"),
               false);
    if (o_.tp_comm_overlap) resolve_tp_gemm_overlap(r_, l_, o_);
  }

  Condition several_stages() const {
    return all({{l_.pp > 1, "there is no pipeline (pp_size 1)", Off::idle},
                {l_.stages_per_rank > 1, "every rank has a single stage", Off::idle}},
               "several stages per rank");
  }

  void resolve_p2p() {
    const auto& c = r_.comm_overlap;
    Condition overlap = several_stages();
    if (overlap.ok() && c.batch_p2p_comm.value_or(false))
      overlap = {Off::contradicts, "batch_p2p_comm sends and receives between computations"};
    o_.overlap_p2p_comm = decide("comm_overlap.overlap_p2p_comm", c.overlap_p2p_comm, overlap);
    o_.batch_p2p_comm =
        decide("comm_overlap.batch_p2p_comm", c.batch_p2p_comm,
               all({{l_.pp > 1, "there is no pipeline (pp_size 1)", Off::idle},
                    {!o_.overlap_p2p_comm, "overlap_p2p_comm sends and receives one by one"}},
                   "messages between two computations go together, and hide nothing"));
    o_.table.back().active = false;
  }

  void resolve_data_parallel() {
    const auto& d = r_.ddp;
    const bool fsdp2 = r_.distributed.strategy == recipe::Strategy::fsdp2;
    const Need group{l_.shares_gradients(), "gradients are not shared (dp x cp is 1)", Off::idle};
    o_.overlap_grad_reduce = decide(
        "ddp.overlap_grad_reduce", d.overlap_grad_reduce,
        all({group}, fsdp2 ? "fsdp2 reduces in backward" : "gradients are reduced over dp x cp"));
    o_.overlap_param_gather =
        decide("ddp.overlap_param_gather", d.overlap_param_gather,
               all({group,
                    {!fsdp2, "fsdp2 gathers by its own prefetch depths"},
                    {shard_level(r_) >= ShardLevel::optimizer,
                     "nothing is gathered because the optimizer is not sharded"},
                    {o_.overlap_grad_reduce, "it needs overlap_grad_reduce, which is off"}},
                   "the optimizer is sharded"));
    o_.overlap_param_gather_with_optimizer_step = decide(
        "ddp.overlap_param_gather_with_optimizer_step", d.overlap_param_gather_with_optimizer_step,
        all({{shard_level(r_) >= ShardLevel::optimizer, "it needs use_distributed_optimizer: true"},
             group,
             {o_.overlap_param_gather, "it needs overlap_param_gather, which is off"},
             {l_.stages_per_rank > 1, "every rank has a single stage", Off::idle}},
            "a rank's first stage is gathered while its others are updated"));
    Condition align = several_stages();
    if (align.ok())
      align = all({group, {o_.overlap_param_gather, "overlap_param_gather is off"}},
                  "gathers of all stages start after the last update");
    o_.align_param_gather = decide("ddp.align_param_gather", d.align_param_gather, align);
    resolve_fp8_gather(group);
    resolve_registered_gather(group);
    resolve_buckets();
    if (fsdp2) resolve_prefetch();
  }

  // Without 8-bit GEMMs the table has a row only if the recipe asks for the feature.
  void resolve_fp8_gather(const Need& group) {
    const auto& p = r_.mixed_precision;
    const bool fp8 = p.fp8 != recipe::Fp8Format::none;
    if (!fp8 && !p.fp8_param_gather) return;
    const Off idle = r_.written_as("mixed_precision.fp8_param_gather", "mixed_precision")
                         ? Off::part_of_preset
                         : Off::idle;
    o_.fp8_param_gather =
        decide("mixed_precision.fp8_param_gather", p.fp8_param_gather,
               all({{fp8, "there are no 8-bit GEMMs (mixed_precision.fp8 is none)", idle},
                    {group.ok, group.otherwise, idle},
                    {shard_level(r_) >= ShardLevel::optimizer,
                     "nothing is gathered because the optimizer is not sharded", idle}},
                   "weights of 8-bit GEMMs are gathered in 8 bits"));
    o_.table.back().active = false;  // fewer bytes travel, but it hides none
  }

  // The groups of parameters consist of neighbouring ranks, since the axes of pp and dp_replicate
  // are the outer ones.
  bool shards_within_host() const {
    const int64_t node = r_.hardware.gpus_per_node;
    return l_.world <= node || node % (l_.dp_shard * l_.cp * l_.tp) == 0;
  }

  // Without a GPU the table has a row only if the recipe asks for the feature.
  void resolve_registered_gather(const Need& group) {
    const auto& asked = r_.ddp.nccl_ub;
    const bool nccl = r_.train.device == recipe::DeviceChoice::cuda;
    const bool symmetric = !r_.ddp.disable_symmetric_registration;
    if (!asked) {
      if (nccl && shard_level(r_) >= ShardLevel::optimizer && group.ok)
        o_.table.push_back({"ddp.nccl_ub", "auto", "false",
                            "off until gathers by copy engines have been measured on a GPU"});
      return;
    }
    o_.registered_gather = decide(
        "ddp.nccl_ub", asked,
        all({{nccl, "NCCL registers the memory of GPUs, and train.device is cpu", Off::idle},
             group,
             {shard_level(r_) >= ShardLevel::optimizer,
              "nothing is gathered because the optimizer is not sharded", Off::idle},
             {shards_within_host(),
              "the ranks that share parameters are on several hosts, where copy engines do not "
              "reach",
              Off::idle}},
            symmetric
                ? "copy engines move gathers, and compute has all multiprocessors; needs NCCL "
                  "2.28"
                : "buffers are registered, but without symmetric windows NCCL gathers with "
                  "multiprocessors"));
    o_.symmetric_windows = o_.registered_gather && symmetric;
    o_.table.back().active = false;  // by itself it hides none
  }

  void resolve_prefetch() {
    const auto& d = r_.distributed;
    const bool shared = l_.shares_gradients();
    const auto depth = [&](const char* field, int64_t asked, const char* why) {
      o_.table.push_back({field, fmt::format("{}", asked), fmt::format("{}", shared ? asked : 0),
                          !shared      ? "parameters are not sharded (dp x cp is 1)"
                          : asked == 0 ? "every unit is waited for"
                                       : why,
                          Off::no, shared && asked > 0});
    };
    depth("distributed.fsdp2_forward_prefetch_depth", d.fsdp2_forward_prefetch_depth,
          "units gathered beside a forward");
    depth("distributed.fsdp2_backward_prefetch_depth", d.fsdp2_backward_prefetch_depth,
          "units gathered beside a backward");
  }

  // Sharded gradients are reduced unit by unit, in pieces of at least this size.
  void resolve_buckets() {
    const bool section = r_.given_section("comm_overlap"),
               fsdp2 = r_.distributed.strategy == recipe::Strategy::fsdp2;
    o_.bucket_size =
        fsdp2 ? kFsdp2Piece
              : r_.ddp.bucket_size.value_or(section ? 128 << 20
                                                    : std::max<int64_t>(40000000, 1000000 * l_.dp));
    std::string reason = fsdp2                ? "units are reduced in pieces of this size"
                         : r_.ddp.bucket_size ? "as given"
                         : section            ? "128 Mi parameters with a comm_overlap section"
                                              : "the larger of 40 M and 1 M x dp";
    const double own = matrix_parameters_per_rank();
    if (shard_level(r_) >= ShardLevel::gradients && !fsdp2)
      reason += "; every unit is reduced by itself";
    if (o_.overlap_grad_reduce && shard_level(r_) < ShardLevel::gradients &&
        l_.stages_per_rank == 1 && own <= double(o_.bucket_size))
      reason += fmt::format(
          "; warning: the {} parameters of a rank's layers fit into one bucket, so nothing can "
          "hide",
          human_count(own));
    o_.table.push_back({"ddp.bucket_size",
                        r_.ddp.bucket_size ? fmt::format("{}", *r_.ddp.bucket_size) : "auto",
                        fmt::format("{}", o_.bucket_size), reason});
  }

  // Counts the attention and MLP matrices of a rank's layers. Buckets also hold embeddings and
  // norms, which this does not count.
  double matrix_parameters_per_rank() const {
    const auto& m = r_.model;
    const double hidden = double(m.hidden_size), ffn = double(m.ffn_size());
    const auto heads = double(m.num_attention_heads);
    double attention = 2 * hidden * double(m.head_dim()) * (heads + double(m.kv_heads()));
    if (m.multi_latent_attention) {
      const auto q_rank = double(m.q_lora_rank.value_or(0)), kv_rank = double(m.kv_lora_rank);
      attention = hidden * (q_rank + kv_rank + double(m.qk_rope_head_dim)) +
                  heads * (q_rank > 0 ? q_rank : hidden) * double(m.head_dim()) +
                  heads * kv_rank * double(m.qk_nope_head_dim + m.v_head_dim) +
                  heads * hidden * double(m.v_head_dim);
    }
    const double mlp = (m.gated() ? 3 : 2) * hidden * ffn;
    return double(m.num_layers) * (attention + mlp) / double(l_.tp) / double(l_.pp);
  }

  void resolve_cp() {
    o_.cp_overlap = decide(
        "comm_overlap.cp_overlap", r_.comm_overlap.cp_overlap,
        all({{l_.cp > 1, "there is no context parallelism (cp_size 1)", Off::idle},
             {any_layer([&](ContextMethod t) { return can_hide(t); }),
              "each exchange of heads is waited for, since a rank has one kv head to compute",
              Off::idle}},
            context_text()));
  }

  template <class F>
  bool any_layer(const F& f) const {
    const auto& types = r_.distributed.cp_comm_type;
    return std::any_of(types.begin(), types.end(), f);
  }

  // Whether this type can hide anything. A ring always computes with some keys while others travel.
  // all_gather and a2a compute chunks of a rank's kv heads one after the other, which needs at
  // least two heads.
  bool can_hide(ContextMethod type) const {
    const int64_t kv_heads = std::max<int64_t>(1, r_.model.kv_heads() / l_.tp);
    if (type == ContextMethod::all_gather) return kv_heads > 1;
    if (type == ContextMethod::a2a) return kv_heads / l_.cp > 1;
    return true;
  }

  std::string context_text() const {
    std::string text;
    const auto add = [&](ContextMethod type, const char* what) {
      if (!any_layer([&](ContextMethod t) { return t == type; })) return;
      text += fmt::format(
          "{}{}: {}", text.empty() ? "" : "; ", enum_name(type),
          can_hide(type) ? what : "every exchange is waited for, since a rank has one kv head");
    };
    add(ContextMethod::p2p, "keys and values travel during attention");
    add(ContextMethod::all_gather,
        "heads travel during others' attention; the first, and the last gradients, are waited for");
    add(ContextMethod::a2a,
        "heads travel during others' attention; the first and the last are waited for");
    add(ContextMethod::a2a_p2p,
        "keys and values travel during attention; the exchanges of heads are waited for");
    return text;
  }

  void resolve_wgrad() {
    const auto& c = r_.comm_overlap;
    o_.defer_embedding_wgrad_compute = decide("comm_overlap.defer_embedding_wgrad_compute",
                                              c.defer_embedding_wgrad_compute, deferral());
    o_.overlap_moe_expert_parallel_comm =
        c.overlap_moe_expert_parallel_comm && expert_pairs(r_, l_, o_).ok();
    resolve_fine_grained();
    o_.overlap_moe_expert_parallel_comm =
        decide("comm_overlap.overlap_moe_expert_parallel_comm", c.overlap_moe_expert_parallel_comm,
               expert_pairs(r_, l_, o_));
    o_.delay_wgrad_compute = decide(
        "comm_overlap.delay_wgrad_compute", c.delay_wgrad_compute,
        all({{o_.overlap_moe_expert_parallel_comm || o_.fine_grained_1f1b || !pairs_are_idle(),
              "the feature that it belongs to is off: a size leaves it nothing to hide", Off::idle},
             {o_.overlap_moe_expert_parallel_comm || o_.fine_grained_1f1b,
              "it needs overlap_moe_expert_parallel_comm or fine_grained_1f1b"}},
            "weight gradients follow the input gradients"));
  }

  // Deferral pays only if the rank with the output layer ends before others do.
  Condition deferral() const {
    const auto& p = r_.distributed.pipeline;
    const int64_t held = deferred_outputs(r_, l_);
    return all({{l_.pp > 1, "there is no pipeline (pp_size 1)", Off::idle},
                {!p.pp_schedule_csv, "a schedule from a file decides when each action runs"},
                {r_.model.mtp_num_layers == 0,
                 "multi-token prediction (model.mtp_num_layers) completes the output layer's "
                 "gradient in each micro-batch"},
                {!schedule::schedule_kind(p.pp_schedule).v,
                 fmt::format("{} has the output layer on the first rank, which is busy to the "
                             "end",
                             enum_name(p.pp_schedule))}},
               fmt::format("logits' gradients of {} micro-batch{} are kept to the last rank's end",
                           held, held == 1 ? "" : "es"));
  }

  // Whether forwards and backwards can run together.
  Condition passes_pair() const {
    Condition stages = several_stages();
    if (!stages.ok()) return stages;
    const schedule::ScheduleKind& kind =
        schedule::schedule_kind(r_.distributed.pipeline.pp_schedule);
    return all({{o_.overlap_p2p_comm, "it needs overlap_p2p_comm, which is off"},
                {!r_.distributed.pipeline.pp_schedule_csv,
                 "a schedule from a file runs no forward with a backward"},
                {kind.pairs != nullptr,
                 fmt::format("{} runs no forward with a backward; interleaved_1f1b, dfs and "
                             "dualpipev do",
                             kind.name)}},
               "a forward and a backward take turns, layer by layer");
  }

  void resolve_fine_grained() {
    const auto& c = r_.comm_overlap;
    const Condition pairs = passes_pair();
    o_.fine_grained_1f1b = decide("comm_overlap.fine_grained_1f1b", c.fine_grained_1f1b, pairs,
                                  o_.overlap_moe_expert_parallel_comm || asks_for_fine_grained(c));
    const Need together{o_.fine_grained_1f1b,
                        pairs.ok() ? Reason("it needs fine_grained_1f1b, which is off") : pairs.why,
                        pairs.ok() ? Off::contradicts : pairs.off};
    o_.overlap_p2p_backward_on_comm_stream = decide(
        "comm_overlap.overlap_p2p_backward_on_comm_stream", c.overlap_p2p_backward_on_comm_stream,
        all({together}, "a gradient leaves before the forward beside it ends"));
    o_.overlap_p2p_with_transformer_layer_wgrad =
        decide("comm_overlap.overlap_p2p_with_transformer_layer_wgrad",
               c.overlap_p2p_with_transformer_layer_wgrad,
               all({together}, "MLPs' weight gradients, too" + delayed_experts_text(r_, l_)));
    resolve_delayed_layers(all({together}));
  }

  void resolve_delayed_layers(const Condition& delays) {
    const int64_t asked = r_.comm_overlap.overlap_p2p_wgrad_delayed_layer_number;
    const int64_t layers = o_.overlap_p2p_wgrad_delayed_layer_number = delays.ok() ? asked : 1;
    o_.table.push_back({"comm_overlap.overlap_p2p_wgrad_delayed_layer_number",
                        fmt::format("{}", asked), fmt::format("{}", layers),
                        delays.ok()  ? "these weight gradients run while the gradient travels"
                        : asked == 1 ? "not asked for"
                                     : delays.why.str(),
                        asked != 1 ? delays.off : Off::no, delays.ok()});
  }

  // Whether the recipe asks for pairs of passes that have no effect at this size.
  bool pairs_are_idle() const {
    const auto& c = r_.comm_overlap;
    const bool fine = c.fine_grained_1f1b.value_or(asks_for_fine_grained(c));
    return (c.overlap_moe_expert_parallel_comm && expert_pairs(r_, l_, o_).off == Off::idle) ||
           (fine && passes_pair().off == Off::idle);
  }

  void resolve_launch() {
    const bool fsdp = r_.distributed.strategy == recipe::Strategy::fsdp2 ||
                      r_.distributed.strategy == recipe::Strategy::megatron_fsdp;
    const bool one = facts(r_.hardware.gpu).compute_capability < 10 && (l_.tp > 1 || l_.cp > 1) &&
                     !o_.overlap_moe_expert_parallel_comm && !fsdp;
    o_.cuda_device_max_connections = r_.launch.cuda_device_max_connections.value_or(one ? 1 : 32);
    const bool prefetches =
        r_.distributed.strategy == recipe::Strategy::fsdp2 && l_.shares_gradients();
    const bool overlaps =
        o_.tp_comm_overlap || o_.overlap_grad_reduce || o_.overlap_param_gather || prefetches;
    o_.layernorm_sm_margin = r_.launch.layernorm_sm_margin.value_or(overlaps ? 16 : 0);
    const auto shown = [](const recipe::Auto<int64_t>& v) {
      return v ? fmt::format("{}", *v) : "auto";
    };
    o_.table.push_back({"launch.cuda_device_max_connections",
                        shown(r_.launch.cuda_device_max_connections),
                        fmt::format("{}", o_.cuda_device_max_connections),
                        one ? "communication of tp and cp must start before the compute after it"
                            : "communication and compute queue freely"});
    o_.table.push_back({"launch.layernorm_sm_margin", shown(r_.launch.layernorm_sm_margin),
                        fmt::format("{}", o_.layernorm_sm_margin),
                        overlaps ? "norms leave multiprocessors to communication"
                                 : "nothing runs beside the norms"});
    const auto& margin = r_.launch.gemm_sm_margin;
    o_.gemm_sm_margin = margin.value_or(0);
    o_.table.push_back(
        {"launch.gemm_sm_margin", shown(margin), fmt::format("{}", o_.gemm_sm_margin),
         !margin                 ? "0 until a margin has been measured on a GPU"
         : o_.gemm_sm_margin > 0 ? "GEMMs of cuBLASLt leave multiprocessors to communication"
                                 : "GEMMs use all multiprocessors"});
    resolve_dependent_launch();
  }

  void resolve_dependent_launch() {
    const bool asked = r_.launch.programmatic_dependent_launch;
    const bool cuda = r_.train.device == recipe::DeviceChoice::cuda;
    const int capability = facts(r_.hardware.gpu).compute_capability;
    o_.programmatic_dependent_launch = asked && cuda && capability >= 9;
    o_.table.push_back(
        {"launch.programmatic_dependent_launch", asked ? "true" : "false",
         o_.programmatic_dependent_launch ? "true" : "false",
         !asked           ? "off until it has been measured on a GPU"
         : !cuda          ? "a CPU starts no kernel before the previous one has ended"
         : capability < 9 ? fmt::format("needs compute capability 9 or newer; {} has {}",
                                        enum_name(r_.hardware.gpu), capability)
                          : "kernels that are bound by memory start while the previous kernel ends",
         asked && !o_.programmatic_dependent_launch ? Off::idle : Off::no,
         o_.programmatic_dependent_launch});
  }

  const Recipe& r_;
  const Layout& l_;
  Overlap o_;
};

}  // namespace

bool asks_for_fine_grained(const recipe::CommOverlapConfig& c) {
  return c.overlap_p2p_backward_on_comm_stream || c.overlap_p2p_wgrad_delayed_layer_number != 1 ||
         c.overlap_p2p_with_transformer_layer_wgrad;
}

Overlap resolve_overlap(const Recipe& recipe, const Layout& layout) {
  return Resolver(recipe, layout).run();
}

}  // namespace mtrain::plan
