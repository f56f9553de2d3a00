#include "plan/plan_trial.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/error.h"
#include "plan/load_recipe.h"
#include "plan/rules/unsupported.h"

namespace mtrain::plan {

void Change::add(const Change& more) {
  for (const std::string& setting : more.settings)
    if (std::ranges::find(settings, setting) == settings.end()) settings.push_back(setting);
  if (more.world > 0) world = more.world;
}

std::string Change::words() const {
  std::string text;
  for (const std::string& setting : settings) {
    // Shells expand a leading tilde, and brackets.
    const bool quoted = setting.starts_with("~") || setting.find('[') != std::string::npos;
    text += fmt::format("{}{}", text.empty() ? "" : " ",
                        quoted ? fmt::format("'{}'", setting) : setting);
  }
  if (world > 0) text += fmt::format("{}--world-size {}", text.empty() ? "" : " ", world);
  return text;
}

std::optional<Trial> plan_trial(const RecipeSource& source, const Change& change, int64_t vocab) {
  Diagnostics diagnostics;
  std::vector<std::string> settings = source.settings;
  settings.insert(settings.end(), change.settings.begin(), change.settings.end());
  const int64_t world = change.world > 0 ? change.world : source.world;
  try {
    Recipe r = source.text.empty() ? load_recipe(*source.models, source.path, settings, diagnostics,
                                                 world, source.machine, source.saved_model)
                                   : load_recipe_text(*source.models, source.text, source.path,
                                                      settings, diagnostics, world, source.machine);
    if (!diagnostics.has_errors()) check_supported(r, diagnostics);
    if (diagnostics.has_errors()) return std::nullopt;
    RunPlan plan = make_plan(r, world, vocab);
    return Trial{std::move(r), std::move(plan)};
  } catch (const UserError&) {  // a file that the changed recipe needs
    return std::nullopt;
  }
}

}  // namespace mtrain::plan
