// Measures this machine, or the ranks of a job, and writes a calibration file.
#include <algorithm>
#include <cstdio>
#include <memory>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "apps/prepare.h"
#include "apps/train_options.h"
#include "base/error.h"
#include "calibrate_rows.h"
#include "commands.h"
#include "interchange/model_source.h"
#include "launch/job_token.h"
#include "plan/load_recipe.h"
#include "plan/rules/unsupported.h"
#include "recipe/load/find_recipe.h"
#include "run/calibrate.h"

namespace mtrain {

namespace {

struct CalibrateOptions {
  run::CalibrateJob job;
  std::string recipe;
  std::vector<std::string> overrides;
};

std::string calibration_text(const plan::Calibration& c, const std::string& path) {
  std::vector<double> spreads;
  for (const plan::LaunchTimes& t : c.launches)
    for (const plan::LaunchPoint& p : t.points) spreads.push_back(p.spread);
  std::ranges::sort(spreads);
  const auto share = [&](size_t tenths) {
    return 100 * spreads[(spreads.size() - 1) * tenths / 10];
  };
  std::string text =
      fmt::format("{}: {} kinds of launches in {} sizes, {} kinds of communication\n", path,
                  c.launches.size(), spreads.size(), c.links.size());
  if (!spreads.empty())
    text += fmt::format("spread of the rounds: median {:.1f} %, of the worst tenth over {:.1f} %\n",
                        share(5), share(9));
  text += fmt::format("between two launches {:.2f} us; the host takes {:.2f} us for a launch\n",
                      c.gap_s * 1e6, c.host_s * 1e6);
  for (const auto& [parallelism, wake] : c.wakes)
    text += fmt::format("after a wait for communication in steps with {} {:.1f} us\n", parallelism,
                        wake * 1e6);
  for (const auto& [stream, slowdown] : c.slowdowns)
    text += fmt::format("computations are {:.0f} % slower during {}\n", 100 * slowdown, stream);
  for (const auto& [stream, stretch] : c.stretches)
    text += fmt::format("in a step, communication of {} takes {:.2f} x its time alone\n", stream,
                        stretch);
  for (const auto& [stream, more] : c.besides)
    text += fmt::format("communication of {} takes {:.2f} x as long beside computations\n", stream,
                        1 + more);
  for (const auto& [stream, idle] : c.idle_shares)
    text += fmt::format("ranks that wait for {} wait for later ones: {:.1f} % of their computing\n",
                        stream, 100 * idle);
  for (const auto& [parallelism, by] : c.together)
    text += fmt::format("in steps with {}, computations take {:.1f} % longer than alone\n",
                        parallelism, 100 * by);
  for (const plan::LinkTimes& l : c.links)
    text += fmt::format("{}{}{} in {} of {} ranks: {:.1f} us + bytes / {:.2f} GB/s\n", l.stream,
                        l.stream.empty() ? "" : ": ", l.kind, dtype_name(l.dtype), l.ranks,
                        l.alpha_s * 1e6, l.bytes_per_s / 1e9);
  return text;
}

// The plan of a recipe whose model has few layers and whose batch has few micro-batches: its
// launches have the sizes of all others.
RunPlan short_plan(const CalibrateOptions& o) {
  Diagnostics diagnostics;
  const std::string path = recipe::find_recipe(o.recipe, folders_of_recipes(), diagnostics);
  diagnostics.throw_if_errors();
  const int64_t world = o.job.job.size;
  const auto load = [&](const std::vector<std::string>& settings, Diagnostics& mistakes) {
    return plan::load_recipe(interchange::model_source(), path, settings, mistakes, world,
                             o.job.machine);
  };
  const Recipe recipe = load(o.overrides, diagnostics);
  plan::check_supported(recipe, diagnostics);
  diagnostics.throw_if_errors();
  const int64_t vocabulary = vocabulary_of_plan(recipe);
  const RunPlan full = plan::make_plan(recipe, world, vocabulary);
  // A layer of each kind may come once in several.
  constexpr int64_t kFewLayers = 2;
  const int64_t layers =
                    std::min(int64_t(full.model.layers.size()), kFewLayers * full.layout.stages),
                samples = full.train.global_batch_size / full.layout.micro_batches;
  std::vector<std::string> settings = o.overrides;
  settings.push_back(fmt::format("model.num_layers={}", layers));
  settings.push_back(
      fmt::format("train.global_batch_size={}",
                  samples * std::min<int64_t>(full.layout.micro_batches, 2 * full.layout.pp)));
  Diagnostics of_short;
  const Recipe shortened = load(settings, of_short);
  return plan::make_plan(of_short.has_errors() ? recipe : shortened, world, vocabulary);
}

}  // namespace

void add_calibrate_command(CLI::App& app) {
  auto* command = app.add_subcommand(
      "calibrate",
      "measure this machine by training small models and, under a launcher, the communication of "
      "its ranks; write a calibration file");
  auto o = std::make_shared<CalibrateOptions>();
  command->add_option("--output", o->job.output, "the file to write")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--seconds", o->job.seconds,
                   "about how long to measure; three rounds are made in any case")
      ->check(number_from(0.1, 86400.0).description(""))
      ->capture_default_str();
  command
      ->add_option("--threads", o->job.threads,
                   "threads of a rank on a CPU; default: the host's cores divided by its ranks, or "
                   "the cores to which mtrain-launch binds the rank")
      ->check(integer_from(int64_t{1}, int64_t{1024}).description(""));
  command->add_option("--recipe,-r", o->recipe,
                      "also measure steps of this recipe, with few of its layers");
  command->add_option("overrides", o->overrides,
                      "settings that override the recipe: section.field=value");
  const auto rows = add_row_options(*command);
  add_token_option(*command, o->job.job.token_file);
  set_examples(*command, {"mtrain calibrate --output machine.yaml --seconds 2",
                          "mtrain-launch --nproc_per_node=2 mtrain calibrate --output two.yaml "
                          "--seconds 2"});
  command->callback([o, rows] {
    if (!rows->rows.empty()) return calibrate_from_rows(*rows, o->job.output);
    run::CalibrateJob& job = o->job;
    const std::string token_file = job.job.token_file;
    job.job = launch::started_job_from_environment();
    job.job.token_file = token_file;
    launch::hide_token_variable();
    job.machine = machine_of(job.job);
    const std::string version = version_text();
    job.build = version.substr(0, version.find('\n'));
    if (o->recipe.empty() && !o->overrides.empty())
      throw UserError(fmt::format("`{}` overrides no recipe", o->overrides[0]),
                      "add --recipe, or leave it out");
    if (!o->recipe.empty()) job.further.push_back(short_plan(*o));
    const plan::Calibration c = run::calibrate(job);
    if (job.job.rank == 0) print_lines(calibration_text(c, job.output));
  });
}

}  // namespace mtrain
