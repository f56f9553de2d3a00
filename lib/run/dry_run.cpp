#include "run/dry_run.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "base/terminal.h"
#include "base/text_table.h"
#include "plan/exchange_forecast.h"
#include "plan/expert_traffic.h"
#include "run/async_choice.h"
#include "run/start_banner.h"

namespace mtrain::run {

namespace {

using Cells = std::vector<std::string>;
constexpr auto kLeft = TableColumn::Align::left;

// Returns a text such as "0 1 2 3" or "0 8 16 24 ... 120".
std::string rank_list(const std::vector<int64_t>& ranks) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks.size() > kShown && i >= 4 && i + 1 < ranks.size()) {
      if (i == 4) text += " ...";
      continue;
    }
    text += fmt::format("{}{}", i ? " " : "", ranks[i]);
  }
  return text;
}

class MeshTable {
 public:
  explicit MeshTable(const RunPlan& plan) : device_(plan.mesh), moe_(plan.moe_mesh()) {
    const plan::Layout& l = plan.layout;
    row("tp", device_, {mesh::Axis::tp}, "matrices of a layer");
    row("cp", device_, {mesh::Axis::cp}, "a sequence");
    const auto& levels = plan.context.levels;
    if (l.cp > 1)
      for (size_t i = 0; i < levels.size(); ++i)
        line(fmt::format("  cp level {}", i), levels[i], l.world / levels[i],
             hierarchical_cp_group(device_, 0, levels, i), "a2a+p2p");
    row("dp", device_, mesh::dp_axes(), "samples");
    row("dp_replicate", device_, {mesh::Axis::dp_replicate}, "copies of the shards");
    if (l.dp_replicate > 1) row("dp_shard", device_, {mesh::Axis::dp_shard}, "shards");
    if (l.cp > 1) {
      if (plan.data_parallel.shards >= plan::ShardLevel::optimizer)
        row("dp_shard_cp", device_, mesh::dp_shard_cp_axes(), "shards of parameters");
      row("dp_cp", device_, mesh::dp_cp_axes(), "sums of gradients");
    }
    row("pp", device_, {mesh::Axis::pp}, "layers");
    if (l.ep > 1) row("ep", moe_, {mesh::Axis::ep}, "experts");
    if (l.ep > 1 || l.undivided_experts())
      row("ep_shard", moe_, {mesh::Axis::ep_shard}, "copies of the experts");
  }
  std::string text(int width) const {
    const std::vector<TableColumn> columns{{"group", 14, kLeft},
                                           {"ranks", 7},
                                           {"groups", 9},
                                           {"rank 0's", 30, kLeft},
                                           {"for", 0, kLeft}};
    return rows_.empty() ? "" : text_table(columns, rows_, width);
  }

 private:
  void row(const char* name, const mesh::Mesh& mesh, const mesh::Axes& axes, const char* purpose) {
    const int64_t size = mesh.size(axes);
    if (size > 1) line(name, size, mesh.world() / size, mesh.group(0, axes), purpose);
  }
  void line(const std::string& name, int64_t size, int64_t groups,
            const std::vector<int64_t>& ranks, const char* purpose) {
    rows_.push_back(
        {name, std::to_string(size), std::to_string(groups), rank_list(ranks), purpose});
  }

  mesh::Mesh device_, moe_;
  std::vector<Cells> rows_;
};

int64_t layers_of(const plan::Layout& l, const std::vector<int64_t>& stages) {
  int64_t n = 0;
  for (const int64_t s : stages) n += l.layers_of_stage[size_t(s)];
  return n;
}

