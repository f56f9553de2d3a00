// Rules of models with experts: which layers have them, the router, the experts' sizes, and the
// ranks that share them.
#include <algorithm>
#include <numeric>

#include <fmt/core.h>

#include "plan/rules/rules.h"
#include "recipe/model_spec.h"

namespace mtrain::plan {
namespace {

// Checks the settings that say which layers have experts.
void check_layers(const Recipe& r, Diagnostics& diagnostics) {
  const recipe::MoeConfig& moe = r.model.moe;
  const int64_t layers = r.model.num_layers;
  const std::vector<int64_t>& freq = moe.layer_freq;
  const char* field = "model.moe.layer_freq";
  const bool list = freq.size() != 1;
  check_layer_list(r, field, freq,
                   "a list has a 0 for a layer without experts and a 1 for one with them",
                   diagnostics);
  diagnostics.require(list || freq[0] > 0, {field}, "is 0, so no layer has experts",
                      "set it to 1: every layer has experts");
  const auto one_of_two = [&](const char* other, bool both) {
    diagnostics.require(!both, {field, other}, "both say which layers have experts",
                        "remove one of the two");
  };
  one_of_two("model.moe.sparse_step", moe.sparse_step && (list || freq[0] != 1));
  one_of_two("model.moe.first_dense_layers", list && moe.first_dense_layers > 0);
  one_of_two("model.moe.dense_layers", list && !moe.dense_layers.empty());
  for (const int64_t layer : moe.dense_layers)
    diagnostics.require(layer < layers, {"model.moe.dense_layers", "model.num_layers"},
                        fmt::format("there is no layer {}: the model has {}", layer, layers),
                        fmt::format("layers have the numbers 0 to {}", layers - 1));
  const bool any = recipe::model_spec(r.model).experts();
  diagnostics.require(any, {"model.moe.num_experts", "model.moe.first_dense_layers", field},
                      fmt::format("none of the {} layers has experts", layers),
                      "change the layers that have experts, or set model.moe.num_experts: 0");
}

// Checks the settings that say how weights are computed from logits.
void check_weights(const Recipe& r, Diagnostics& diagnostics) {
  const recipe::MoeConfig& moe = r.model.moe;
  const char *pre = "model.moe.router_pre_softmax", *norm = "model.moe.norm_topk_prob";
  const bool softmax = moe.router_score == RouterScore::softmax;
  diagnostics.require(!softmax || moe.router_pre_softmax || moe.norm_topk_prob, {norm, pre},
                      "weights that come from a softmax over the chosen experts sum to 1",
                      "set router_pre_softmax: true, or norm_topk_prob: true");
  if (!softmax && r.given(pre) && moe.router_pre_softmax)
    warn_or_refuse(r, pre, "is ignored because model.moe.router_score is sigmoid", diagnostics);
  if (moe.router_topk != 1) return;
  diagnostics.require(!softmax || !moe.norm_topk_prob, {"model.moe.router_topk", norm},
                      "the weight of a token's only expert is always 1, so the router would not "
                      "learn",
                      "set model.moe.router_pre_softmax: true and norm_topk_prob: false");
  if (!softmax && r.given(norm) && moe.norm_topk_prob)
    warn_or_refuse(r, norm, "is disabled: a token has one expert (router_topk 1)", diagnostics);
}

void check_losses(const Recipe& r, Diagnostics& diagnostics) {
  using recipe::LoadBalancing;
  const recipe::MoeConfig& moe = r.model.moe;
  const auto& kinds = moe.load_balancing_type;
  const std::vector<double>& coeffs = moe.aux_loss_coeff;
  diagnostics.require(
      coeffs.size() == 1 || coeffs.size() == kinds.size(),
      {"model.moe.aux_loss_coeff", "model.moe.load_balancing_type"},
      fmt::format("{} coefficients for {} load-balancing losses", coeffs.size(), kinds.size()),
      "give one for all, or one for each");
  if (coeffs.empty()) return;
  const bool none = std::ranges::count(kinds, LoadBalancing::none) == int64_t(kinds.size());
  if (none && std::ranges::any_of(coeffs, [](double c) { return c > 0; }))
    warn_or_refuse(r, "model.moe.aux_loss_coeff",
                   "is ignored because model.moe.load_balancing_type is none", diagnostics);
  for (size_t i = 0; i < kinds.size(); ++i)
    if (kinds[i] != LoadBalancing::none && coeffs[std::min(i, coeffs.size() - 1)] == 0)
      warn_or_refuse(
          r, "model.moe.load_balancing_type",
          fmt::format("{} changes nothing: its model.moe.aux_loss_coeff is 0", enum_name(kinds[i])),
          diagnostics);
}

void check_router(const Recipe& r, Diagnostics& diagnostics) {
  const recipe::MoeConfig& moe = r.model.moe;
  const int64_t experts = moe.num_experts;
  diagnostics.require(
      moe.router_topk <= experts, {"model.moe.router_topk", "model.moe.num_experts"},
      fmt::format("{} experts per token, but there are {}", moe.router_topk, experts),
      "choose at most the number of experts");
  diagnostics.require(moe.num_groups.has_value() == moe.group_topk.has_value(),
                      {"model.moe.num_groups", "model.moe.group_topk"},
                      "num_groups and group_topk belong together, and one of them is missing",
                      "set both, or leave both out");
  if (moe.num_groups && moe.group_topk) {
    diagnostics.require(
        *moe.group_topk <= *moe.num_groups, {"model.moe.group_topk", "model.moe.num_groups"},
        fmt::format("{} groups per token, but there are {}", *moe.group_topk, *moe.num_groups),
        "choose at most the number of groups");
    diagnostics.require(
        experts % *moe.num_groups == 0, {"model.moe.num_groups", "model.moe.num_experts"},
        fmt::format("{} groups do not divide the {} experts", *moe.num_groups, experts),
        fmt::format("choose a divisor of {}", experts));
  }
  diagnostics.require(!moe.group_score_topk || moe.num_groups,
                      {"model.moe.group_score_topk", "model.moe.num_groups"},
                      "group_score_topk ranks groups of experts, and num_groups is not set",
                      "set num_groups and group_topk, or leave group_score_topk out");
  if (moe.num_groups && moe.group_topk && experts % *moe.num_groups == 0) {
    const int64_t here = experts / *moe.num_groups * *moe.group_topk;
    diagnostics.require(moe.router_topk <= here, {"model.moe.router_topk", "model.moe.group_topk"},
                        fmt::format("{} experts per token, but {} groups have {}", moe.router_topk,
                                    *moe.group_topk, here),
                        "choose fewer experts, or more groups");
  }
  check_weights(r, diagnostics);
  check_losses(r, diagnostics);
}

void check_widths(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const recipe::MoeConfig& moe = r.model.moe;
  const char* shared = "model.moe.shared_expert_ffn_hidden_size";
  if (moe.num_shared_experts && moe.ffn_hidden_size) {
    const int64_t width = *moe.num_shared_experts * *moe.ffn_hidden_size;
    diagnostics.require(moe.shared_expert_ffn_hidden_size.value_or(0) == width,
                        {"model.moe.num_shared_experts", shared},
                        fmt::format("{} shared experts of {} are {} wide, but {} is {}",
                                    *moe.num_shared_experts, *moe.ffn_hidden_size, width, shared,
                                    moe.shared_expert_ffn_hidden_size.value_or(0)),
                        "give one of the two");
  }
  const auto divides = [&](const char* field, const std::optional<int64_t>& width) {
    diagnostics.require(
        !width || *width % l.tp == 0, {"distributed.tp_size", field},
        fmt::format("tp_size {} does not divide the experts' width of {}", l.tp, width.value_or(0)),
        fmt::format("set {} to {}", field, nearest_multiples(width.value_or(0), l.tp)));
  };
  if (expert_tp(r) > 1) divides("model.moe.ffn_hidden_size", r.model.moe.ffn_hidden_size);
  divides("model.moe.shared_expert_ffn_hidden_size", r.model.moe.shared_expert_ffn_hidden_size);
}

void check_expert_tp(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const auto& size = r.distributed.expert_tp_size;
  if (!size) return;
  diagnostics.require(*size == l.tp || *size == 1,
                      {"distributed.expert_tp_size", "distributed.tp_size"},
                      fmt::format("experts are divided over tp_size {} ranks or not at all, not "
                                  "over {}",
                                  l.tp, *size),
                      fmt::format("set it to 1 or {}", l.tp));
  diagnostics.require(*size != 1 || l.tp == 1 || r.distributed.sequence_parallel,
                      {"distributed.expert_tp_size", "distributed.sequence_parallel"},
                      "undivided experts on the ranks of tp need tokens that are divided over tp",
                      "set distributed.sequence_parallel: true, or leave it out");
}

void check_capacity(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const recipe::MoeConfig& moe = r.model.moe;
  diagnostics.require(
      moe.expert_capacity_factor || !moe.pad_expert_input_to_capacity,
      {"model.moe.pad_expert_input_to_capacity", "model.moe.expert_capacity_factor"},
      "experts have no capacity to pad their input to", "set expert_capacity_factor");
  if (moe.pad_expert_input_to_capacity && l.ep == 1)
    warn_or_refuse(r, "model.moe.pad_expert_input_to_capacity",
                   "is disabled: rows of experts do not travel (ep_size 1)", diagnostics);
  if (r.given("model.moe.token_drop_policy") &&
      moe.token_drop_policy != recipe::TokenDropPolicy::probs && !moe.expert_capacity_factor)
    warn_or_refuse(r, "model.moe.token_drop_policy",
                   "is ignored: without expert_capacity_factor no token is dropped", diagnostics);
  if (moe.expert_capacity_factor && (l.cp > 1 || (l.tp > 1 && r.distributed.sequence_parallel)))
    diagnostics.warn("model.moe.expert_capacity_factor",
                     "the capacity is for a rank's share of the tokens, so cp_size and "
                     "sequence_parallel change which tokens are dropped",
                     "leave it out to drop none");
}

// Returns the sizes that divide both the experts and the ranks that they are spread over.
std::vector<int64_t> expert_sizes(const Recipe& r, const Layout& l) {
  const int64_t most = std::gcd(r.model.moe.num_experts, expert_ranks(r, l));
  std::vector<int64_t> sizes;
  for (int64_t ep = 1; ep <= most; ++ep)
    if (most % ep == 0) sizes.push_back(ep);
  return sizes;
}

void check_expert_ranks(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const int64_t experts = r.model.moe.num_experts;
  diagnostics.require(experts > 0, {"distributed.ep_size", "model.moe.num_experts"},
                      fmt::format("ep_size {} spreads experts, but the model is dense", l.ep),
                      "set model.moe.num_experts, or ep_size: 1");
  if (experts == 0) return;
  diagnostics.require(experts % l.ep == 0, {"distributed.ep_size", "model.moe.num_experts"},
                      fmt::format("ep_size {} does not divide the {} experts", l.ep, experts),
                      fmt::format("use ep_size {}", either(expert_sizes(r, l))));
  const bool replicas = l.dp_replicate > 1, whole = expert_tp(r) == 1 && l.tp > 1;
  const int64_t dp = replicas ? l.dp_shard : l.dp;
  diagnostics.require(
      experts % l.ep != 0 || expert_ranks(r, l) % l.ep == 0,
      {"distributed.ep_size", "distributed.cp_size"},
      fmt::format("ep_size {} does not divide {}({}) * cp({}){} = {}", l.ep,
                  replicas ? "dp_shard" : "dp", dp, l.cp,
                  whole ? fmt::format(" * tp({})", l.tp) : "", expert_ranks(r, l)),
      fmt::format("use ep_size {}: experts are spread over the dp x cp{} ranks of a pipeline stage",
                  either(expert_sizes(r, l)), whole ? " x tp" : ""));
  // Context-parallel ranks pad each document. Only ranks that share a sample then have equal
  // numbers of tokens.
  const bool equal = r.packed_sequence.packed_sequence_size == 0 || l.cp == 1 ||
                     (whole ? l.cp * l.tp : l.cp) % l.ep == 0;
  const auto needs_equal = [&](bool asked, const char* field, const char* what, const char* hint) {
    diagnostics.require(
        !asked || equal, {field, "packed_sequence.packed_sequence_size", "distributed.cp_size"},
        fmt::format("{} needs equal numbers of tokens on the ep_size {} ranks, but packed samples "
                    "over cp_size {} have different numbers",
                    what, l.ep, l.cp),
        hint);
  };
  const TokenDispatch dispatcher = r.model.moe.token_dispatcher;
  const bool pad = r.model.moe.pad_expert_input_to_capacity;
  needs_equal(dispatcher == TokenDispatch::all_gather, "model.moe.token_dispatcher", "all_gather",
              "set model.moe.token_dispatcher: alltoall");
  needs_equal(pad, "model.moe.pad_expert_input_to_capacity", "pad_expert_input_to_capacity",
              "leave it out");
  diagnostics.require(!pad || dispatcher != TokenDispatch::flex,
                      {"model.moe.pad_expert_input_to_capacity", "model.moe.token_dispatcher"},
                      "flex sends a token once to each rank, and how many go to a rank does not "
                      "follow from the capacity of its experts",
                      "set model.moe.token_dispatcher: alltoall, or leave the padding out");
  const recipe::MoeParallelConfig& own = r.distributed.moe;
  if (own.reshard_after_forward && l.pp > 1 && !r.distributed.reshard_after_forward)
    warn_or_refuse(r, "distributed.moe.reshard_after_forward",
                   "is ignored: with pp_size above 1 a stage's parameters stay gathered unless "
                   "distributed.reshard_after_forward is given",
                   diagnostics);
  if (!own.wrap_outer_model)
    diagnostics.resolved("distributed.moe.wrap_outer_model",
                         "has no effect: embedding and output layer are sharded as separate "
                         "units");
  const recipe::ElementType weights = weights_type(r.mixed_precision.name);
  if (own.lm_head_precision == weights)
    warn_or_refuse(r, "distributed.moe.lm_head_precision",
                   fmt::format("changes nothing: the output layer is in {} as all weights are",
                               enum_name(weights)),
                   diagnostics);
  else if (own.lm_head_precision && r.model.share_embeddings_and_output_weights)
    warn_or_refuse(r, "distributed.moe.lm_head_precision",
                   fmt::format("is ignored: the output layer shares the token table, which is in "
                               "{} as all weights are",
                               enum_name(weights)),
                   diagnostics);
  const int64_t chunks = r.comm_overlap.moe_dispatch_chunks;
  diagnostics.require(
      chunks <= experts / l.ep || experts % l.ep != 0,
      {"comm_overlap.moe_dispatch_chunks", "model.moe.num_experts", "distributed.ep_size"},
      fmt::format("{} chunks, but a rank has {} experts", chunks, experts / l.ep),
      "choose at most the experts of a rank");
}

}  // namespace

void validate_experts(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const recipe::MoeConfig& moe = r.model.moe;
  if (r.debug.route && moe.num_experts == 0)
    warn_or_refuse(r, "debug.route", "is ignored: the model has no experts", diagnostics);
  if (r.debug.route && moe.num_experts > 0)
    diagnostics.warn(
        "debug.route",
        "tokens go to experts by a fixed pattern, not by the routers' choices: the run "
        "measures speed and trains nothing useful",
        "leave it out to train");
  if (r.given_section("distributed.moe") && l.ep == 1 &&
      r.distributed.strategy == recipe::Strategy::fsdp2)
    warn_or_refuse(r, "distributed.moe", "is ignored because ep_size is 1", diagnostics);
  if (moe.num_experts > 0) {
    check_layers(r, diagnostics);
    check_router(r, diagnostics);
    check_widths(r, l, diagnostics);
    check_expert_tp(r, l, diagnostics);
    check_capacity(r, l, diagnostics);
    if (moe.shared_expert_gate && r.given("model.moe.shared_expert_gate") &&
        !moe.shared_expert_ffn_hidden_size)
      warn_or_refuse(r, "model.moe.shared_expert_gate",
                     "is ignored: there is no shared expert (shared_expert_ffn_hidden_size)",
                     diagnostics);
    diagnostics.require(
        !moe.shared_expert_overlap || moe.shared_expert_ffn_hidden_size,
        {"model.moe.shared_expert_overlap", "model.moe.shared_expert_ffn_hidden_size"},
        "there is no shared expert to compute while tokens travel",
        "set shared_expert_ffn_hidden_size, or shared_expert_overlap: false");
    if (r.given("model.moe.token_dispatcher") && l.ep == 1)
      warn_or_refuse(r, "model.moe.token_dispatcher",
                     "is ignored: experts are not spread over ranks (ep_size 1)", diagnostics);
    if (moe.shared_expert_overlap && l.ep == 1)
      warn_or_refuse(r, "model.moe.shared_expert_overlap",
                     "is disabled: experts are not spread over ranks (ep_size 1)", diagnostics);
  }
  diagnostics.require(
      moe.num_experts > 0 || !moe.required_by_family,
      {"model.moe.num_experts", "model.architecture"},
      fmt::format("models of the architecture {} have experts, but their number is not given",
                  enum_name(r.model.architecture)),
      "set model.moe.num_experts");
  if (moe.num_experts == 0 && r.distributed.expert_tp_size)
    warn_or_refuse(r, "distributed.expert_tp_size", "is ignored: the model has no experts",
                   diagnostics);
  if (moe.num_experts == 0 && moe.shared_expert_overlap)
    warn_or_refuse(r, "model.moe.shared_expert_overlap", "is disabled: the model has no experts",
                   diagnostics);
  if (l.ep == 1 && r.comm_overlap.moe_dispatch_chunks > 1)
    warn_or_refuse(r, "comm_overlap.moe_dispatch_chunks",
                   "is disabled: experts are not spread over ranks (ep_size 1)", diagnostics);
  if (l.ep > 1) check_expert_ranks(r, l, diagnostics);
}

}  // namespace mtrain::plan
