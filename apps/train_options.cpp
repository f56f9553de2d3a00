#include "apps/train_options.h"

#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "base/error.h"
#include "recipe/load/misplaced_words.h"

namespace mtrain {

std::vector<std::string> TrainOptions::settings() const {
  std::vector<std::string> all = overrides;
  if (!trace.empty()) all.push_back("debug.trace=" + trace);
  if (!trace_steps.empty()) all.push_back("debug.trace_steps=\"" + trace_steps + "\"");
  if (strict) all.push_back("debug.strict=true");
  if (nvtx) all.push_back("debug.nvtx=true");
  return all;
}

void add_token_option(CLI::App& command, std::string& file) {
  command
      .add_option("--token_file,--token-file", file,
                  "file of 64 hexadecimal digits, the same for all ranks, with which they "
                  "authenticate each other (or MTRAIN_TOKEN); by default rank 0 creates one in the "
                  "run folder")
      ->type_name("FILE");
}

void declare_train_options(CLI::App& command, TrainOptions& o) {
  command.add_option("--recipe,-r,--config,-c", o.recipe,
                     "YAML recipe: a path, or the name of a ready recipe (llama3_8b); it can also "
                     "be given without this option, as the first word");
  command.add_option(
      "overrides", o.overrides,
      "settings that override the recipe: section.field=value sets a field, ~section.field resets "
      "it; Megatron's flags (--tp-comm-overlap, --context-parallel-size 4) work, too");
  command.add_flag("--strict", o.strict,
                   "refuse settings that have no effect at this size, instead of a warning "
                   "(debug.strict)");
  command
      .add_flag("--print-recipe", o.print_recipe,
                "print the resolved recipe, with the origin of each value, and stop")
      ->group("Inspection without a run");
  command
      .add_flag("--dry-run", o.dry_run,
                "print device, layout, groups, memory, pipeline and overlap, and stop; "
                "exit code 2 if a run would refuse the recipe. Needs no data. Plans for "
                "hardware.gpu if the recipe names it, or if there are more ranks than "
                "cores on this host, unless train.device is cpu")
      ->group("Inspection without a run");
  command
      .add_option("--world-size", o.world_size,
                  "ranks to plan for; 0: the fewest that the sizes and the batch allow (the "
                  "default without a launcher)")
      ->check(integer_from(int64_t{0}, int64_t{1} << 24).description(""))
      ->type_name("N")
      ->group("Inspection without a run");
  command
      .add_option("--trace", o.trace,
                  "write a Chrome / Perfetto trace of every launch and wait to this file")
      ->group("Inspection of a run");
  command
      .add_option(
          "--trace-steps", o.trace_steps,
          "trace only these steps, such as 10:20, and write the file after the last of them")
      ->type_name("FIRST:LAST")
      ->group("Inspection of a run");
  command
      .add_flag("--nvtx", o.nvtx,
                "on a GPU, name passes, layers and launches for NVIDIA's profilers (debug.nvtx)")
      ->group("Inspection of a run");
  command.add_flag("--profile", o.profile, "print the time of each operation at the end")
      ->group("Inspection of a run");
  command
      .add_flag("--verbose", o.verbose,
                "print each kind of communication, and its time, at the end")
      ->group("Inspection of a run");
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
