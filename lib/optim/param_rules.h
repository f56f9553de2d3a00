// The settings with which the optimizer updates each parameter: those of the recipe, as changed by
// its optimizer.groups.
#pragma once
#include <optional>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/param/parameters.h"
#include "plan/options/optimizer_options.h"

namespace mtrain::optim {

// Neighbouring parameters with equal rules are updated together.
struct ParamRule {
  bool muon = false;   // whether Muon updates the parameter; otherwise AdamW does
  float lr_scale = 1;  // multiplies the learning rate of the schedule
  float weight_decay = 0;
  bool operator==(const ParamRule&) const = default;
};
// Returns the place of a rule in the list. Adds the rule to the list if it is new.
int number_of(std::vector<ParamRule>& rules, const ParamRule& rule);

class ParamRules {
 public:
  explicit ParamRules(const plan::OptimizerOptions& options);
  // The first group whose expression is found in the parameter's name decides.
  ParamRule of(const model::ParamSpec& p) const;
  // Returns for each group whether it decides the rule of one of these parameters.
  std::vector<bool> used_groups(const std::vector<model::Parameter*>& params) const;

 private:
  std::optional<size_t> group_of(const std::string& name) const;

  const plan::OptimizerOptions options_;
  std::vector<std::regex> matches_;  // of the groups
  // A cache: the group of each name that of() was called with. Every step calls it.
  mutable std::unordered_map<std::string, std::optional<size_t>> groups_;
};

}  // namespace mtrain::optim
