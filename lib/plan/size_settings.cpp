#include "plan/size_settings.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/error.h"
#include "base/strings.h"
#include "recipe/schema/schema.h"

namespace mtrain::plan {

namespace {

const char* size_field(LayoutSize which) {
  switch (which) {
    case LayoutSize::tp: return "distributed.tp_size";
    case LayoutSize::pp: return "distributed.pp_size";
    case LayoutSize::cp: return "distributed.cp_size";
    case LayoutSize::ep: return "distributed.ep_size";
  }
  throw BugError("a size of a layout");
}

}  // namespace

std::vector<std::string> size_settings(const Recipe& r, LayoutSize which, int64_t size) {
  const auto& d = r.distributed;
  std::vector<std::string> out{fmt::format("{}={}", size_field(which), size)};
  const char* sequence = "distributed.sequence_parallel";
  if (which == LayoutSize::tp && size == 1 && d.sequence_parallel)
    out.push_back(fmt::format("{}=false", sequence));
  // Without it, each rank of tp keeps the norms' inputs of all tokens.
  if (which == LayoutSize::tp && size > 1 && !r.given(sequence) &&
      d.strategy != recipe::Strategy::megatron_fsdp)
    out.push_back(fmt::format("{}=true", sequence));
  if (which == LayoutSize::pp && size == 1 && d.vpp_size) out.emplace_back("~distributed.vpp_size");
  // Under fsdp2 a pipeline needs its section.
  if (which == LayoutSize::pp && size > 1 && d.pp_size == 1 &&
      !r.given("distributed.pipeline.pp_schedule") && !d.pipeline.pp_schedule_csv)
    out.emplace_back("distributed.pipeline.pp_schedule=1f1b");
  if (which != LayoutSize::ep && d.dp_size) out.emplace_back("~distributed.dp_size");
  return out;
}

std::vector<std::string> strategy_settings(const Recipe& r, recipe::Strategy strategy) {
  const std::string name(enum_name(strategy));
  std::vector<std::string> out{"distributed.strategy=" + name};
  for (const recipe::SchemaRow& row : recipe::schema_rows()) {
    const std::string owners = strategies_of(row), value = row.show(r);
    if (owners.empty() || !r.given(row.path) || value == "none" || value == "auto") continue;
    const std::vector<std::string> readers = split(owners, ' ');
    if (std::ranges::find(readers, name) == readers.end()) out.push_back("~" + row.path);
  }
  return out;
}

std::vector<std::string> fsdp2_settings(const Recipe& r) {
  return strategy_settings(r, recipe::Strategy::fsdp2);
}

}  // namespace mtrain::plan