// Returns a line per pipeline rank; for more than 8, only the first, the fullest and the last.
std::string memory_table(const RunPlan& plan, int width) {
  const plan::Layout& l = plan.layout;
  const bool on_gpu = plan.fullest().workspace > 0, by_nccl = plan.fullest().nccl > 0;
  std::vector<TableColumn> columns{{"pp rank", 9, kLeft}, {"layers", 7},  {"size", 8},
                                   {"params", 10},        {"grads", 10},  {"optimizer", 10},
                                   {"activations", 12},   {"logits", 10}, {"buffers", 10}};
  if (on_gpu) columns.push_back({"workspace", 11});
  if (by_nccl) columns.push_back({"nccl", 10});
  columns.push_back({"total", 10});
  std::vector<Cells> rows;
  for (int64_t rank = 0; rank < l.pp; ++rank) {
    const bool shown =
        l.pp <= 8 || rank == 0 || rank == l.pp - 1 || &plan.memory[size_t(rank)] == &plan.fullest();
    if (!shown) continue;
    const plan::MemoryEstimate& m = plan.memory[size_t(rank)];
    Cells cells{std::to_string(rank),
                std::to_string(layers_of(l, stages_of_rank(plan.schedule_shape, rank))),
                human_count(m.parameters)};
    for (const auto bytes : {m.params, m.grads, m.optimizer, m.activations, m.logits, m.buffers})
      cells.push_back(human_bytes(bytes));
    if (on_gpu) cells.push_back(human_bytes(m.workspace));
    if (by_nccl) cells.push_back(human_bytes(m.nccl));
    cells.push_back(human_bytes(m.total()));
    rows.push_back(std::move(cells));
  }
  std::string out = text_table(columns, rows, width);
  const plan::DataParallelOptions& dp = plan.data_parallel;
  if (dp.shards >= plan::ShardLevel::gradients && dp.defer_reduce && l.step_micro_batches() > 1)
    out += wrap_words(
        "grads: full gradients accumulate until the last micro-batch; with "
        "distributed.defer_fsdp_grad_sync=false, a rank keeps only its shard, and communicates in "
        "every micro-batch\n",
        width);
  if (!plan.text.logits.empty()) out += wrap_words("logits: " + plan.text.logits + "\n", width);
  if (on_gpu)
    out += wrap_words(
        "workspace: temporary memory of kernels; cuDNN's part is what its engines for Hopper "
        "need\n",
        width);
  if (by_nccl)
    out += wrap_words(
        "nccl: what NCCL keeps for the groups of a rank, an estimate from its defaults; groups of "
        "one stream share\n",
        width);
  return out;
}

std::string pipeline_text(const RunPlan& plan) {
  const plan::Layout& l = plan.layout;
  const plan::ScheduleShape& shape = plan.schedule_shape;
  const auto [fewest, most] =
      std::minmax_element(l.layers_of_stage.begin(), l.layers_of_stage.end());
  const std::string layers =
      *fewest == *most ? fmt::format("{}", *most) : fmt::format("{} to {}", *fewest, *most);
  return fmt::format(
      "{}: {} stages of {} layers, {} per rank; {}{} micro-batches; rank 0 holds up to {} chunks; "
      "idle {:.1f} % of a step {}",
      plan.text.schedule, l.stages, layers, l.stages_per_rank,
      l.flushes > 1 ? fmt::format("{} flushes of ", l.flushes) : "", l.micro_batches,
      chunks_in_flight(shape, 0), 100 * bubble_fraction(shape),
      shape.table ? "for F = I = W" : "by formula");
}

std::string layout_text(const RunPlan& plan) {
  const plan::Layout& l = plan.layout;
  std::string text =
      fmt::format("{}: pp {} x dp {} x cp {} x tp {}", plan.text.strategy, l.pp, l.dp, l.cp, l.tp);
  if (l.dp_replicate > 1)
    text += fmt::format(", dp = {} copies of {} shards", l.dp_replicate, l.dp_shard);
  if (l.ep > 1) text += fmt::format(", experts over ep {} by {}", l.ep, plan.text.experts);
  if (plan.tensor.sequence_parallel && l.tp > 1) text += ", sequence parallel";
  return text;
}

std::string exchanges_text(const plan::ExchangeForecast& f) {
  schedule::Exposure all = f.paired;
  all.exchanges += f.unpaired.exchanges, all.exposed += f.unpaired.exposed;
  const auto share = [](const schedule::Exposure& e) { return 100 * e.share(); };
  std::string text = fmt::format("{:.0f} % exposed", share(all));
  if (f.paired.exchanges > 0)
    text += fmt::format(" ({:.0f} % in pairs of passes)", share(f.paired));
  return text + fmt::format(
                    ", which makes a step's passes {:.2f} times as long: from FLOPs, bytes and "
                    "the usual rates of such hardware",
                    f.without > 0 ? f.step / f.without : 1);
}

// Returns the parts with their names in `mtrain schedule`.
std::vector<std::pair<std::string, schedule::PartCost>> costs_of_parts(
    const schedule::PassCosts& c) {
  return {{"attention", c.attention}, {"route", c.route},       {"experts", c.experts},
          {"shared", c.shared},       {"exchange", c.exchange}, {"head", c.head}};
}

