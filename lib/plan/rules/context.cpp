// Rules of context parallelism, and of several documents in one sequence.
#include <algorithm>

#include <fmt/format.h>

#include "plan/rules/rules.h"
#include "recipe/model_spec.h"

namespace mtrain::plan {
namespace {

bool uses(const Recipe& r, ContextMethod type) {
  const auto& types = r.distributed.cp_comm_type;
  return std::find(types.begin(), types.end(), type) != types.end();
}

// Returns how many of `total` heads one tp rank has. If there are fewer heads than ranks, several
// ranks have a copy of the same head.
int64_t heads_per_rank(int64_t total, int64_t tp) { return std::max<int64_t>(1, total / tp); }

void check_heads(const Recipe& r, const Layout& l, int64_t ranks, const char* type,
                 const char* what, Diagnostics& diagnostics) {
  const int64_t heads = heads_per_rank(r.model.num_attention_heads, l.tp);
  const int64_t kv = heads_per_rank(r.model.kv_heads(), l.tp);
  diagnostics.require(
      heads % ranks == 0,
      {"distributed.cp_comm_type", "distributed.cp_size", "model.num_attention_heads"},
      fmt::format("{} gives heads to ranks, but the {} heads of a tp rank are not "
                  "divisible by {} {}",
                  type, heads, what, ranks),
      "use p2p or all_gather, or change the sizes");
  if (heads % ranks != 0) return;
  diagnostics.require(
      kv % ranks == 0,
      {"distributed.cp_comm_type", "distributed.cp_size", "model.num_query_groups"},
      fmt::format("{} gives heads to ranks, but the {} key-value heads of a tp rank are "
                  "not divisible by {} {}",
                  type, kv, what, ranks),
      "use p2p or all_gather, or change the sizes");
}

void check_hierarchy(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const auto& sizes = r.distributed.hierarchical_context_parallel_sizes;
  const char* field = "distributed.hierarchical_context_parallel_sizes";
  if (!sizes.empty())
    diagnostics.require(!r.distributed.use_decentralized_pg,
                        {"distributed.use_decentralized_pg", field},
                        "decentralized process groups have no hierarchical levels",
                        "set use_decentralized_pg: false, or remove the sizes");
  if (l.cp == 1 || !uses(r, ContextMethod::a2a_p2p)) {
    if (!sizes.empty() && l.cp == 1)
      diagnostics.warn(field, "is ignored because cp_size is 1", "remove it, or set cp_size");
    else if (!sizes.empty())
      diagnostics.warn(field, "is ignored because no layer uses a2a+p2p",
                       "set distributed.cp_comm_type: a2a+p2p, or remove it");
    return;
  }
  diagnostics.require(!sizes.empty(), {field, "distributed.cp_comm_type"},
                      "a2a+p2p needs the sizes of its two levels",
                      fmt::format("set {}: [a, b] with a x b = cp_size {}", field, l.cp));
  if (sizes.empty()) return;
  int64_t product = 1;
  std::string text;
  for (int64_t s : sizes) {
    product = std::min<int64_t>(product * std::min<int64_t>(s, 1 << 20), int64_t(1) << 40);
    text += (text.empty() ? "" : " x ") + std::to_string(s);
  }
  diagnostics.require(sizes.size() == 2, {field},
                      fmt::format("has {} levels, a2a+p2p has two", sizes.size()),
                      "give the size of the all-to-all first, then that of the ring");
  diagnostics.require(product == l.cp, {field, "distributed.cp_size"},
                      fmt::format("{} = {} is not cp_size {}", text, product, l.cp),
                      "the product of the levels must be cp_size");
  check_heads(r, l, sizes[0], "a2a+p2p", "its first level", diagnostics);
}

// Checks that no layer with a window uses a ring. A single word in cp_comm_type is for all layers.
void check_windows(const Recipe& r, Diagnostics& diagnostics) {
  const auto& types = r.distributed.cp_comm_type;
  const bool list = types.size() > 1;
  if (!r.model.window_size) return;
  if (list && int64_t(types.size()) != r.model.num_layers) return;
  const spec::ModelSpec model = recipe::model_spec(r.model);
  std::vector<int64_t> refused;
  for (int64_t layer = 0; layer < r.model.num_layers; ++layer) {
    const ContextMethod type = types[list ? size_t(layer) : 0];
    const bool ring = type == ContextMethod::p2p || type == ContextMethod::a2a_p2p;
    if (ring && model.layer(layer).grouped().window > 0) refused.push_back(layer);
  }
  std::string layers;
  if (!refused.empty() && int64_t(refused.size()) < r.model.num_layers)
    layers = fmt::format(" (layer{} {})", refused.size() > 1 ? "s" : "", fmt::join(refused, ", "));
  diagnostics.require(
      refused.empty(), {"distributed.cp_comm_type", "model.window_size"},
      "p2p and a2a+p2p pass keys around a ring, which a sliding window does not "
      "allow" +
          layers,
      layers.empty() ? "use all_gather or a2a" : "use all_gather or a2a for layers with a window");
}

}  // namespace

void validate_context(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const auto& types = r.distributed.cp_comm_type;
  if (types.size() != 1)
    diagnostics.require(int64_t(types.size()) == r.model.num_layers,
                        {"distributed.cp_comm_type", "model.num_layers"},
                        fmt::format("{} entries for {} layers", types.size(), r.model.num_layers),
                        "give one word for all layers, or one entry per layer");
  check_hierarchy(r, l, diagnostics);
  if (l.cp == 1) return;
  diagnostics.require(
      by_document(r) || r.dataset.seq_length % (2 * l.cp) == 0,
      {"dataset.seq_length", "distributed.cp_size"},
      fmt::format("seq_length {} is not a multiple of 2 x cp_size = {}", r.dataset.seq_length,
                  2 * l.cp),
      fmt::format("use {}; each rank holds two chunks of a sequence",
                  nearest_multiples(r.dataset.seq_length, sequence_multiple(r, l))));
  if (uses(r, ContextMethod::a2a)) check_heads(r, l, l.cp, "a2a", "cp_size", diagnostics);
  check_windows(r, diagnostics);
}

void validate_packing(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const recipe::PackedSequenceConfig& packs = r.packed_sequence;
  const int64_t size = packs.packed_sequence_size;
  if (size == 0) {
    const auto ignored = [&](bool here, const char* field) {
      if (here)
        warn_or_refuse(r, field, "is ignored: packed_sequence_size is 0, so nothing is packed",
                       diagnostics);
    };
    ignored(packs.packing_strategy != PackingStrategy::first_fit,
            "packed_sequence.packing_strategy");
    ignored(packs.max_packs.has_value(), "packed_sequence.max_packs");
    return;
  }
  // The packs of a micro-batch follow each other in one sequence, whose tokens have 32-bit numbers.
  constexpr int64_t kMaxTokens = int64_t{1} << 30;
  diagnostics.require(
      l.micro_batch <= kMaxTokens / size,
      {"packed_sequence.packed_sequence_size", "train.micro_batch_size",
       "distributed.pipeline.pp_microbatch_size"},
      fmt::format("a micro-batch of {} packs of {} tokens has more than {} tokens", l.micro_batch,
                  size, kMaxTokens),
      fmt::format("use packs of at most {} tokens, or a micro_batch_size of at most {}",
                  kMaxTokens / l.micro_batch, kMaxTokens / size));
  if (r.model.max_position_embeddings)
    diagnostics.require(
        size <= *r.model.max_position_embeddings,
        {"packed_sequence.packed_sequence_size", "model.max_position_embeddings"},
        fmt::format("a document may take all of a pack's {} tokens, which is more than "
                    "max_position_embeddings {}",
                    size, *r.model.max_position_embeddings),
        "shorten the packs or raise model.max_position_embeddings");
  if (l.cp > 1)
    diagnostics.require(size % (2 * l.cp) == 0,
                        {"packed_sequence.packed_sequence_size", "distributed.cp_size"},
                        fmt::format("{} is not a multiple of 2 x cp_size = {}", size, 2 * l.cp),
                        fmt::format("use {}", nearest_multiples(size, 2 * l.cp)));
  if (l.cp > 1)
    diagnostics.resolved(
        "packed_sequence.packed_sequence_size",
        fmt::format("documents are padded to multiples of 2 x cp_size = {}{}", 2 * l.cp,
                    r.distributed.sequence_parallel && l.tp > 1
                        ? fmt::format(", and a rank's share of a pack to one of tp_size {}", l.tp)
                        : ""));
}

}  // namespace mtrain::plan
