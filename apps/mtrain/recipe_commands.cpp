#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>

#include "commands.h"
#include "recipe/print/schema_export.h"

namespace mtrain {

void add_schema_command(CLI::App& app) {
  auto* command = app.add_subcommand("schema", "print every setting of a recipe");
  auto json = std::make_shared<bool>(false);
  auto* as_json =
      command->add_flag("--json", *json, "as a JSON Schema, by which editors complete and check");
  command->add_flag("--markdown")
      ->description("as tables to read (the default)")
      ->excludes(as_json);
  command->callback([json] {
    std::fputs((*json ? recipe::schema_json() : recipe::schema_markdown()).c_str(), stdout);
  });
}

void add_explain_command(CLI::App& app) {
  auto* command = app.add_subcommand("explain", "say what one setting or section means");
  auto path = std::make_shared<std::string>();
  command
      ->add_option("setting", *path,
                   "such as distributed.pipeline.pp_schedule, by any of its names")
      ->required();
  command->callback([path] { std::fputs(recipe::explain(*path).c_str(), stdout); });
}

}  // namespace mtrain