// Returns a time with two significant digits, or without decimals: "0.31", "1.0", "3650".
std::string milliseconds(double seconds) {
  const double ms = 1e3 * seconds;
  if (ms > 0 && ms < 0.001) return "<0.001";
  return ms == 0 ? "0" : ms < 9.95 ? fmt::format("{:#.2g}", ms) : fmt::format("{:.0f}", ms);
}

// Returns the expected times of the parts of a micro-batch's passes, for the reader.
std::string costs_text(const schedule::PassCosts& costs) {
  std::string text;
  for (const auto& [part, c] : costs_of_parts(costs)) {
    if (c.forward + c.backward + c.weights == 0) continue;
    text += fmt::format("{}{} {} forward", text.empty() ? "" : "; ", part, milliseconds(c.forward));
    const bool computes = part != "exchange";
    if (c.backward > 0)
      text += fmt::format(", {} {}", milliseconds(c.backward), computes ? "input" : "backward");
    if (c.weights > 0) text += fmt::format(", {} weight gradients", milliseconds(c.weights));
  }
  return text + " (ms)";
}

// Returns the same costs as options of `mtrain schedule`. All digits are kept, since they decide
// the order of passes.
std::string estimates_text(const schedule::PassCosts& costs) {
  std::string text;
  for (const auto& [part, c] : costs_of_parts(costs))
    text += fmt::format("{}--estimate {}={:.9g},{:.9g},{:.9g}", text.empty() ? "" : " ", part,
                        1e3 * c.forward, 1e3 * c.backward, 1e3 * c.weights);
  return text;
}

// Returns "0.31 s" or "3 min 10 s"; long times in hours alone.
std::string save_duration(double seconds) {
  constexpr double kHour = 3600, kLong = 100;
  if (seconds < 9.95) return fmt::format("{:.2g} s", seconds);
  return seconds < kLong * kHour ? human_duration(seconds)
                                 : fmt::format("{:.0f} h", seconds / kHour);
}

// Returns the host memory of copies from which checkpoints are written; empty without such.
std::string staged_text(const plan::CheckpointOptions& c, const plan::CheckpointCost& cost) {
  using Async = plan::CheckpointOptions::Async;
  if (c.async == Async::off || !c.saves_during_training()) return "";
  const int64_t ranks = cost.ranks_per_node;
  return fmt::format(
      ", written while training continues{}: a copy takes up to {} of host memory{}{}",
      c.async == Async::automatic ? " where memory allows" : "", human_bytes(cost.staged),
      ranks == 1 ? ""
                 : fmt::format(" on a rank, {} on a host of {}",
                               human_bytes(cost.staged * double(ranks)), ranks),
      c.consolidated == plan::CheckpointOptions::Consolidated::every ? form_text(ranks) : "");
}

// Describes a checkpoint: its size, the time of a save, and how often to save.
std::string checkpoint_text(const RunPlan& plan, const plan::SaveHardware& hardware) {
  const plan::CheckpointCost cost = checkpoint_cost(plan, hardware);
  std::string text = human_bytes(cost.bytes) + staged_text(plan.checkpoint, cost);
  if (!cost.seconds)
    return text +
           "; with hardware.disk_gbps and hardware.mtbf_hours also the time of a save, and "
           "how often to save";
  text += fmt::format("; a save takes {} at {:.3g} GB/s", save_duration(*cost.seconds),
                      *hardware.disk_bytes_per_s * 1e-9);
  if (!cost.interval_s) return text + "; with hardware.mtbf_hours also how often to save";
  return text + fmt::format(
                    "; saving every {} of training loses least, {:.2g} % of the time, if one of "
                    "{} node{} fails every {}",
                    save_duration(*cost.interval_s), 100 * cost.lost, cost.nodes,
                    cost.nodes == 1 ? "" : "s", save_duration(*cost.mtbf_s));
}

