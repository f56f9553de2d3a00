#include "plan/cuda_graphs.h"

#include <initializer_list>
#include <optional>

#include <fmt/core.h>

#include "plan/options/recipe_options.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

namespace {

using Off = OverlapRow::Off;

// A property of the run that rules graphs out, with the reason. The first one that applies is
// reported.
struct Obstacle {
  bool here;
  const char* why;
  Off off = Off::idle;
};

std::optional<Obstacle> first_of(std::initializer_list<Obstacle> obstacles) {
  for (const Obstacle& o : obstacles)
    if (o.here) return o;
  return std::nullopt;
}

// Whether parameters and gradients are sharded, and only a step's last micro-batch reduces.
bool deferred_fsdp2(const Recipe& r) {
  return r.distributed.strategy == recipe::Strategy::fsdp2 && r.distributed.defer_fsdp_grad_sync;
}

std::optional<Obstacle> obstacle(const Recipe& r, const Layout& l) {
  const bool shared = l.gradient_ranks() > 1, asked = r.train.enable_cuda_graph.value_or(false);
  return first_of({
      {r.train.device != recipe::DeviceChoice::cuda, "train.device is not cuda"},
      {l.pp > 1, "pipeline ranks exchange messages between micro-batches"},
      // Recorded calls of NCCL have not run on a GPU, so `auto` does not use them.
      {l.tp > 1 && !asked, "tp ranks communicate within a micro-batch, which only true records"},
      {l.cp > 1 && !asked, "cp ranks communicate within a micro-batch, which only true records"},
      {l.ep > 1 && !r.model.moe.pad_expert_input_to_capacity,
       "the host waits for the numbers of rows that ep ranks send to each other's experts"},
      {l.ep > 1, "ep ranks communicate within a micro-batch"},
      {by_document(r), "packed documents end at different positions in each micro-batch",
       Off::contradicts},
      {shared && shard_level(r) >= ShardLevel::gradients && !deferred_fsdp2(r),
       "gradients are sharded, and each micro-batch reduces them; fsdp2 with defer_fsdp_grad_sync "
       "reduces them in the last one only"},
      {shared && deferred_fsdp2(r) && !asked,
       "micro-batches gather sharded parameters, which only true records"},
      {r.model.mtp_num_layers > 0,
       "multi-token prediction (model.mtp_num_layers) is not recorded yet", Off::contradicts},
      {r.peft.on(), "adapters (peft.dim) are not recorded yet", Off::contradicts},
      {r.debug.trace.has_value(), "debug.trace shows every launch", Off::contradicts},
      {!fault_options(r).empty(), "debug.fault looks for a launch by its name", Off::contradicts},
  });
}

std::optional<Obstacle> full_step_obstacle(const Layout& l) {
  return first_of({
      {l.world > 1, "the ranks communicate between a step's micro-batches and its update"},
  });
}

CudaGraphs resolve_micro_batches(const Recipe& r, const Layout& l, const Overlap& o) {
  CudaGraphs g{.known = r.train.device == recipe::DeviceChoice::cuda};
  const auto& asked = r.train.enable_cuda_graph;
  const auto off = [&](std::string why, Off kind) {
    g.on = false;
    g.off = asked.value_or(false) ? kind : Off::no;
    g.why = std::move(why);
    return g;
  };
  if (const auto found = obstacle(r, l)) return off(found->why, found->off);
  // The first micro-batch of a step waits for parameters that are gathered after the update. The
  // gradients of the last micro-batch are reduced bucket by bucket during its backward.
  const bool sharded = l.gradient_ranks() > 1 && deferred_fsdp2(r);
  g.first = o.overlap_param_gather || sharded ? 1 : 0;
  g.end = l.micro_batches - (o.overlap_grad_reduce || sharded ? 1 : 0);
  if (g.first >= g.end) {
    g.first = g.end = 0;
    return off(fmt::format("{} overlaps with a gather of parameters or a reduction of gradients",
                           l.micro_batches == 1
                               ? "a step's only micro-batch"
                               : fmt::format("each of a step's {} micro-batches", l.micro_batches)),
               Off::idle);
  }
  if (!asked.value_or(true)) return off("train.enable_cuda_graph is false", Off::no);
  g.on = true;
  g.why = g.end - g.first == l.micro_batches
              ? "every micro-batch"
              : fmt::format("micro-batches {} to {} of {}, the others communicate", g.first + 1,
                            g.end, l.micro_batches);
  g.communicates = l.tp > 1 || l.cp > 1 || sharded;
  if (sharded) g.why += ", with the gathers of their parameters";
  if (l.tp > 1 || l.cp > 1)
    g.why += fmt::format(", with the communication of {} ranks", l.cp == 1   ? "tp"
                                                                 : l.tp == 1 ? "cp"
                                                                             : "tp and cp");
  return g;
}

}  // namespace

CudaGraphs resolve_cuda_graphs(const Recipe& r, const Layout& l, const Overlap& o) {
  CudaGraphs g = resolve_micro_batches(r, l, o);
  if (r.train.cuda_graph_scope != recipe::GraphScope::full_iteration) return g;
  const auto found = g.on ? full_step_obstacle(l) : Obstacle{true, g.why.c_str()};
  g.full_step = !found;
  if (g.full_step) {
    g.why = l.step_micro_batches() == 1
                ? "a step's micro-batch is one, its update another"
                : fmt::format("a step's {} micro-batches are one, its update another",
                              l.step_micro_batches());
    return g;
  }
  g.full_step_off = found->off;
  g.full_step_why = found->why;
  if (g.on) g.why += fmt::format("; not a whole step: {}", g.full_step_why);
  return g;
}

std::string print_cuda_graphs(const CudaGraphs& g) {
  return fmt::format("{}: {}", g.on ? "on" : "off", g.why);
}

}  // namespace mtrain::plan
