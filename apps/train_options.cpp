#include "apps/train_options.h"

#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "base/error.h"
#include "recipe/load/misplaced_words.h"

namespace mtrain {

std::vector<std::string> TrainOptions::settings() const {
  std::vector<std::string> all = overrides;
  if (!trace.empty()) all.push_back("debug.trace=" + trace);
  if (strict) all.push_back("debug.strict=true");
  return all;
}

void add_token_option(CLI::App& command, std::string& file) {
  command
      .add_option("--token_file,--token-file", file,
                  "file of 64 hexadecimal digits, the same for all ranks, by which they know each "
                  "other (or MTRAIN_TOKEN); by default rank 0 makes one in the run folder")
      ->type_name("FILE");
}

void declare_train_options(CLI::App& command, TrainOptions& o) {
  command.add_option("--recipe,-r,--config,-c", o.recipe,
                     "YAML recipe: a path, or the name of a ready one (llama3_8b); the "
                     "first word without an option is the recipe, too");
  command.add_option(
      "overrides", o.overrides,
      "settings that win over the recipe: section.field=value, ~section.field resets; "
      "Megatron's flags (--tp-comm-overlap, --context-parallel-size 4) are settings, too");
  command.add_flag("--strict", o.strict,
                   "refuse what a size leaves nothing to do, instead of a warning (debug.strict)");
  command
      .add_flag("--print-recipe", o.print_recipe,
                "print the resolved recipe, with the origin of each value, and stop")
      ->group("Look, do not run");
  command
      .add_flag("--dry-run", o.dry_run,
                "print device, layout, groups, memory, pipeline and overlap, and stop; "
                "exit code 2 for what a run would refuse. Needs no data. Plans for "
                "hardware.gpu where the recipe names it, or where the ranks are more "
                "than this host's cores, unless train.device is cpu")
      ->group("Look, do not run");
  command
      .add_option("--world-size", o.world_size,
                  "ranks to plan for, 0: the fewest that the sizes and the batch allow (the "
                  "default without a launcher)")
      ->check(whole_number_from(int64_t{0}, int64_t{1} << 24).description(""))
      ->type_name("N")
      ->group("Look, do not run");
  command
      .add_option("--trace", o.trace,
                  "write a Chrome / Perfetto trace of every launch and wait to this file")
      ->group("Look while it runs");
  command.add_flag("--profile", o.profile, "print the time of each operation at the end")
      ->group("Look while it runs");
  command
      .add_flag("--verbose", o.verbose,
                "print the communication of each kind, and its time, at the end")
      ->group("Look while it runs");
  add_token_option(command, o.token_file);
}

TrainOptions read_train_options(const std::vector<std::string>& words) {
  recipe::refuse_unknown_options(words);
  TrainOptions o;
  CLI::App app;
  declare_train_options(app, o);
  try {
    app.parse(std::vector<std::string>{words.rbegin(), words.rend()});
  } catch (const CLI::ParseError& e) {
    throw command_line_error(app, e);
  }
  check_train_options(o);
  return o;
}

void check_train_options(const TrainOptions& o) {
  if (o.world_size && o.runs())
    throw UserError("--world-size sets the ranks to plan for, but starts none",
                    "add --dry-run or --print-recipe, or start ranks with a launcher");
}

}  // namespace mtrain
