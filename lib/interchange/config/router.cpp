// Checks routers like DeepSeek-V3's in Hugging Face's config.json.
#include <initializer_list>
#include <string>
#include <utility>

#include <fmt/core.h>

#include "base/strings.h"
#include "interchange/config/file.h"

namespace mtrain::interchange {

namespace {

constexpr const char* kCorrect = "download the folder again, or correct its config.json";

// Refuses a config.json without one of these values: transformers cannot build a model without it.
bool require_counts(ConfigFile& file,
                    std::initializer_list<std::pair<const char*, int64_t>> counts) {
  for (const auto& [key, value] : counts) {
    if (value >= 1) continue;
    file.refuse(fmt::format("{}: {} must be at least 1", file.path(), key), kCorrect);
    return false;
  }
  return true;
}

}  // namespace

void read_router(ConfigFile& file) {
  const auto number = [&](const char* field) { return int64_t(file.field_number(field)); };
  const int64_t experts = number("model.moe.num_experts"), chosen = number("model.moe.router_topk"),
                shared = number("model.moe.num_shared_experts"),
                groups = number("model.moe.num_groups"), best = number("model.moe.group_topk");
  if (!require_counts(file, {{"n_routed_experts", experts},
                             {"num_experts_per_tok", chosen},
                             {"n_shared_experts", shared},
                             {"n_group", groups},
                             {"topk_group", best}}))
    return;
  if (experts % groups != 0)
    return file.refuse(fmt::format("{}: n_group {} does not divide the {} experts of "
                                   "n_routed_experts",
                                   file.path(), groups, experts),
                       kCorrect);
  const int64_t within = experts / groups * best;
  if (best > groups || chosen > within)
    return file.refuse(fmt::format("{}: {} experts for a token (num_experts_per_tok) cannot come "
                                   "from {} of {} groups (topk_group, n_group) of {} experts",
                                   file.path(), chosen, best, groups, experts / groups),
                       kCorrect);
  // transformers ranks a group by the sum of its best two scores. The recipe's default is the sum
  // of `chosen / best` scores, as in Megatron. If all groups are selected, the ranks do not matter.
  if (best < groups && chosen / best != 2)
    file.set("model.moe.group_score_topk", file.scalar("2"), "topk_group", false);
  const Node* normalized = file.field("model.moe.norm_topk_prob");
  if (chosen == 1 && normalized && to_lower(normalized->text) == "true")
    file.refuse(
        fmt::format("{}: norm_topk_prob makes the weight of a token's only expert 1", file.path()),
        "its router could not learn; such models cannot be trained yet");
}

void read_limited_router(ConfigFile& file) {
  const auto experts = int64_t(file.field_number("model.moe.num_experts")),
             chosen = int64_t(file.field_number("model.moe.router_topk"));
  if (!require_counts(
          file, {{"n_routed_experts", experts},
                 {"num_experts_per_tok", file.given("num_experts_per_tok") ? chosen : 0},
                 {"n_shared_experts", int64_t(file.field_number("model.moe.num_shared_experts"))}}))
    return;
  const Node* method = file.given("topk_method");
  const std::string name = method ? method->text : "greedy";
  if (name == "greedy") return;  // it reads no groups
  if (name != "group_limited_greedy")
    return file.refuse(fmt::format("{}: topk_method is {}, and only greedy or group_limited_greedy "
                                   "is supported",
                                   file.path(), name),
                       "such models cannot be trained yet");
  const auto groups = file.number("n_group", 0), best = file.number("topk_group", 0);
  if (!groups || !best) return;
  if (*groups < 1 || *best < 1 || *best > *groups || experts % *groups != 0 ||
      chosen > experts / *groups * *best)
    return file.refuse(fmt::format("{}: group_limited_greedy cannot choose {} experts for a token "
                                   "(num_experts_per_tok) from {} of {} groups (topk_group, "
                                   "n_group) of {} experts (n_routed_experts)",
                                   file.path(), chosen, *best, *groups, experts),
                       kCorrect);
  file.set("model.moe.num_groups", file.scalar(std::to_string(*groups)), "n_group", false);
  file.set("model.moe.group_topk", file.scalar(std::to_string(*best)), "topk_group", false);
  file.set("model.moe.group_score_topk", file.scalar("1"), "topk_method", false);
}

void read_mlp_types(ConfigFile& file) {
  const Node* types = file.given("mlp_layer_types");
  const auto counted = int64_t(file.field_number("model.moe.first_dense_layers"));
  if (!types) {
    // transformers does not read first_k_dense_replace, and other programs do.
    if (counted != 1)
      file.refuse(
          fmt::format("{}: first_k_dense_replace is {}, and mlp_layer_types, which must say "
                      "so too, is absent",
                      file.path(), counted),
          kCorrect);
    return;
  }
  const int64_t layers = file.number_of_layers();
  Node dense;
  dense.kind = Node::Kind::list;
  bool known = types->kind == Node::Kind::list && int64_t(types->items.size()) == layers;
  int64_t first = 0;
  for (int64_t l = 0; known && l < layers; ++l) {
    const std::string& type = types->items[size_t(l)].text;
    known = type == "dense" || type == "sparse";
    if (type != "dense") continue;
    dense.items.push_back(file.scalar(std::to_string(l)));
    if (first == l) ++first;
  }
  if (!known)
    return file.refuse(
        fmt::format("{}: mlp_layer_types must be a list of `dense` and `sparse` for {} layers",
                    file.path(), layers),
        kCorrect);
  if (file.given("first_k_dense_replace") && counted != first)
    return file.refuse(fmt::format("{}: first_k_dense_replace is {}, and mlp_layer_types begins "
                                   "with {} dense layers",
                                   file.path(), counted, first),
                       kCorrect);
  file.set("model.moe.first_dense_layers", file.scalar(std::to_string(first)), "mlp_layer_types",
           false, true);
  if (int64_t(dense.items.size()) > first)
    file.set("model.moe.dense_layers", dense, "mlp_layer_types", false, true);
}

}  // namespace mtrain::interchange
