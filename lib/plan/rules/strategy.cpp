// Rules of data-parallel strategies, tensor and expert parallelism: what each can be combined with,
// and the sizes that must divide.
#include <algorithm>

#include <fmt/core.h>

#include "base/strings.h"
#include "plan/rules/rules.h"
#include "recipe/schema/schema.h"
#include "schedule/catalog.h"

namespace mtrain::plan {
namespace {

const char* kUseFsdp2 = "use strategy: fsdp2, or leave this at its default";

void check_ddp(const Recipe& r, Diagnostics& diagnostics) {
  const auto& d = r.distributed;
  const auto exclude = [&](const char* field, bool asked, const std::string& what) {
    diagnostics.require(!asked, {field, "distributed.strategy"},
                        fmt::format("strategy ddp keeps the full model on every rank; it does not "
                                    "support {}",
                                    what),
                        kUseFsdp2);
  };
  exclude("distributed.tp_size", d.tp_size > 1, fmt::format("tp_size {}", d.tp_size));
  exclude("distributed.pp_size", d.pp_size > 1, fmt::format("pp_size {}", d.pp_size));
  exclude("distributed.cp_size", d.cp_size > 1, fmt::format("cp_size {}", d.cp_size));
  exclude("distributed.ep_size", d.ep_size > 1, fmt::format("ep_size {}", d.ep_size));
  exclude("distributed.sequence_parallel", d.sequence_parallel, "sequence_parallel");
}

void check_megatron_fsdp(const Recipe& r, Diagnostics& diagnostics) {
  const auto& d = r.distributed;
  const auto exclude = [&](const char* field, bool asked, const std::string& what) {
    diagnostics.require(!asked, {field, "distributed.strategy"},
                        fmt::format("strategy megatron_fsdp does not support {}", what), kUseFsdp2);
  };
  exclude("distributed.pp_size", d.pp_size > 1, fmt::format("pp_size {}", d.pp_size));
  exclude("distributed.ep_size", d.ep_size > 1, fmt::format("ep_size {}", d.ep_size));
  exclude("distributed.sequence_parallel", d.sequence_parallel, "sequence_parallel");
}

// A field that some strategies alone read.
struct OwnedRow {
  const recipe::SchemaRow* row;
  std::vector<std::string> owners;
};

// Searches for layouts check thousands of recipes, so the list is made once.
const std::vector<OwnedRow>& owned_rows() {
  static const std::vector<OwnedRow> rows = [] {
    std::vector<OwnedRow> all;
    for (const recipe::SchemaRow& row : recipe::schema_rows())
      if (const std::string owners = strategies_of(row); !owners.empty())
        all.push_back({&row, split(owners, ' ')});
    return all;
  }();
  return rows;
}

// A field that only another strategy reads would silently do nothing.
void check_owners(const Recipe& r, Diagnostics& diagnostics) {
  const std::string strategy(enum_name(r.distributed.strategy));
  for (const auto& [row, owners] : owned_rows()) {
    if (!r.given(row->path)) continue;
    // Writing none or auto takes a setting back, which every strategy allows.
    bool owned = row->show(r) == "none" || row->show(r) == "auto" ||
                 std::ranges::count(owners, strategy) > 0;
    // A replicate size of 1 is "off" under every strategy.
    if (row->path == "distributed.dp_replicate_size" && r.distributed.dp_replicate_size == 1)
      owned = r.distributed.strategy != recipe::Strategy::ddp;
    std::string list;
    for (size_t i = 0; i < owners.size(); ++i)
      list += (i == 0 ? "" : i + 1 == owners.size() ? " and " : ", ") + owners[i];
    diagnostics.require(owned, {row->path, "distributed.strategy"},
                        fmt::format("has no effect with strategy {}: only {} {} it", strategy, list,
                                    owners.size() == 1 ? "reads" : "read"),
                        fmt::format("remove it, or set distributed.strategy: {}", owners[0]));
  }
}

void check_data_parallel_overlap(const Recipe& r, Diagnostics& diagnostics) {
  const auto& d = r.ddp;
  const bool gather = d.overlap_param_gather.value_or(false);
  diagnostics.require(!gather || d.overlap_grad_reduce.value_or(true),
                      {"ddp.overlap_param_gather", "ddp.overlap_grad_reduce"},
                      "overlap_param_gather needs overlap_grad_reduce, which is switched off",
                      "set overlap_grad_reduce: true, or overlap_param_gather: false");
  // check_owners() refuses these fields under fsdp2 and ddp.
  const recipe::Strategy s = r.distributed.strategy;
  if (shard_level(r) >= ShardLevel::optimizer ||
      (s != recipe::Strategy::megatron_ddp && s != recipe::Strategy::megatron_fsdp))
    return;
  for (const auto& [field, asked] : {std::pair{"ddp.overlap_param_gather", gather},
                                     {"ddp.overlap_param_gather_with_optimizer_step",
                                      d.overlap_param_gather_with_optimizer_step}})
    diagnostics.require(
        !asked, {field}, "gathers what the optimizer's shards have updated, but it is not sharded",
        s == recipe::Strategy::megatron_ddp ? "set ddp.use_distributed_optimizer: true"
                                            : "set distributed.zero_dp_strategy to 1 or more");
}

void check_sequence_parallel(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  if (r.distributed.sequence_parallel && r.distributed.tp_size == 1 &&
      r.distributed.strategy != recipe::Strategy::ddp &&
      r.distributed.strategy != recipe::Strategy::megatron_fsdp)
    warn_or_refuse(r, "distributed.sequence_parallel",
                   "is off because tp_size is 1: there is nothing to shard", diagnostics);
  // The packs of a micro-batch are one sequence.
  const bool packed = r.packed_sequence.packed_sequence_size > 0;
  const int64_t parts = l.tp * l.cp, packs = packed ? l.micro_batch : 1, S = sample_length(r);
  // Documents that ranks share are padded to a length that divides. validate_context and
  // validate_packing report lengths that 2 x cp_size does not divide.
  if (!r.distributed.sequence_parallel || l.tp == 1) return;
  if (data_form(r) == recipe::DataForm::rows) return;  // a micro-batch of rows is padded
  if (l.cp > 1 && (packed || S % (2 * l.cp) != 0)) return;
  const char* field = packed ? "packed_sequence.packed_sequence_size" : "dataset.seq_length";
  const std::string product =
      packs == 1 ? "" : fmt::format("micro-batch({}) x pack({}) = ", packs, S);
  diagnostics.require(
      packs * S % parts == 0, {field, "distributed.sequence_parallel"},
      fmt::format("sequence_parallel cuts a sequence into tp_size({}) x cp_size({}) = {} parts, "
                  "which do not divide its length {}{}",
                  l.tp, l.cp, parts, product, packs * S),
      fmt::format("use {}", nearest_multiples(S, sequence_multiple(r, l))));
}

// Returns a hint with the values of tp_size that divide heads and width. If the world allows some
// of these values, the hint names only those.
std::string use_tp(const Recipe& r, const Layout& l) {
  const auto& m = r.model;
  constexpr int64_t kMaxTp = 64;  // larger values are hardly useful
  std::vector<int64_t> sizes, here;
  for (int64_t tp = 2; tp <= std::min(m.num_attention_heads, kMaxTp); ++tp) {
    if (m.num_attention_heads % tp != 0 || m.ffn_size() % tp != 0 ||
        (m.kv_heads() % tp != 0 && tp % m.kv_heads() != 0))
      continue;
    sizes.push_back(tp);
    if (l.world % (tp * l.pp * l.cp) == 0) here.push_back(tp);
  }
  if (sizes.empty()) return "use tp_size 1: no larger one divides heads and width";
  if (!here.empty()) return fmt::format("use tp_size {}", either(here));
  return fmt::format("use tp_size {}, and a number of ranks that is a multiple of it",
                     either(sizes));
}

// Heads and the ffn width must divide over the ranks of tp. The vocabulary is padded to a size that
// divides.
void check_tensor_parallel(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const auto& m = r.model;
  // If tp_size does not divide the heads, only that is reported: its hint names sizes that all
  // rules allow.
  const bool heads = m.num_attention_heads % l.tp == 0;
  if (!heads)
    refuse({"distributed.tp_size", "model.num_attention_heads"},
           fmt::format("tp_size {} does not divide the {} attention heads", l.tp,
                       m.num_attention_heads),
           use_tp(r, l), diagnostics);
  if (heads && m.ffn_size() % l.tp != 0)
    refuse({"distributed.tp_size", "model.ffn_hidden_size"},
           fmt::format("tp_size {} does not divide the ffn_hidden_size of {}", l.tp, m.ffn_size()),
           fmt::format("{}, or set model.ffn_hidden_size to {}", use_tp(r, l),
                       nearest_multiples(m.ffn_size(), l.tp)),
           diagnostics);
  if (heads && m.kv_heads() % l.tp != 0 && l.tp % m.kv_heads() != 0)
    refuse({"distributed.tp_size", "model.num_query_groups"},
           fmt::format("tp_size {} is neither a divisor nor a multiple of the {} key-value heads",
                       l.tp, m.kv_heads()),
           use_tp(r, l), diagnostics);
  const int64_t padded = m.vocab_size > 0 ? padded_vocab(m.vocab_size, l.tp) : 0;
  if (padded != m.vocab_size)
    diagnostics.resolved("model.vocab_size",
                         fmt::format("{} is padded to {}, a multiple of 128{}", m.vocab_size,
                                     padded, l.tp > 1 ? fmt::format(" x tp_size {}", l.tp) : ""));
}

}  // namespace

void validate_strategy(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  if (r.distributed.strategy == recipe::Strategy::ddp) check_ddp(r, diagnostics);
  if (r.distributed.strategy == recipe::Strategy::megatron_fsdp)
    check_megatron_fsdp(r, diagnostics);
  check_owners(r, diagnostics);
  check_data_parallel_overlap(r, diagnostics);
  check_sequence_parallel(r, l, diagnostics);
  if (l.world == 1 && r.given("distributed.strategy") && shard_level(r) >= ShardLevel::optimizer)
    diagnostics.resolved("distributed.strategy",
                         "a single rank holds everything; nothing is sharded");
  check_tensor_parallel(r, l, diagnostics);
}

}  // namespace mtrain::plan
