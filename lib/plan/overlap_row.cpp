#include "plan/overlap_row.h"

namespace mtrain::plan {

namespace {

// Adds the feature's row and returns whether it takes effect.
bool add_row(std::vector<OverlapRow>& table, const char* field, const std::string& asked,
             bool wanted, bool by_name, const Condition& possible) {
  const bool effective = wanted && possible.ok();
  std::string reason = !possible.ok() || wanted ? possible.why.str()
                       : by_name                ? "switched off"
                                                : "not asked for";
  table.push_back({field, asked, effective ? "true" : "false", std::move(reason),
                   by_name && wanted ? possible.off : OverlapRow::Off::no, effective});
  return effective;
}

}  // namespace

Condition all(std::initializer_list<Need> needs, Reason why) {
  for (const auto& need : needs)
    if (!need.ok) return {need.off, need.otherwise};
  return {OverlapRow::Off::no, std::move(why)};
}

bool decide(std::vector<OverlapRow>& table, const char* field, const recipe::Auto<bool>& asked,
            const Condition& possible, bool auto_on) {
  return add_row(table, field, asked ? (*asked ? "true" : "false") : "auto",
                 asked.value_or(auto_on), asked.has_value(), possible);
}

bool decide(std::vector<OverlapRow>& table, const char* field, bool asked,
            const Condition& possible) {
  return add_row(table, field, asked ? "true" : "false", asked, asked, possible);
}

}  // namespace mtrain::plan
