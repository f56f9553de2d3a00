#include <unistd.h>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "base/terminal.h"
#include "base/text_table.h"
#include "commands.h"
#include "observe/metric_keys.h"
#include "recipe/print/explain.h"
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
