#include "run/start_banner.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/strings.h"
#include "ops/tuning.h"
#include "plan/device_text.h"

namespace mtrain::run {

namespace {

std::string parameters_text(const RunPlan& plan) {
  const plan::ModelParameters& p = plan.parameters;
  std::string text = human_count(p.total());
  if (p.adapters > 0) text = fmt::format("trained {} of {}", human_count(p.adapters), text);
  if (p.moe_layers > 0) text += fmt::format(", {} active per token", human_count(p.active()));
  // In packed samples attention costs less, since it is limited to each document.
  const char* most = plan.dataset.by_document() ? "at most " : "";
  return fmt::format("{} ({} in matmuls), {}{} FLOPs per token", text,
                     human_count(p.active() - p.looked_up()), most,
                     human_count(plan.token_cost.flops(plan.sample_length)));
}

std::string batch_text(const RunPlan& plan) {
  const plan::Layout& l = plan.layout;
  const int64_t samples = plan.train.global_batch_size;
  const double tokens = double(samples) * double(plan.sample_length);
  const std::string size = plan.dataset.rows ? fmt::format("{} rows a step", samples)
                                             : fmt::format("{} x {} = {} tokens a step", samples,
                                                           plan.sample_length, human_count(tokens));
  return fmt::format("{}, in {}{} micro-batch{} of {}{}", size,
                     l.flushes > 1 ? fmt::format("{} flushes of ", l.flushes) : "", l.micro_batches,
                     l.micro_batches == 1 ? "" : "es", l.micro_batch,
                     l.dp > 1 ? fmt::format(" on each of {} data-parallel ranks", l.dp) : "");
}

// Returns how experts are chosen instead of by the router; empty if the router chooses them.
std::string route_text(const RunPlan& plan) {
  switch (plan.experts.pattern) {
    case RoutePattern::none: return "";
    case RoutePattern::balanced: return "in equal numbers to all experts (debug.route)";
    case RoutePattern::zipf: return "to experts with loads of 1, 1/2, 1/3, ... (debug.route)";
  }
  throw BugError("a pattern of routes");
}

// `device` is the number of bytes of the rank's device; 0: not known.
std::string memory_text(const RunPlan& plan, double device) {
  const plan::MemoryEstimate& m = plan.fullest();
  std::string text;
  if (!plan::MemoryDemand{m.total(), device}.fits())
    text = fmt::format("does not fit the device's {}: ", human_bytes(device));
  text += fmt::format("{} planned{}: parameters {}, gradients {}, optimizer {}, activations {}",
                      human_bytes(m.total()), plan.layout.world > 1 ? " per rank" : "",
                      human_bytes(m.params), human_bytes(m.grads), human_bytes(m.optimizer),
                      human_bytes(m.activations + m.logits));
  if (m.buffers > 0) text += ", buffers " + human_bytes(m.buffers);
  if (m.workspace > 0) text += ", workspace " + human_bytes(m.workspace);
  if (m.nccl > 0) text += ", NCCL about " + human_bytes(m.nccl);
  if (m.per_tenth_of_rows > 0)
    text += fmt::format("; {} more for each 10 % of rows above the mean of ep's ranks",
                        human_bytes(m.per_tenth_of_rows));
  return text;
}

std::string ranks_text(const RunPlan& plan) {
  const plan::Layout& l = plan.layout;
  const std::string context = l.cp == 1 ? "" : fmt::format(", cp by {}", plan.text.context);
  const std::string experts = l.ep == 1 ? "" : fmt::format(", ep by {}", plan.text.experts);
  std::string text =
      fmt::format("{}: tp {}, pp {}, cp {}, ep {}, dp {}; strategy {}{}{}", l.world, l.tp, l.pp,
                  l.cp, l.ep, l.dp, plan.text.strategy, context, experts);
  if (l.pp == 1) return text;
  return text + fmt::format(", {} pipeline ranks of {} stage{} ({})", l.pp, l.stages_per_rank,
                            l.stages_per_rank > 1 ? "s" : "", plan.text.schedule);
}

// Returns the CPUs' arithmetic for bf16 or fp16; empty for GPUs and for fp32.
std::string bf16_text(train::Trainer& t) {
  const auto arithmetic = t.device().bf16_arithmetic();
  if (arithmetic && t.plan().compute_dtype == DType::f16) return "fp16 as fp32";
  if (!arithmetic || t.plan().compute_dtype != DType::bf16) return "";
  switch (*arithmetic) {
    case Bf16Arithmetic::dot_products: return "bf16 by dot products";
    case Bf16Arithmetic::tiles: return "bf16 by AMX tiles";
    default: return "bf16 as fp32";
  }
}

// Returns the optimizer of matrices, and the groups of parameters with other settings; empty if
// AdamW updates all alike.
std::string optimizer_text(const plan::OptimizerOptions& o, const plan::Layout& layout) {
  std::string text;
  if (o.muon.on)
    text = fmt::format(
        "Muon for the matrices of layers{}, {} Newton-Schulz steps in {}; AdamW for the rest",
        o.muon.per_shard && std::max(layout.tp, layout.expert_tp) > 1
            ? " (each rank of tp its part)"
            : "",
        o.muon.ns_steps, o.muon.bf16 ? "bf16" : "fp32");
  if (o.groups.empty()) return text;
  if (text.empty()) text = "AdamW";
  text += "; groups";
  for (const plan::OptimizerGroup& g : o.groups) text += fmt::format(" `{}`", g.match);
  return text;
}

OverlapRows kind_of(const plan::OverlapRow& row) {
  if (row.active) return OverlapRows::active;
  return row.off == plan::OverlapRow::Off::no ? OverlapRows::others : OverlapRows::asked_and_off;
}

const char* overlap_label(OverlapRows which) {
  switch (which) {
    case OverlapRows::active: return "overlap";
    case OverlapRows::asked_and_off: return "turned off";
    case OverlapRows::others: return "others";
  }
  throw BugError("overlap_label");
}

void append(std::vector<observe::BannerRow>& rows, std::vector<observe::BannerRow> more) {
  rows.insert(rows.end(), std::make_move_iterator(more.begin()),
              std::make_move_iterator(more.end()));
}

}  // namespace

std::vector<observe::BannerRow> overlap_rows(const plan::Overlap& overlap, OverlapRows which) {
  std::vector<observe::BannerRow> rows;
  for (const plan::OverlapRow& row : overlap.table) {
    if (which != kind_of(row)) continue;
    std::string label = rows.empty() ? overlap_label(which) : "";
    // Most features belong to these sections. Their names would take half of a narrow line.
    std::string_view field = row.field;
    for (const std::string_view section :
         {"comm_overlap.tp_comm_overlap_cfg.", "comm_overlap.", "distributed."})
      if (field.starts_with(section)) field.remove_prefix(section.size());
    rows.push_back({std::move(label),
                    fmt::format("{}: {} -> {}, {}", field, row.asked, row.effective, row.reason)});
  }
  if (rows.empty() && which == OverlapRows::active)
    rows.push_back({overlap_label(which), "none is active"});
  return rows;
}

std::vector<observe::BannerRow> plan_rows(const RunPlan& plan, double device_memory) {
  std::vector<observe::BannerRow> rows{
      {"model", plan.text.model},         {"parameters", parameters_text(plan)},
      {"precision", plan.text.precision}, {"batch", batch_text(plan)},
      {"recompute", plan.text.recompute}, {"memory", memory_text(plan, device_memory)}};
  if (const std::string optimizer = optimizer_text(plan.optimizer, plan.layout); !optimizer.empty())
    rows.push_back({"optimizer", optimizer});
  if (const std::string route = route_text(plan); !route.empty())
    rows.push_back({"tokens go", route + ": trains nothing useful"});
  if (plan.graphs.known) rows.push_back({"CUDA graphs", print_cuda_graphs(plan.graphs)});
  return rows;
}

std::string epochs_text(const plan::TrainOptions& train) {
  if (!train.epochs) return "";
  const std::string epochs =
      fmt::format("{:g} epoch{}", *train.epochs, *train.epochs == 1 ? "" : "s");
  return train.steps > 0 ? fmt::format("{}: {}", train.steps, epochs)
                         : epochs + " (steps unknown without the data)";
}

std::string measured_text(train::Trainer& t, double peak) {
  const std::string rate =
      peak > 0 ? fmt::format("{:.0f} GFLOP/s fp32 measured", peak / 1e9) : std::string();
  const std::string bf16 = bf16_text(t);
  if (rate.empty() && bf16.empty()) return "";
  return fmt::format("device: {}{}{}", rate, rate.empty() || bf16.empty() ? "" : ", ", bf16);
}

namespace {

std::string trained_text(const RunPlan& plan, const RunStart& start) {
  const std::string weights = start.from.empty()
                                  ? fmt::format("from random weights (seed {})", plan.train.seed)
                                  : fmt::format("from the weights of {}", start.from);
  const plan::ModelParameters& p = plan.parameters;
  if (p.adapters > 0)
    return fmt::format("adapters of {} parameters, {}", human_count(p.adapters), weights);
  return fmt::format("all {} parameters, {}", human_count(p.total()), weights);
}

// Returns which checkpoints are kept; empty if these are the newest, or all.
std::string kept_text(const plan::CheckpointOptions& c) {
  const char* pointed = "; `best` points to the one with the lowest validation loss";
  if (c.keep == 0) return c.keep_best == 0 ? "" : std::string("all are kept") + pointed;
  if (!c.saves() || (c.keep_best == 0 && c.keep_every == 0)) return "";
  std::string text = fmt::format("the {} newest", c.keep);
  if (c.keep_every > 0) text += fmt::format(", multiples of step {}", c.keep_every);
  if (c.keep_best == 0) return text + " are kept";
  return text + fmt::format(" and the {} with the lowest validation loss are kept{}", c.keep_best,
                            pointed);
}

// Returns the samples of all steps, those of earlier starts included.
double samples_of_run(const RunPlan& plan, const RunStart& start) {
  const auto left = std::max<int64_t>(0, start.last_step - start.steps_done);
  return double(start.samples_done) + double(left) * double(plan.train.global_batch_size);
}

std::string rows_text(const std::string& names, const RunPlan& plan, const RunStart& start) {
  return fmt::format("{}: {} rows of at most {} tokens; {} steps make {:.3g} epochs", names,
                     human_count(double(start.samples)), plan.sample_length, start.last_step,
                     samples_of_run(plan, start) / double(start.samples));
}

std::string data_text(const RunPlan& plan, const RunStart& start) {
  std::string names;
  for (const std::string& prefix : plan.dataset.train.prefixes)
    names += (names.empty() ? "" : ", ") + prefix;
  if (plan.dataset.mock_train.samples > 0) names = "random tokens";
  if (const DocumentShare& read = plan.dataset.train.documents; read.end < 1)
    names = fmt::format("{:.4g} % of the documents of {}", 100 * (read.end - read.begin), names);
  if (plan.dataset.rows) return rows_text(names, plan, start);
  const double samples = double(start.samples);
  const double seen = samples_of_run(plan, start);
  return fmt::format("{}: {} samples of {} = {} tokens; {} steps make {:.3g} epochs", names,
                     human_count(samples), plan.sample_length,
                     human_count(samples * double(plan.sample_length)), start.last_step,
                     seen / samples);
}

}  // namespace

std::vector<observe::BannerRow> banner_rows(train::Trainer& t, const RunStart& start) {
  const RunPlan& plan = t.plan();
  const double tokens = samples_of_run(plan, start) * double(plan.sample_length);
  std::vector<observe::BannerRow> rows = plan_rows(plan, double(t.device().memory_bytes()));
  // The run may have turned graphs off since the plan was made.
  if (t.graphs()) rows.back().text = print_cuda_graphs(t.graphs()->plan());
  rows.push_back({"trained", trained_text(plan, start)});
  if (start.samples > 0) rows.push_back({"data", data_text(plan, start)});
  rows.push_back(
      {"steps",
       fmt::format("{}{}, {} tokens in total",
                   start.steps_done < start.last_step
                       ? fmt::format("{} to {}", start.steps_done + 1, start.last_step)
                       : fmt::format("none left of {}", start.last_step),
                   plan.train.epochs ? fmt::format(" (train.epochs={:g})", *plan.train.epochs) : "",
                   human_count(tokens))});
  if (const std::string kept = kept_text(plan.checkpoint); !kept.empty())
    rows.push_back({"checkpoints", kept});
  if (!start.saving.empty()) rows.push_back({"saving", start.saving});
  if (!start.local_copies.empty()) rows.push_back({"local copies", start.local_copies});
  rows.push_back({"device", t.device().description()});
  if (ops::built_for_narrower_cpu(t.device()))
    rows.push_back({"slow build",
                    "this CPU has wider vectors than the build, which another host "
                    "configured with -DMTRAIN_CPU_KERNELS=HOST"});
  rows.push_back({"ranks", ranks_text(plan)});
  if (t.world().size() == 1)
    rows.push_back({"overlap", "one rank: no communication"});
  else
    append(rows, overlap_rows(plan.overlap, OverlapRows::active));
  append(rows, overlap_rows(plan.overlap, OverlapRows::asked_and_off));
  return rows;
}

}  // namespace mtrain::run
