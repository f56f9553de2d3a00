#include <unistd.h>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "apps/prepare.h"
#include "base/error.h"
#include "base/file.h"
#include "base/terminal.h"
#include "base/text_table.h"
#include "commands.h"
#include "interchange/model_source.h"
#include "observe/metric_keys.h"
#include "plan/load_recipe.h"
#include "recipe/load/find_recipe.h"
#include "recipe/print/explain.h"
#include "recipe/print/explain_recipe.h"
#include "recipe/print/schema_export.h"

namespace mtrain {

void add_schema_command(CLI::App& app) {
  auto* command = app.add_subcommand("schema", "print every setting of a recipe");
  auto json = std::make_shared<bool>(false);
  auto* as_json =
      command->add_flag("--json", *json, "as a JSON Schema, for completion and checks in editors");
  command->add_flag("--markdown")
      ->description("as tables (the default); in Markdown if the output is a file or a pipe")
      ->excludes(as_json);
  auto words = std::make_shared<bool>(false);
  auto* as_words = command
                       ->add_flag("--words", *words,
                                  "instead: words of other tools, and what to write in mtrain")
                       ->excludes(as_json);
  auto metrics = std::make_shared<bool>(false);
  command->add_flag("--metrics", *metrics, "instead: every key of metrics.jsonl, with its unit")
      ->excludes(as_json)
      ->excludes(as_words);
  set_examples(*command,
               {"mtrain schema > settings.md", "mtrain schema --json > recipe.schema.json",
                "mtrain schema --words", "mtrain schema --metrics"});
  command->callback([json, words, metrics] {
    const std::string text = *json      ? recipe::schema_json()
                             : *words   ? recipe::words_markdown()
                             : *metrics ? observe::metrics_markdown()
                                        : recipe::schema_markdown();
    const int width = *json ? 0 : line_width(STDOUT_FILENO);
    std::fputs((width > 0 ? markdown_for_terminal(text, width) : text).c_str(), stdout);
  });
}

namespace {

// Prints each key of a recipe with what became of it. Throws UserError with the recipe's mistakes
// after that.
void explain_file(const std::string& named) {
  Diagnostics diagnostics;
  const std::string path = recipe::find_recipe(named, folders_of_recipes(), diagnostics);
  diagnostics.throw_if_errors();
  plan::Machine machine;
  machine.dry_run = true;
  const Recipe loaded =
      plan::load_recipe(interchange::model_source(), path, {}, diagnostics, 0, machine);
  std::string text = "| line | key | here |\n|---|---|---|\n";
  for (const auto& key : recipe::explain_recipe(read_file(path), path, loaded, diagnostics))
    text += fmt::format("| {} | {} | {} |\n", key.line, key.key, key.outcome);
  const int width = line_width(STDOUT_FILENO);
  std::fputs((width > 0 ? markdown_for_terminal(text, width) : text).c_str(), stdout);
  for (const recipe::Diagnostic& d : diagnostics.sorted())
    if (d.severity == recipe::Severity::resolved && d.field.empty()) print_lines(d.reason + "\n");
  diagnostics.throw_if_errors();
}

}  // namespace

void add_recipe_command(CLI::App& app) {
  auto* recipe = app.add_subcommand("recipe", "inspect recipes, also those of other systems");
  recipe->require_subcommand(1);
  auto* command =
      recipe->add_subcommand("explain", "print each key of a recipe and what it sets here");
  auto file = std::make_shared<std::string>();
  command->add_option("file", *file, "a YAML recipe, or the name of a ready one")->required();
  for (auto* shown : {recipe, command})
    set_examples(*shown, {"mtrain recipe explain recipes/quickstart.yaml"});
  command->callback([file] { explain_file(*file); });
}

void add_explain_command(CLI::App& app) {
  auto* command =
      app.add_subcommand("explain", "explain a setting, a section or a word of another tool");
  set_examples(*command, {"mtrain explain distributed.pipeline.pp_schedule",
                          "mtrain explain learning_rate  # what it is called here",
                          "mtrain explain gradient norm  # all settings about it"});
  auto words = std::make_shared<std::vector<std::string>>();
  command
      ->add_option("word", *words,
                   "a setting or section by any of its names, or words to search for in names, "
                   "names of other tools and help texts")
      ->required();
  command->callback([words] {
    std::string text;
    for (const std::string& word : *words) text += (text.empty() ? "" : " ") + word;
    print_lines(recipe::explain(text));
  });
}

}  // namespace mtrain
