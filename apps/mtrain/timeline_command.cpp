// Shows a trace on the terminal.
#include <unistd.h>
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "base/terminal.h"
#include "commands.h"
#include "observe/timeline.h"

namespace mtrain {

void add_timeline_command(CLI::App& app) {
  struct Options : observe::TimelineOptions {
    std::string trace;
  };
  auto o = std::make_shared<Options>();
  o->columns = 0;
  auto* command = app.add_subcommand(
      "timeline", "show a trace: each rank's passes, and the work of each stream over time");
  set_examples(*command, {"mtrain-launch --nproc_per_node=2 recipes/quickstart.yaml --trace t.json "
                          "train.steps=5",
                          "mtrain timeline t.json",
                          "mtrain timeline t.json --step 3 --rank 0 --columns 200"});
  command->add_option("trace", o->trace, "file that --trace has written")->required();
  auto* step = command->add_option("--step", o->step, "step to show; by default the last");
  command
      ->add_option("--from", o->from_ms,
                   "start of a time range to show instead, in ms of the trace")
      ->check(number_from(-1e12, 1e12).description(""))
      ->excludes(step);
  command->add_option("--to", o->to_ms, "end of that range, in ms of the trace")
      ->check(number_from(-1e12, 1e12).description(""))
      ->excludes(step);
  command->add_option("--rank", o->ranks, "ranks to show; by default all")->delimiter(',');
  command->add_option("--columns", o->columns, "width of the text; by default the terminal's")
      ->check(integer_from(20, 1 << 16));
  command->callback([o] {
    if (o->columns == 0)
      o->columns =
          isatty(STDOUT_FILENO) ? line_width(STDOUT_FILENO) : observe::TimelineOptions{}.columns;
    std::fputs(timeline_text(observe::read_trace(o->trace), *o).c_str(), stdout);
  });
}

}  // namespace mtrain
