#include "optim/param_rules.h"

#include <algorithm>

namespace mtrain::optim {

int number_of(std::vector<ParamRule>& rules, const ParamRule& rule) {
  const auto at = std::ranges::find(rules, rule);
  if (at != rules.end()) return int(at - rules.begin());
  rules.push_back(rule);
  return int(rules.size()) - 1;
}

ParamRules::ParamRules(const plan::OptimizerOptions& options) : options_(options) {
  for (const plan::OptimizerGroup& g : options_.groups) matches_.emplace_back(g.match);
}

ParamRule ParamRules::of(const model::ParamSpec& p) const {
  const auto group = group_of(p.name);
  const plan::OptimizerGroup g = group ? options_.groups[*group] : plan::OptimizerGroup();
  ParamRule rule{.muon = options_.muon.on && p.role == TensorRole::matrix && !g.adamw,
                 .weight_decay = p.decays() ? float(options_.weight_decay) : 0};
  // The group's own rate replaces the one that follows from the optimizer of the parameter.
  if (options_.muon.on && !rule.muon) rule.lr_scale = float(options_.muon.others_lr_scale);
  if (g.lr_over_peak) rule.lr_scale = float(*g.lr_over_peak);
  if (g.lr_scale) rule.lr_scale *= float(*g.lr_scale);
  if (g.weight_decay) rule.weight_decay = float(*g.weight_decay);
  return rule;
}

std::optional<size_t> ParamRules::group_of(const std::string& name) const {
  const auto known = groups_.find(name);
  if (known != groups_.end()) return known->second;
  const auto at = std::ranges::find_if(
      matches_, [&](const std::regex& match) { return std::regex_search(name, match); });
  const auto group =
      at == matches_.end() ? std::nullopt : std::optional(size_t(at - matches_.begin()));
  groups_.emplace(name, group);
  return group;
}

std::vector<bool> ParamRules::used_groups(const std::vector<model::Parameter*>& params) const {
  std::vector<bool> used(matches_.size());
  for (const model::Parameter* p : params)
    if (const auto i = group_of(p->name)) used[*i] = true;
  return used;
}

}  // namespace mtrain::optim
