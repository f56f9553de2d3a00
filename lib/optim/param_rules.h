// What the optimizer does with each parameter: the recipe's settings, and its groups' changes of
// them.
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
  bool muon = false;   // AdamW updates the others
  float lr_scale = 1;  // times the learning rate of the schedule
  float weight_decay = 0;
  bool operator==(const ParamRule&) const = default;
};
// Returns the place of a rule in the list, which it is added to if it is new.
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
  // The group of each name that was asked for, since rules are needed in every step.
  mutable std::unordered_map<std::string, std::optional<size_t>> groups_;
};

}  // namespace mtrain::optim
