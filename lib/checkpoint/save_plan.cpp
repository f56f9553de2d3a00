#include "checkpoint/save_plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "mesh/mesh.h"
#include "optim/param_rules.h"
#include "plan/checkpoint_cost.h"
#include "plan/process_groups.h"

namespace mtrain::checkpoint {

namespace {

using model::Parameter;
using model::ParamSpec;
using model::ShardSpec;

// Elements that this rank owns, and how many ranks of tensor parallelism have them, too.
struct OwnedRun {
  int64_t here;
  StridedRun full;
  int64_t copies, copy;
};

// Adds the part of a matrix's columns. `begin` counts this rank's elements of all matrices, which
// follow each other in the same way as their rows do.
void add_columns(const ParamSpec& p, int64_t begin, int64_t count, std::vector<OwnedRun>& runs) {
  const int64_t own = p.columns(), full = own * p.shard.ranks,
                matrix_rows = p.part_shape().count() / full;
  StridedRun all{.first = p.experts.rank * matrix_rows * full + p.shard.rank * own,
                 .count = own,
                 .times = matrix_rows,
                 .stride = full};
  if (own == full) all = {.first = all.first, .count = matrix_rows * full};
  for (const StridedRun& r : part_of(all, begin, count)) {
    runs.push_back({begin, r, 1, 0});
    begin += r.total();
  }
}

std::vector<OwnedRun> owned_runs(const ParamSpec& p, int64_t begin, int64_t count) {
  std::vector<OwnedRun> runs;
  if (p.shard.dim == ShardSpec::Dim::columns) {
    add_columns(p, begin, count, runs);
    return runs;
  }
  const int64_t columns = p.columns(), before = p.experts.rank * p.part_shape().count();
  for (const model::RowShard& r : p.rows_here()) {
    const int64_t from = std::max(begin, r.here * columns),
                  to = std::min(begin + count, (r.here + r.count) * columns);
    if (from >= to) continue;
    const int64_t full = before + r.full * columns + from - r.here * columns;
    OwnedRun* last = runs.empty() ? nullptr : &runs.back();
    if (last && last->full.end() == full && last->here + last->full.count == from &&
        last->copies == r.replicas)
      last->full.count += to - from;
    else
      runs.push_back({from, {.first = full, .count = to - from}, r.replicas, r.replica});
  }
  return runs;
}

// The elements that the same ranks own. `member` is this rank's number among these.
struct Sharers {
  bool experts, in_fp32, shared_table;
  int64_t ranks, member;
  auto operator<=>(const Sharers&) const = default;  // NOLINT(modernize-use-nullptr): false alarm
};

struct Shareable {
  const Parameter* parameter;
  OwnedRun run;
  Sharers sharers;
};

// Keeps every second block of the elements, since the other blocks are the other stage's. Blocks
// are small against what a rank owns, however the two stages divide the table.
void add_blocks(const Parameter& p, const OwnedRun& run, int64_t block,
                const std::function<void(const OwnedRun&)>& add) {
  const int64_t begin = run.full.first, end = run.full.end();
  for (int64_t b = begin / block; b * block < end; ++b) {
    if ((b % 2 == 1) != p.copy) continue;
    const int64_t from = std::max(begin, b * block), to = std::min(end, (b + 1) * block);
    add({run.here + from - begin, {.first = from, .count = to - from}, run.copies, run.copy});
  }
}

int64_t table_block(const Parameter& p) {
  constexpr int64_t kBlocksOfOwner = 64;
  const int64_t owners = int64_t(p.shard.ranks) * p.unit->sharding.ranks;
  return std::max<int64_t>(1, p.full_shape().count() / (kBlocksOfOwner * owners));
}

std::vector<Shareable> shareable(model::ParamStore& params, const CopiesOfUnits& copies) {
  std::vector<Shareable> all;
  for (const model::ParamUnit* unit : params.units()) {
    const bool experts = unit->id.kind == model::UnitKind::experts;
    const Copies& of_unit = experts ? copies.experts : copies.dense;
    for (const model::Piece& piece : unit->pieces)
      for (const Parameter* p : piece.params) {
        const bool shared =
            copies.shared_table && p->rows >= 0 && unit->id.kind == model::UnitKind::embedding;
        const auto add = [&](const OwnedRun& r) {
          all.push_back({p,
                         r,
                         {.experts = experts,
                          .in_fp32 = unit->in_fp32,
                          .shared_table = shared,
                          .ranks = of_unit.ranks * r.copies,
                          .member = of_unit.rank * r.copies + r.copy}});
        };
        for (const model::OwnedPart& part : owned_parts(*p))
          for (const OwnedRun& r : owned_runs(*p, part.in_param, part.count))
            shared ? add_blocks(*p, r, table_block(*p), add) : add(r);
      }
  }
  return all;
}

// Adds this rank's share of the elements of one kind. Ranks that share elements walk them in the
// same order, and each of them writes a range of equal length.
void add_shares(const std::vector<Shareable>& all, const SavedKind& kind, size_t number,
                std::vector<PlannedRun>& planned) {
  std::map<Sharers, int64_t> totals, passed;
  for (const Shareable& s : all)
    if (kind.has(*s.parameter)) totals[s.sharers] += s.run.full.total();
  for (const Shareable& s : all) {
    if (!kind.has(*s.parameter)) continue;
    const int64_t total = totals[s.sharers], count = s.run.full.total();
    int64_t& before = passed[s.sharers];
    const int64_t begin = std::max(total * s.sharers.member / s.sharers.ranks - before, int64_t(0)),
                  end = std::min(total * (s.sharers.member + 1) / s.sharers.ranks - before, count);
    before += count;
    if (begin >= end) continue;
    int64_t here = s.run.here + begin;
    for (const StridedRun& r : part_of(s.run.full, begin, end - begin)) {
      planned.push_back({s.parameter, number, here, r});
      here += r.total();
    }
  }
}

Copies copies_along(const mesh::Mesh& mesh, int64_t rank, const mesh::Axes& axes) {
  return {.ranks = mesh.size(axes), .rank = mesh.index_in_group(rank, axes)};
}

}  // namespace

CopiesOfUnits copies_of_units(const plan::RunPlan& plan, int64_t rank) {
  const plan::Layout& l = plan.layout;
  CopiesOfUnits copies{.shared_table = plan::shares_table(plan)};
  if (plan.data_parallel.shards != plan::ShardLevel::nothing) {
    copies.dense = copies_along(plan.mesh, rank, {mesh::Axis::dp_replicate});
    copies.experts = copies.dense;
    return copies;
  }
  copies.dense = copies_along(plan.mesh, rank, mesh::dp_cp_axes());
  copies.experts = l.ep == 1 && !l.undivided_experts()
                       ? copies.dense
                       : copies_along(plan.moe_mesh(), rank, mesh::expert_copy_axes());
  return copies;
}

std::vector<SavedKind> saved_kinds(const plan::RunPlan& plan) {
  const auto all = [](const ParamSpec&) { return true; };
  const auto trained = [](const ParamSpec& p) { return !p.frozen; };
  if (plan::saves_adapters_alone(plan)) return {{"", trained}, {".m", trained}, {".v", trained}};
  if (!plan.optimizer.muon.on) return {{"", all}, {".m", trained}, {".v", trained}};
  const auto rules = std::make_shared<optim::ParamRules>(plan.optimizer);
  const auto muon = [rules](const ParamSpec& p) { return rules->of(p).muon; };
  const auto others = [rules](const ParamSpec& p) { return !rules->of(p).muon; };
  return {{"", all}, {".momentum", muon}, {".m", others}, {".v", others}};
}

std::vector<StridedRun> full_runs(const ParamSpec& p, int64_t begin, int64_t count) {
  std::vector<StridedRun> runs;
  for (const OwnedRun& r : owned_runs(p, begin, count)) runs.push_back(r.full);
  return runs;
}

std::vector<PlannedRun> save_plan(model::ParamStore& params, const CopiesOfUnits& copies,
                                  const std::vector<SavedKind>& kinds) {
  const std::vector<Shareable> all = shareable(params, copies);
  std::vector<PlannedRun> planned;
  for (size_t kind = 0; kind < kinds.size(); ++kind) add_shares(all, kinds[kind], kind, planned);
  return planned;
}

}  // namespace mtrain::checkpoint