// Describes the memory or disk that copies on the hosts themselves take.
std::string local_text(const RunPlan& plan, const plan::SaveHardware& hardware) {
  const plan::LocalCopyOptions& local = plan.checkpoint.local;
  const plan::CheckpointCost cost = checkpoint_cost(plan, hardware);
  const int64_t replicas = std::min<int64_t>(local.replicas, cost.nodes - 1);
  const int64_t steps = plan::LocalCopyOptions::kept_steps(replicas);
  const double part = cost.staged * double(cost.ranks_per_node);
  return fmt::format(
      "every {} step{} in {}: {} steps take up to {} on a host{}, besides a copy of {} in host "
      "memory",
      local.every_steps, local.every_steps == 1 ? "" : "s", local.dir, steps,
      human_bytes(double(steps) * part * double(1 + replicas)),
      replicas > 0 ? fmt::format(" with {} replica{}", replicas, replicas == 1 ? "" : "s") : "",
      human_bytes(part));
}

// Explains a number of ranks that the user did not give.
std::string fewest_text(const RunPlan& plan, const std::string& fit) {
  const plan::Layout& l = plan.layout;
  std::string sizes;
  const auto add = [&](const char* axis, int64_t size) {
    if (size > 1) sizes += fmt::format("{}{} {}", sizes.empty() ? "" : " x ", axis, size);
  };
  add("tp", l.tp), add("pp", l.pp), add("cp", l.cp), add("dp", l.dp);
  if (l.ep > 1) sizes += fmt::format("; ep {}", l.ep);
  return fmt::format(
      "{}: the fewest that the sizes{} and the batch of {} allow{}; --world-size N "
      "plans for others",
      l.world, sizes.empty() ? "" : fmt::format(" ({})", sizes), plan.train.global_batch_size, fit);
}

}  // namespace

std::string dry_run_report(const RunPlan& plan, const DryRunOptions& options) {
  const plan::Layout& l = plan.layout;
  std::vector<observe::BannerRow> rows = plan_rows(plan);
  const bool fewest = options.fewest_ranks && l.world > 1;
  const std::string fit = options.fit.empty() ? "" : "; " + options.fit;
  if (!options.device.empty()) rows.push_back({"device", options.device + (fewest ? "" : fit)});
  if (fewest) rows.push_back({"ranks", fewest_text(plan, fit)});
  if (const std::string epochs = epochs_text(plan.train); !epochs.empty())
    rows.push_back({"steps", epochs});
  rows.push_back({"layout", layout_text(plan)});
  if (plan.checkpoint.saves()) rows.push_back({"checkpoint", checkpoint_text(plan, options.disks)});
  if (plan.checkpoint.local.on()) rows.push_back({"local copies", local_text(plan, options.disks)});
  if (l.pp > 1) rows.push_back({"pipeline", pipeline_text(plan)});
  for (const std::string& line : options.advice) rows.push_back({"advice", line});
  const double sent = plan::expert_bytes_per_step(plan);
  const bool over_tp = l.expert_tp > 1 && plan.tensor.sequence_parallel;
  if (sent > 0)
    rows.push_back(
        {"experts", fmt::format("{} of a layer's {} on a rank{}, which sends {} a step over {}",
                                plan.model.experts()->count / l.ep, plan.model.experts()->count,
                                l.expert_tp > 1 ? fmt::format(", 1/{} of each", l.expert_tp) : "",
                                human_bytes(sent),
                                l.ep == 1 ? "tp"
                                : over_tp ? "ep and tp"
                                          : "ep")});
  if (const auto forecast = plan::exchange_forecast(plan)) {
    rows.push_back({"exchanges", exchanges_text(*forecast)});
    rows.push_back({"expected", costs_text(*plan.pass_costs)});
    rows.push_back({"in digits", "mtrain schedule " + estimates_text(*plan.pass_costs)});
  }
  std::string out = banner(fmt::format("dry run on {} rank{}", l.world, l.world == 1 ? "" : "s"),
                           rows, options.width);
  if (const std::string table = MeshTable(plan).text(options.table_width); !table.empty())
    out += "\n" + table;
  out += "\nmemory of one rank, estimated\n" + memory_table(plan, options.table_width);
  std::vector<observe::BannerRow> overlap;
  for (const OverlapRows which :
       {OverlapRows::active, OverlapRows::asked_and_off, OverlapRows::others})
    for (observe::BannerRow& row : overlap_rows(plan.overlap, which))
      overlap.push_back(std::move(row));
  return out + "\n" +
         banner("overlap (feature: requested -> effective, reason)", overlap, options.width);
}

}  // namespace mtrain::run
