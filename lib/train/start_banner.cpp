#include "train/start_banner.h"

#include <algorithm>

#include "base/strings.h"
#include "plan/model_size.h"

namespace mtrain {

namespace {

std::string model_text(const ModelConfig& m, int64_t vocab) {
  std::string text = fmt::format("{}: {} layers, hidden {}, {} heads ({} kv) of {}, ffn {}",
                                 enum_name(m.architecture), m.num_layers, m.hidden_size,
                                 m.num_attention_heads, m.kv_heads(), m.head_dim(), m.ffn_size());
  if (m.moe.num_experts > 0)
    text += fmt::format(", {} experts of {} (top {})", m.moe.num_experts,
                        m.moe.ffn_hidden_size.value_or(m.ffn_size()), m.moe.router_topk);
  text += fmt::format(", vocabulary {}", vocab);
  return m.share_embeddings_and_output_weights ? text + ", tied" : text;
}

std::string parameters_text(const Recipe& r, int64_t vocab) {
  const ModelParameters p = count_parameters(r.model, vocab);
  std::string text = human_count(p.total());
  if (p.moe_layers > 0) text += fmt::format(", {} active per token", human_count(p.active()));
  // Attention in packs is bounded by documents.
  const char* most = r.packed_sequence.packed_sequence_size > 0 ? "at most " : "";
  return fmt::format("{} ({} in matmuls), {}{} FLOPs per token", text,
                     human_count(p.active() - p.looked_up()), most,
                     human_count(flops_per_token(r.model, vocab, sample_length(r))));
}

std::string batch_text(const Recipe& r, const Layout& l) {
  const double tokens = double(r.train.global_batch_size) * double(sample_length(r));
  return fmt::format("{} x {} = {} tokens a step, in {} micro-batch{} of {}{}",
                     r.train.global_batch_size, sample_length(r), human_count(tokens),
                     l.micro_batches, l.micro_batches == 1 ? "" : "es", l.micro_batch,
                     l.dp > 1 ? fmt::format(" on each of {} data-parallel ranks", l.dp) : "");
}

std::string memory_text(const RunPlan& plan) {
  const MemoryEstimate& m = plan.fullest();
  std::string text = fmt::format(
      "{} planned{}: parameters {}, gradients {}, optimizer {}, activations {}",
      human_bytes(m.total()), plan.layout.world > 1 ? " per rank" : "", human_bytes(m.params),
      human_bytes(m.grads), human_bytes(m.optimizer), human_bytes(m.activations + m.logits));
  if (m.buffers > 0) text += ", communication " + human_bytes(m.buffers);
  if (m.workspace > 0)
    text += fmt::format(", workspace {} without cuDNN's own", human_bytes(m.workspace));
  return text;
}

std::string recompute_text(const Recipe& r) {
  std::string text(enum_name(r.recompute.granularity));
  if (r.recompute.granularity == RecomputeGranularity::full && r.recompute.num_layers)
    text +=
        fmt::format(", {} {}", r.recompute.method == RecomputeMethod::block ? "first" : "groups of",
                    *r.recompute.num_layers);
  return text;
}

// ", cp 4 by p2p".
std::string context_text(const Recipe& r) {
  const auto& d = r.distributed;
  if (d.cp_size == 1) return "";
  std::string types;
  for (const CpCommType t :
       {CpCommType::p2p, CpCommType::all_gather, CpCommType::a2a, CpCommType::a2a_p2p})
    if (std::ranges::count(d.cp_comm_type, t))
      types += (types.empty() ? "" : " and ") + std::string(enum_name(t));
  return fmt::format(", cp {} by {}", d.cp_size, types);
}

// What is active, and what was asked for or chosen otherwise.
std::string overlap_text(const Overlap& overlap) {
  std::string on;
  for (const OverlapRow& row : overlap.table)
    if (row.active)
      on += (on.empty() ? "" : ", ") + row.field +
            (row.effective == "true" ? "" : " " + row.effective);
  return on.empty() ? "none is active; --dry-run says why" : on;
}

std::string ranks_text(const Recipe& r, const Layout& l) {
  std::string text =
      fmt::format("{}, strategy {}{}", l.world, enum_name(r.distributed.strategy), context_text(r));
  if (l.pp == 1) return text;
  return text + fmt::format(", {} pipeline ranks of {} stage{} ({})", l.pp, l.stages_per_rank,
                            l.stages_per_rank > 1 ? "s" : "",
                            r.distributed.pipeline.pp_schedule_csv
                                ? *r.distributed.pipeline.pp_schedule_csv
                                : enum_name(r.distributed.pipeline.pp_schedule));
}

std::string precision(const Recipe& r, const RunPlan& plan) {
  const MixedPrecisionConfig& p = r.mixed_precision;
  if (p.fp8 == Fp8Format::none) return std::string(enum_name(p.name));
  return fmt::format("{}, linears in 8 bits ({}, {}; {})", enum_name(p.name), enum_name(p.fp8),
                     enum_name(p.fp8_recipe), print_fp8_weight_cache(plan.fp8_weights));
}

// How this run's CPUs multiply bf16.
std::string bf16_text(Trainer& t) {
  const auto arithmetic = t.device().bf16_arithmetic();
  if (!arithmetic || t.plan().compute_dtype != DType::bf16) return "";
  switch (*arithmetic) {
    case Bf16Arithmetic::dot_products: return ", bf16 by dot products";
    case Bf16Arithmetic::tiles: return ", bf16 by AMX tiles";
    default: return ", bf16 as fp32";
  }
}

}  // namespace

std::vector<BannerRow> plan_rows(const Recipe& r, const RunPlan& plan, int64_t vocab) {
  std::vector<BannerRow> rows{
      {"model", model_text(r.model, vocab)}, {"parameters", parameters_text(r, vocab)},
      {"precision", precision(r, plan)},     {"batch", batch_text(r, plan.layout)},
      {"recompute", recompute_text(r)},      {"memory", memory_text(plan)}};
  if (r.train.device == DeviceChoice::cuda)
    rows.push_back({"CUDA graphs", print_cuda_graphs(plan.graphs)});
  return rows;
}

std::vector<BannerRow> banner_rows(Trainer& t, const Recipe& r, double peak) {
  const RunPlan& plan = t.plan();
  const double tokens =
      double(r.train.steps) * double(r.train.global_batch_size) * double(plan.sample_length);
  std::vector<BannerRow> rows = plan_rows(r, plan, t.config().vocab);
  if (t.graphs()) rows.back().text = print_cuda_graphs(t.graphs()->plan());  // as they are now
  rows.push_back({"steps", fmt::format("{} to {}, {} tokens in all", t.steps_done() + 1,
                                       r.train.steps, human_count(tokens))});
  rows.push_back(
      {"device", t.device().description() +
                     (peak > 0 ? fmt::format(", {:.0f} GFLOP/s fp32 measured", peak / 1e9) : "") +
                     bf16_text(t)});
  if (t.world().size() == 1) {
    rows.push_back({"overlap", "one rank: no communication"});
  } else {
    rows.push_back({"ranks", ranks_text(r, plan.layout)});
    rows.push_back({"overlap", overlap_text(plan.overlap)});
  }
  return rows;
}

}  // namespace mtrain
