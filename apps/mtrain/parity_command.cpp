// Shows on this machine that a recipe's layout and overlap do not change results.
#include <unistd.h>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/command_line.h"
#include "apps/prepare.h"
#include "base/error.h"
#include "base/terminal.h"
#include "base/text_table.h"
#include "commands.h"
#include "run/parity.h"

namespace mtrain {

namespace {

using nlohmann::ordered_json;
using run::ParityRow;

struct ParityCommandOptions {
  TrainOptions training;
  int64_t steps = 5;
  bool json = false;
};

std::string difference_text(double value) {
  return std::isfinite(value) ? fmt::format("{:.1e}", value) : "other";
}

std::string verdict_of(const ParityRow& row) {
  if (!row.skipped.empty()) return "not run: " + row.skipped;
  if (!row.difference)
    return row.same_bits.value_or(false) ? "equal, the same bits as the layout" : "equal";
  const run::ParityDifference& d = *row.difference;
  if (d.step == 0) return "FAILED: " + d.what;
  std::string text = fmt::format("DIFFERS from step {}", d.step);
  if (d.what == "loss") text += ": loss";
  if (d.parameter.empty()) return text;
  text += fmt::format("{}gradient of {}", d.what == "loss" ? ", " : ": ", d.parameter);
  if (d.parameters > 1) text += fmt::format(" and {} more", d.parameters - 1);
  return text;
}

void print_parity(const run::ParityReport& report) {
  print_lines(fmt::format("{} ({} ranks) against one rank: {}; {} steps in fp32\n", report.layout,
                          report.world, report.model, report.steps));
  constexpr auto left = TableColumn::Align::left;
  std::vector<std::vector<std::string>> rows;
  for (const ParityRow& row : report.rows) {
    const bool ran = row.skipped.empty() && !(row.difference && row.difference->step == 0);
    rows.push_back({row.what, ran ? difference_text(row.loss) : "",
                    ran ? difference_text(row.gradient) : "", "  " + verdict_of(row)});
  }
  const std::string text =
      text_table({{"trained", 12, left}, {"loss", 9}, {"gradient", 9}, {"  verdict", 20, left}},
                 rows, isatty(STDOUT_FILENO) ? line_width(STDOUT_FILENO) : 0);
  std::fputs(text.c_str(), stdout);
  print_lines(fmt::format(
      "the largest relative differences: of a loss (at most {:.0e}), of a gradient in step 1 (at "
      "most {:.0e})\n",
      run::kParityLoss, run::kParityGradient));
}

void print_parity_json(const run::ParityReport& report) {
  const auto number = [](double value) {
    return std::isfinite(value) ? ordered_json(value) : ordered_json();
  };
  ordered_json out{{"layout", report.layout}, {"world_size", report.world},
                   {"model", report.model},   {"steps", report.steps},
                   {"equal", report.equal()}, {"trainings", ordered_json::array()}};
  for (const ParityRow& row : report.rows) {
    ordered_json j{{"what", row.what}};
    if (!row.skipped.empty()) {
      j["skipped"] = row.skipped;
    } else {
      j["equal"] = !row.difference;
      if (row.same_bits) j["same_bits_as_layout"] = *row.same_bits;
      j["loss_difference"] = number(row.loss);
      j["gradient_difference"] = number(row.gradient);
      if (const auto& d = row.difference)
        j["first_difference"] = {{"step", d->step},
                                 {"what", d->what},
                                 {"parameter", d->parameter},
                                 {"parameters", d->parameters},
                                 {"difference", number(d->difference)},
                                 {"allowed", d->allowed}};
    }
    out["trainings"].push_back(std::move(j));
  }
  const auto replace = ordered_json::error_handler_t::replace;
  std::fputs((out.dump(2, ' ', false, replace) + "\n").c_str(), stdout);
}

void show_parity(ParityCommandOptions o) {
  o.training.dry_run = true;  // the recipe's files are not needed
  o.training.overrides.emplace(o.training.overrides.begin(), "dataset.train=made_up");
  const int64_t world = o.training.world_size.value_or(0);
  const Prepared ready = prepare(o.training, {.ranks = world});
  plan::RecipeSource source = ready.source;
  source.world = world > 0 ? world : plan::make_plan(ready.recipe, 0, 0).layout.world;
  source.machine = {};
  const run::ParityReport report = run::check_parity(
      source, {.steps = o.steps, .progress = [&](const std::string& what) {
                 if (!o.json && isatty(STDERR_FILENO))
                   std::fputs(fmt::format("\r\x1b[Ktraining: {}", what).c_str(), stderr);
               }});
  if (!o.json && isatty(STDERR_FILENO)) std::fputs("\r\x1b[K", stderr);
  o.json ? print_parity_json(report) : print_parity(report);
  std::fflush(stdout);
  if (!report.equal())
    throw RunError("results depend on the layout, which is a fault of mtrain",
                   "please report it, with the recipe and this output");
}

}  // namespace

void add_parity_command(CLI::App& app) {
  auto o = std::make_shared<ParityCommandOptions>();
  auto* command = app.add_subcommand(
      "parity",
      "train a shrunk model on one rank, under the recipe's layout, and with each overlap off in "
      "turn; exit code 1 if results differ");
  set_examples(*command, {"mtrain parity --recipe quickstart_pipeline --world-size 4",
                          "mtrain parity --recipe llama3_8b --world-size 8 distributed.tp_size=2 "
                          "distributed.cp_size=2"});
  command
      ->add_option("--recipe,-r,--config,-c", o->training.recipe,
                   "YAML recipe: a path, or the name of a ready recipe")
      ->required();
  command->add_option("overrides", o->training.overrides,
                      "settings that override the recipe: section.field=value");
  command
      ->add_option("--world-size", o->training.world_size,
                   "ranks of the layout, as threads of this process; 0 (the default): the fewest "
                   "that the sizes allow")
      ->check(integer_from(int64_t{0}, run::kParityRanks).description(""))
      ->type_name("N");
  command->add_option("--steps", o->steps, "steps of each training")
      ->check(integer_from(int64_t{1}, int64_t{1000}).description(""))
      ->capture_default_str()
      ->type_name("N");
  command->add_flag("--json", o->json, "print JSON");
  command->callback([o] { show_parity(*o); });
}

}  // namespace mtrain
