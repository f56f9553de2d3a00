#include "apps/prepare.h"

#include <filesystem>

#include "apps/sample_tokens.h"
#include "base/log.h"
#include "base/usable_cores.h"
#include "interchange/config.h"
#include "interchange/continued_model.h"
#include "interchange/export.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "plan/rules/rules.h"
#include "plan/rules/unsupported.h"
#include "recipe/load/find_recipe.h"

namespace mtrain {

void tell(const Diagnostics& diagnostics) {
  for (const recipe::Severity severity : {recipe::Severity::warning, recipe::Severity::resolved})
    for (const recipe::Diagnostic& d : diagnostics.sorted())
      if (d.severity == severity)
        severity == recipe::Severity::warning ? log::warn(d.str()) : log::info(d.str());
}

std::vector<std::string> folders_of_recipes() {
  return recipe::recipe_folders(std::filesystem::read_symlink("/proc/self/exe"));
}

Prepared prepare(const TrainOptions& o, const Preparation& p) {
  Prepared ready{.world = o.world_size.value_or(o.runs() || p.launched ? p.ranks : 0)};
  const std::vector<std::string> settings = o.settings();
  const std::string path = recipe::find_recipe(o.recipe, folders_of_recipes(), ready.diagnostics);
  ready.diagnostics.throw_if_errors();
  plan::Machine machine = p.machine;
  machine.dry_run = !o.runs() && !p.launched;
  machine.cores = usable_cores();
  ready.saved_model = interchange::continued_model(path, settings, p.restarted);
  ready.recipe = plan::load_recipe(interchange::model_source(), path, settings, ready.diagnostics,
                                   ready.world, machine, ready.saved_model);
  if (ready.saved_model.empty()) interchange::check_folder_model(ready.recipe, ready.diagnostics);
  interchange::check_consolidated(ready.recipe, ready.diagnostics);
  if (o.runs() || o.dry_run) plan::check_supported(ready.recipe, ready.diagnostics);
  if (!machine.dry_run) plan::check_machine(ready.recipe, machine, ready.diagnostics);
  if (o.runs() && p.finds_files)
    plan::check_files(interchange::without_lost_tokenizer(ready.recipe, ready.saved_model),
                      ready.diagnostics);
  if (o.runs() && p.finds_files) check_sample_files(ready.recipe, ready.diagnostics);
  ready.diagnostics.throw_if_errors();
  ready.source = {.models = &interchange::model_source(),
                  .path = path,
                  .settings = settings,
                  .world = ready.world,
                  .machine = machine,
                  .saved_model = ready.saved_model};
  return ready;
}

}  // namespace mtrain
