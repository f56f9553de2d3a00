#include "plan/expert_overlap.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/strings.h"
#include "plan/change_layout.h"
#include "plan/recipe_schedule.h"
#include "recipe/recipe.h"
#include "schedule/catalog.h"

namespace mtrain::plan {
namespace {

using Off = OverlapRow::Off;

Need spread_experts(const Recipe& r, const Layout& l) {
  return r.model.moe.num_experts == 0
             ? Need{false, "the model has no experts", Off::idle}
             : Need{l.ep > 1, "experts are not spread over ranks (ep_size 1)", Off::idle};
}

Condition chunks_possible(const Recipe& r, const Layout& l) {
  const TokenDispatch dispatcher = r.model.moe.token_dispatcher;
  return all({spread_experts(r, l),
              {dispatcher != TokenDispatch::all_gather,
               "all_gather brings all tokens to every rank, whichever experts they have"},
              {dispatcher != TokenDispatch::flex,
               "flex adds a token's rows of all experts of a rank before it brings them back"},
              {r.mixed_precision.fp8 == recipe::Fp8Format::none,
               "8-bit rows have one scale for all experts of a rank, which is known when all rows "
               "have arrived"}},
             "a rank's experts compute chunk by chunk, while other chunks' rows travel");
}

// Decides whether a forward and a backward can run together. Each then hides the other's exchanges.
class ExpertPairs {
 public:
  ExpertPairs(const Recipe& r, const Layout& l, const Overlap& o) : r_(r), l_(l), o_(o) {}

  Condition condition() const {
    const auto& moe = r_.model.moe;
    const auto& modules = r_.recompute.modules;
    const auto granularity = r_.recompute.granularity;
    const bool recomputes_moe =
        granularity == recipe::RecomputeGranularity::selective &&
        std::count(modules.begin(), modules.end(), recipe::RecomputeModule::moe) > 0;
    if (const Need spread = spread_experts(r_, l_); !spread.ok)
      return {spread.off, spread.otherwise};
    return all(
        {{moe.token_dispatcher != TokenDispatch::all_gather,
          "the token dispatcher must be alltoall or flex, not all_gather"},
         {l_.pp == 1 || l_.stages_per_rank > 1, "with a pipeline it needs several stages per rank"},
         {l_.pp == 1 || passes_pair_in_schedule(),
          fmt::format(
              "{} never runs a forward with a backward; interleaved_1f1b, dfs and dualpipev "
              "do",
              schedule_text())},
         {granularity != recipe::RecomputeGranularity::full,
          "full layers are recomputed (recompute.granularity is full)"},
         {!recomputes_moe, "the experts are recomputed (recompute.modules has moe)"},
         {!moe.shared_expert_overlap, "model.moe.shared_expert_overlap uses the same time"},
         {l_.pp == 1 || o_.overlap_p2p_comm, "it needs overlap_p2p_comm, which is off"},
         {pairs_remain(), too_few_text(), Off::idle}},
        "exchanges of a micro-batch travel while another one computes");
  }

 private:
  // Whether some rank runs a forward with another micro-batch's backward. True for sizes that the
  // schedule cannot have, which rules report.
  bool pairs_remain() const {
    if (l_.pp == 1) return l_.micro_batches > 1;
    const auto& p = r_.distributed.pipeline;
    const schedule::ScheduleKind& kind = schedule::schedule_kind(p.pp_schedule);
    const int64_t group = p.microbatch_group_size_per_vp_stage.value_or(0);
    if (!passes_pair_in_schedule() || l_.stages_per_rank < kind.min_stages ||
        l_.micro_batches < kind.min_micro_batches * l_.pp || group > l_.micro_batches)
      return true;
    return schedule::passes_pair(kind, {.pp = l_.pp,
                                        .stages_per_rank = l_.stages_per_rank,
                                        .micro_batches = l_.micro_batches,
                                        .group = kind.in_groups ? group : 0,
                                        .moe_overlap = true});
  }

  std::string too_few_text() const {
    const int64_t M = l_.micro_batches;
    // Chunks need a second expert on the rank.
    const bool chunks = r_.comm_overlap.moe_dispatch_chunks == 1 && chunks_possible(r_, l_).ok() &&
                        r_.model.moe.num_experts / l_.ep > 1;
    return fmt::format(
        "{} micro-batch{} leave{} no forward that could run with another's backward: raise "
        "global_batch_size{}",
        M, M == 1 ? "" : "es", M == 1 ? "s" : "",
        chunks ? ", or set comm_overlap.moe_dispatch_chunks, which needs no other micro-batch"
               : "");
  }

  bool passes_pair_in_schedule() const {
    const auto& p = r_.distributed.pipeline;
    return !p.pp_schedule_csv && schedule::schedule_kind(p.pp_schedule).pairs;
  }
  std::string schedule_text() const {
    const auto& p = r_.distributed.pipeline;
    return p.pp_schedule_csv ? "a schedule from a file" : std::string(enum_name(p.pp_schedule));
  }

  const Recipe& r_;
  const Layout& l_;
  const Overlap& o_;
};

class ExchangeResolver {
 public:
  ExchangeResolver(const Recipe& r, const Layout& l, Overlap& o) : r_(r), l_(l), o_(o) {}

