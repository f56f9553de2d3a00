#include <algorithm>

#include <fmt/core.h>

#include "plan/cuda_graphs.h"
#include "plan/rules/rules.h"
#include "recipe/model_spec.h"

namespace mtrain::plan {
namespace {

void note_latent_module(const Recipe& r, Diagnostics& diagnostics) {
  using Module = recipe::RecomputeModule;
  if (!r.recompute.selects(Module::mla_up_proj)) return;
  const char* field = "recompute.modules";
  if (!r.model.multi_latent_attention)
    return diagnostics.warn(
        field, "mla_up_proj has nothing to recompute: the model has no latent attention",
        "use core_attn, mlp and layernorm");
  const auto& types = r.distributed.cp_comm_type;
  const bool exchanged = std::ranges::any_of(types, [](ContextMethod m) {
    return m == ContextMethod::a2a || m == ContextMethod::a2a_p2p;
  });
  diagnostics.require(
      r.distributed.cp_size == 1 || !exchanged || r.recompute.selects(Module::core_attn),
      {field, "distributed.cp_comm_type"},
      "mla_up_proj saves nothing where attention keeps the heads that a2a has "
      "exchanged",
      "add core_attn to recompute.modules, or choose p2p or all_gather");
}

// Reports which of the listed modules have no effect.
void note_modules(const Recipe& r, Diagnostics& diagnostics) {
  using Module = recipe::RecomputeModule;
  const auto& c = r.recompute;
  const char* field = "recompute.modules";
  if (c.granularity != recipe::RecomputeGranularity::selective) {
    if (c.modules != recipe::RecomputeConfig{}.modules)
      diagnostics.warn(
          field, fmt::format("is not read, because granularity is {}", enum_name(c.granularity)),
          "set granularity: selective, or remove it");
    return;
  }
  const bool experts = r.model.moe.num_experts > 0;
  for (const Module module : {Module::moe, Module::moe_act, Module::shared_experts})
    if (c.selects(module) && !experts)
      diagnostics.warn(
          field,
          fmt::format("{} has nothing to recompute: the model is dense, without experts",
                      enum_name(module)),
          "use core_attn, mlp and layernorm");
  note_latent_module(r, diagnostics);
  if (c.selects(Module::shared_experts) && experts && !r.model.moe.shared_expert_ffn_hidden_size)
    warn_or_refuse(r, field, "shared_experts has nothing to recompute: there is no shared expert",
                   diagnostics);
  if (c.selects(Module::moe_act) && c.selects(Module::moe) && experts)
    warn_or_refuse(r, field, "moe_act adds nothing to moe, which recomputes all of the experts",
                   diagnostics);
  if (c.selects(Module::mlp) && experts && !recipe::model_spec(r.model).dense_mlp())
    warn_or_refuse(r, field,
                   "mlp has nothing to recompute: every layer has experts, which moe and moe_act "
                   "recompute",
                   diagnostics);
  if (c.selects(Module::layernorm) && r.model.qk_layernorm && !c.selects(Module::core_attn))
    diagnostics.warn(field,
                     "layernorm: the norms of queries and keys are computed again only together "
                     "with core_attn, and the outputs of a layer's norms are never kept",
                     "add core_attn, or remove layernorm");
  else if (c.selects(Module::layernorm) && !r.model.qk_layernorm &&
           r.model.norm_placement == recipe::NormPlacement::post)
    warn_or_refuse(r, field,
                   "layernorm has nothing to recompute: the model only has norms of outputs",
                   diagnostics);
  else if (c.selects(Module::layernorm) && !r.model.qk_layernorm)
    diagnostics.resolved(
        field,
        "layernorm: the outputs of a layer's norms are never kept; backward always "
        "computes them again");
}

void validate_recompute(const Recipe& r, Diagnostics& diagnostics) {
  const auto& c = r.recompute;
  const bool full = c.granularity == recipe::RecomputeGranularity::full;
  const int64_t layers = r.model.num_layers + r.model.mtp_layers();
  const char* only_full = "method and num_layers belong to granularity: full";
  diagnostics.require(full || !c.method, {"recompute.method", "recompute.granularity"},
                      fmt::format("is set, but granularity is {}", enum_name(c.granularity)),
                      only_full);
  diagnostics.require(full || !c.num_layers, {"recompute.num_layers", "recompute.granularity"},
                      fmt::format("is set, but granularity is {}", enum_name(c.granularity)),
                      only_full);
  diagnostics.require(
      !full || c.num_layers, {"recompute.num_layers", "recompute.method"},
      "method block needs the number of layers that are recomputed",
      fmt::format("set recompute.num_layers to 1 ... {}, or method: uniform", layers));
  if (full && c.num_layers)
    diagnostics.require(
        *c.num_layers <= layers, {"recompute.num_layers", "model.num_layers"},
        fmt::format("{} is more than the {} layers of the model", *c.num_layers, layers),
        "choose at most the number of layers");
  if (c.granularity == recipe::RecomputeGranularity::selective)
    diagnostics.require(!c.modules.empty(), {"recompute.modules"},
                        "granularity is selective, but no module is listed",
                        "list at least one, such as [core_attn], or set granularity: none");
  note_modules(r, diagnostics);
  if (r.distributed.strategy == recipe::Strategy::megatron_fsdp)
    diagnostics.require(c.granularity != recipe::RecomputeGranularity::selective,
                        {"recompute.granularity", "distributed.strategy"},
                        "strategy megatron_fsdp does not support selective recomputation",
                        "use granularity: full, or strategy: fsdp2");
  if (r.model.moe.num_experts > 0 && r.distributed.ep_size > 1 &&
      r.distributed.moe.ignore_router_for_ac && !full)
    warn_or_refuse(r, "distributed.moe.ignore_router_for_ac",
                   "is ignored: only recompute.granularity full would compute routers again",
                   diagnostics);
}

}  // namespace

void validate_train(const Recipe& r, Diagnostics& diagnostics) {
  validate_recompute(r, diagnostics);
}

void validate_cuda_graphs(const Recipe& r, const Layout& l, const Overlap& overlap,
                          Diagnostics& diagnostics) {
  const CudaGraphs graphs = resolve_cuda_graphs(r, l, overlap);
  report_inactive(r, "train.enable_cuda_graph", graphs.off, graphs.why, diagnostics);
  report_inactive(r, "train.cuda_graph_scope", graphs.full_step_off, graphs.full_step_why,
                  diagnostics);
}

}  // namespace mtrain::plan
