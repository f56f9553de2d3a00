// Checks routers like DeepSeek-V3's in Hugging Face's config.json.
#include <fmt/core.h>

#include "base/strings.h"
#include "interchange/config/file.h"

namespace mtrain::interchange {

void read_router(ConfigFile& file) {
  const auto number = [&](const char* field) { return int64_t(file.field_number(field)); };
  const int64_t experts = number("model.moe.num_experts"), chosen = number("model.moe.router_topk"),
                shared = number("model.moe.num_shared_experts"),
                groups = number("model.moe.num_groups"), best = number("model.moe.group_topk");
  const char* hint = "download the folder again, or correct its config.json";
  // transformers cannot build a model without these values.
  for (const auto& [key, value] : {std::pair{"n_routed_experts", experts},
                                   {"num_experts_per_tok", chosen},
                                   {"n_shared_experts", shared},
                                   {"n_group", groups},
                                   {"topk_group", best}})
    if (value < 1)
      return file.refuse(fmt::format("{}: {} must be at least 1", file.path(), key), hint);
  if (experts % groups != 0)
    return file.refuse(fmt::format("{}: n_group {} does not divide the {} experts of "
                                   "n_routed_experts",
                                   file.path(), groups, experts),
                       hint);
  const int64_t within = experts / groups * best;
  if (best > groups || chosen > within)
    return file.refuse(fmt::format("{}: {} experts for a token (num_experts_per_tok) cannot come "
                                   "from {} of {} groups (topk_group, n_group) of {} experts",
                                   file.path(), chosen, best, groups, experts / groups),
                       hint);
  // transformers ranks a group by the sum of its best two scores, and mtrain by that of its best
  // `chosen / best` scores, as Megatron does. If all groups are selected, the ranks do not matter.
  if (best < groups && chosen / best != 2)
    return file.refuse(
        fmt::format("{}: its groups of experts are ranked by two experts of each, and only "
                    "num_experts_per_tok / topk_group of them, {} / {}, is supported",
                    file.path(), chosen, best),
        "such models cannot be trained yet");
  const Node* normalized = file.field("model.moe.norm_topk_prob");
  if (chosen == 1 && normalized && to_lower(normalized->text) == "true")
    file.refuse(
        fmt::format("{}: norm_topk_prob makes the weight of a token's only expert 1", file.path()),
        "its router could not learn; such models cannot be trained yet");
}

}  // namespace mtrain::interchange