  void run() {
    resolve_hidden();
    const bool gathered =
        l_.expert_tp > 1 && r_.distributed.sequence_parallel && r_.model.moe.num_experts > 0;
    if (l_.ep == 1 && !gathered) return;
    const auto name = std::string(enum_name(r_.model.moe.token_dispatcher));
    const std::string over = l_.ep == 1 ? "tp" : gathered ? "ep and tp" : "ep";
    o_.table.push_back(
        {"model.moe.token_dispatcher", name, l_.ep == 1 ? "all_gather" : name,
         fmt::format("{} over {}{}", l_.ep == 1 ? "tokens are gathered" : "rows travel", over,
                     dispatch_text())});
    if (r_.model.moe.pad_expert_input_to_capacity && l_.ep > 1)
      o_.table.push_back({"model.moe.pad_expert_input_to_capacity", "true", "true",
                          "in training the host does not wait for the numbers of rows"});
  }

 private:
  void resolve_hidden() {
    const recipe::MoeConfig& moe = r_.model.moe;
    const bool gathers = moe.token_dispatcher == TokenDispatch::all_gather;
    if (moe.shared_expert_overlap || l_.ep > 1)
      o_.shared_expert_overlap = decide(
          o_.table, "model.moe.shared_expert_overlap", moe.shared_expert_overlap,
          all({spread_experts(r_, l_),
               {shared_expert(), "there is no shared expert"},
               {!gathers, "the token dispatcher must be alltoall or flex, not all_gather"}},
              "its first GEMM runs while tokens go to their experts, its second while they come "
              "back; so do those of its backward"));
    const int64_t asked = r_.comm_overlap.moe_dispatch_chunks;
    if (asked == 1 && l_.ep == 1) return;
    const Condition possible = chunks_possible(r_, l_);
    const bool on = asked > 1 && possible.ok();
    o_.moe_dispatch_chunks = on ? asked : 1;
    o_.table.push_back({"comm_overlap.moe_dispatch_chunks", fmt::format("{}", asked),
                        fmt::format("{}", o_.moe_dispatch_chunks),
                        asked > 1 || !possible.ok() ? possible.why.str() : "not asked for",
                        asked > 1 ? possible.off : Off::no, on});
  }

  bool shared_expert() const { return r_.model.moe.shared_expert_ffn_hidden_size.value_or(0) > 0; }

  // Describes what hides the exchanges of tokens, and which of them are waited for.
  std::string dispatch_text() const {
    const bool pairs =
        r_.comm_overlap.overlap_moe_expert_parallel_comm && expert_pairs(r_, l_, o_).ok();
    if (!pairs) return "; " + alone_text();
    return "; both ways hide behind another micro-batch; in a pass that runs alone " + alone_text();
  }

  // Describes the same for a pass that runs alone.
  std::string alone_text() const {
    const bool chunks = o_.moe_dispatch_chunks > 1;
    if (o_.shared_expert_overlap && chunks)
      return "both ways hide behind the shared expert, and also behind other chunks, except the "
             "first chunk's way to the experts and the last one's way back";
    if (o_.shared_expert_overlap) return "both ways hide behind the shared expert";
    if (chunks && shared_expert())
      return "all but the first chunk hide behind other chunks, and the last one's way back behind "
             "the shared expert's forward";
    if (chunks)
      return "all but the first chunk, and the last one's way back in forward, hide behind other "
             "chunks";
    if (shared_expert())
      return "their way back hides behind the shared expert's forward, and in backward behind "
             "weight gradients of the experts; their way to the experts is waited for";
    return "their way back in backward hides behind weight gradients of the experts, and all else "
           "is waited for";
  }

  const Recipe& r_;
  const Layout& l_;
  Overlap& o_;
};

}  // namespace

void resolve_expert_exchanges(const Recipe& recipe, const Layout& layout, Overlap& overlap) {
  ExchangeResolver(recipe, layout, overlap).run();
}

bool recomputation_changes_overlap(const Recipe& recipe) {
  return recipe.model.moe.num_experts > 0;  // ExpertPairs
}

Condition expert_pairs(const Recipe& recipe, const Layout& layout, const Overlap& overlap) {
  return ExpertPairs(recipe, layout, overlap).condition();
}

// Counts the inputs of an expert's GEMMs and the gradients of their outputs. For each row, x and dy
// have H elements. The activation has F, and so have the gradients of gate and up.
std::string delayed_experts_text(const Recipe& r, const Layout& l) {
  const recipe::ModelConfig& m = r.model;
  if (m.moe.num_experts == 0) return "";
  const int64_t F = m.moe.ffn_hidden_size.value_or(m.ffn_size()) / l.expert_tp,
                widths = m.gated() ? 3 : 2, H = m.hidden_size, K = m.moe.router_topk;
  const double tokens = double(l.micro_batch) * double(sample_length(r)) / double(l.cp) /
                        double(l.undivided_experts() ? l.tp : 1),
               element = r.mixed_precision.name == recipe::Precision::fp32 ? 4 : 2,
               bytes = tokens * double(K) * double(2 * H + widths * F) * element;
  return fmt::format(
      "; with experts such a layer keeps {} (2 x {} + {} x {}) elements for each token meanwhile, "
      "{}{} for a micro-batch",
      K, H, widths, F, r.mixed_precision.fp8 == recipe::Fp8Format::none ? "" : "at most ",
      human_bytes(bytes));
}

}  // namespace mtrain::plan
