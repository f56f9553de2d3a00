// Writes an HTML page about runs.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "base/file.h"
#include "base/strings.h"
#include "commands.h"
#include "interchange/model_source.h"
#include "observe/curves.h"
#include "observe/metrics_reader.h"
#include "observe/progress.h"
#include "observe/report.h"
#include "plan/saved_recipe.h"
#include "report_trace.h"

namespace mtrain {

namespace {

struct ReportOptions {
  std::vector<std::string> runs;
  std::string output = "report.html", trace;
  std::optional<int64_t> step;
};

// Fills in the settings in which a run differs from the first one.
void compare_settings(observe::ReportInput& input) {
  const auto of = [&](size_t run) {
    return plan::SavedRecipe{.file = input.runs[run].path.parent_path() / "recipe.yaml"};
  };
  std::vector<size_t> unknown;  // runs that were not compared
  for (size_t run = 1; run < input.runs.size(); ++run) {
    try {
      const auto compared = plan::compare_saved(interchange::model_source(), of(0), of(run));
      for (const plan::SettingDifference& d : compared.differences) {
        auto row = std::ranges::find(input.settings, d.path, &observe::ReportSetting::setting);
        if (row == input.settings.end())
          row = input.settings.insert(
              row, {.setting = d.path, .values = std::vector<std::string>(input.runs.size(), d.a)});
        row->values[run] = d.b;
      }
    } catch (const Error& e) {
      unknown.push_back(run);
      input.settings_note +=
          fmt::format("{}{} is not compared: {}", input.settings_note.empty() ? "" : "; ",
                      input.runs[run].name, e.message());
    }
  }
  for (observe::ReportSetting& row : input.settings)
    for (const size_t run : unknown) row.values[run] = "?";
  if (input.settings.empty() && input.settings_note.empty())
    input.settings_note = "the recipes have the same settings";
}

void write_report(const ReportOptions& o) {
  if (o.runs.size() > observe::kMaxCurves)
    throw UserError(fmt::format("mtrain report takes at most {} runs, and {} are given",
                                observe::kMaxCurves, o.runs.size()),
                    "leave some out");
  observe::ReportInput input;
  for (const std::string& run : o.runs) {
    std::string name = run;
    while (name.size() > 1 && name.ends_with('/')) name.pop_back();
    input.runs.push_back({.name = name, .path = observe::locate_metrics(run)});
  }
  if (input.runs.size() > 1) compare_settings(input);
  if (!o.trace.empty())
    add_trace(input, o.trace, o.step, input.runs[0].path.parent_path() / "recipe.yaml");
  observe::ProgressLine line;
  input.progress = [&](const std::string& run, double part) {
    line.activity(fmt::format("reading {} {:.0f} %", run, 100 * part));
  };
  const std::string page = observe::report_html(input);
  line.idle();
  write_file_atomic(o.output, page);
  print_lines(fmt::format("written: {} ({})\n", o.output, human_bytes(double(page.size()))));
}

}  // namespace

void add_report_command(CLI::App& app) {
  auto o = std::make_shared<ReportOptions>();
  auto* command = app.add_subcommand(
      "report", "write one HTML page about runs: curves, memory, ranks, restarts, settings");
  set_examples(*command, {"mtrain report runs/first",
                          "mtrain report runs/first runs/second --output report.html",
                          "mtrain report runs/first --trace t.json --step 5"});
  command
      ->add_option("run", o->runs,
                   "run folders, checkpoints in them, or metrics.jsonl files; at most 6")
      ->required();
  command->add_option("-o,--output", o->output, "the file to write; default: report.html");
  auto* trace = command->add_option(
      "--trace", o->trace,
      "a trace of the first run (mtrain --trace): shows a step of it, the pipeline as run and as "
      "drawn, and step times by rank");
  command->add_option("--step", o->step, "the step of the trace to show; by default the last")
      ->needs(trace);
  command->callback([o] { write_report(*o); });
}

}  // namespace mtrain
