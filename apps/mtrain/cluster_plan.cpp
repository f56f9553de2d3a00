#include "cluster_plan.h"

#include <utility>

#include "apps/prepare.h"
#include "base/error.h"
#include "commands.h"
#include "interchange/config.h"
#include "interchange/continued_model.h"
#include "interchange/export.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "plan/rules/rules.h"
#include "plan/rules/unsupported.h"
#include "recipe/load/find_recipe.h"
#include "recipe/load/mistakes.h"

namespace mtrain {

namespace {

const char* place_of_mistakes(const Diagnostics& diagnostics, const std::string& cluster) {
  bool in_cluster = false, in_recipe = false;
  for (const recipe::Diagnostic& d : diagnostics.sorted())
    if (d.severity == recipe::Severity::error)
      (d.location.source == cluster ? in_cluster : in_recipe) = true;
  return !in_cluster ? "in the recipe"
         : in_recipe ? "in the recipe and the cluster file"
                     : "in the cluster file";
}

}  // namespace

ClusterPlan plan_on_cluster(const ClusterPlanWords& words) {
  Diagnostics diagnostics;
  const std::vector<std::string> folders = folders_of_recipes();
  const std::string path = recipe::find_recipe(words.recipe, folders, diagnostics),
                    cluster_path = plan::find_cluster(words.cluster, folders, diagnostics);
  recipe::throw_mistakes(diagnostics, "on the command line");
  plan::Cluster cluster = plan::read_cluster(cluster_path, diagnostics);
  int64_t world = words.world_size.value_or(cluster.nodes_are_auto ? 0 : cluster.gpus());
  plan::Machine machine;
  machine.dry_run = true;
  const std::string saved = interchange::continued_model(path, words.overrides, false);
  const auto load = [&](const std::vector<std::string>& settings, Diagnostics& mistakes) {
    return plan::load_recipe(interchange::model_source(), path, settings, mistakes, world, machine,
                             saved);
  };
  std::vector<std::string> settings = words.overrides;
  if (!diagnostics.has_errors()) {
    Diagnostics ignored;
    const Recipe recipe = load(settings, ignored);
    const std::vector<std::string> more = plan::settings_for(cluster, recipe);
    settings.insert(settings.begin(), more.begin(), more.end());
    plan::grow_cluster(cluster, world > 0 ? world : plan::layout_of(recipe, 0).world, diagnostics);
    world = words.world_size.value_or(cluster.gpus());
  }
  const bool cluster_is_right = !diagnostics.has_errors();
  Recipe recipe = load(settings, diagnostics);
  if (saved.empty()) interchange::check_folder_model(recipe, diagnostics);
  plan::check_supported(recipe, diagnostics);
  if (cluster_is_right) plan::check_cluster(cluster, recipe, world, diagnostics);
  recipe::throw_mistakes(diagnostics, place_of_mistakes(diagnostics, cluster.source));
  const int64_t vocabulary = vocabulary_of_plan(recipe);
  RunPlan plan = plan::make_plan(recipe, world, vocabulary);
  return {.cluster = std::move(cluster),
          .recipe = std::move(recipe),
          .source = {.models = &interchange::model_source(),
                     .path = path,
                     .settings = settings,
                     .world = world,
                     .machine = machine,
                     .saved_model = saved},
          .plan = std::move(plan),
          .vocabulary = vocabulary,
          .diagnostics = std::move(diagnostics)};
}

}  // namespace mtrain
