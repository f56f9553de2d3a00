// Predicts what a recipe takes on a cluster.
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/command_line.h"
#include "apps/prepare.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/terminal.h"
#include "cluster_plan.h"
#include "commands.h"
#include "layout_json.h"
#include "plan_advice.h"
#include "predict/cluster_costs.h"
#include "predict/layout_search.h"
#include "predict/prediction_text.h"
#include "predict/rank_memory.h"
#include "predict/ranking_text.h"
#include "predict/recorded_step.h"
#include "predict/step_model.h"
#include "predict/step_timeline.h"
#include "recipe/load/mistakes.h"

namespace mtrain {

namespace {

struct PlanOptions : ClusterPlanWords {
  bool json = false, memory = false;
  std::string timeline;  // a file for what happens over time; empty: none
  bool search = false, advice = false;
  std::string free, objective = "speed", output;
  std::vector<std::string> fixed;
  size_t top = 10, plays = 30, write = 0;  // write: the place in the ranking; 0: none
};

bool fits(const predict::Prediction& p, const plan::Cluster& cluster) {
  return std::ranges::all_of(p.memory,
                             [&](double bytes) { return bytes <= cluster.usable_bytes(); });
}

nlohmann::ordered_json peaks_json(const plan::MemoryPeaks& m) {
  return {{"params", m.params},           {"grads", m.grads},     {"optimizer", m.optimizer},
          {"activations", m.activations}, {"buffers", m.buffers}, {"total", m.total}};
}

// `ranks` is empty unless the memory by category was asked for.
std::string prediction_json(const predict::Prediction& p, const ClusterPlan& planned,
                            const std::vector<predict::RankMemory>& ranks) {
  nlohmann::ordered_json j;
  j["ranks"] = planned.plan.layout.world;
  j["cluster"] = planned.cluster.source;
  j["step_s"] = p.step_s;
  j["tokens_per_s"] = p.tokens_per_s;
  j["mfu"] = p.mfu;
  j["band"] = {{"share", p.band.share}, {"reason", p.band.reason}};
  for (const predict::NamedTime& part : p.parts()) j["parts_s"][part.name] = part.seconds;
  j["communication"] = nlohmann::ordered_json::object();
  for (const char* axis : {"tp", "cp", "ep", "dp", "pp"})
    if (p.busy(axis) > 0)
      j["communication"][axis] = {{"busy_s", p.busy(axis)}, {"exposed_s", p.exposed(axis)}};
  j["memory_bytes"] = p.memory;
  for (const predict::RankMemory& rank : ranks)
    j["memory_by_category"].push_back({{"pp_rank", rank.pp_rank},
                                       {"planned", peaks_json(rank.planned)},
                                       {"recorded", peaks_json(rank.recorded)}});
  j["usable_bytes"] = planned.cluster.usable_bytes();
  j["fits"] = fits(p, planned.cluster);
  j["warnings"] = nlohmann::ordered_json::array();
  for (const recipe::Diagnostic& d : planned.diagnostics.sorted())
    if (d.severity == recipe::Severity::warning)
      j["warnings"].push_back(d.field.empty() ? d.reason : d.field + ": " + d.reason);
  return j.dump(2) + "\n";
}

nlohmann::ordered_json layouts_json(const std::vector<predict::RankedLayout>& layouts) {
  nlohmann::ordered_json j = nlohmann::ordered_json::array();
  for (const predict::RankedLayout& r : layouts) j.push_back(layout_json(r));
  return j;
}

std::string ranking_json(const predict::LayoutRanking& r, const predict::LayoutSearch& search,
                         const ClusterPlan& planned) {
  const bool speed = search.objective == predict::Objective::speed;
  nlohmann::ordered_json j;
  j["ranks"] = planned.plan.layout.world;
  j["cluster"] = planned.cluster.source;
  j["objective"] = speed ? "speed" : "memory";
  j["band"] = {{"share", r.band.share}, {"reason", r.band.reason}};
  j["candidates"] = r.candidates;
  j["legal"] = r.legal;
  j["played"] = r.played;
  j["ranked"] = layouts_json(r.ranked);
  j["front"] = layouts_json(r.front);
  j["own"] = r.own ? layout_json(*r.own) : nlohmann::ordered_json();
  j["out"] = nlohmann::ordered_json::array();
  for (const predict::LayoutsOut& out : r.out)
    j["out"].push_back({{"reason", out.reason},
                        {"count", out.count},
                        {"nearest", out.nearest},
                        {"detail", out.detail}});
  j["left"]["count"] = r.left;
  if (r.left > 0) j["left"][speed ? "least_step_s" : "least_memory_bytes"] = r.lowest_left;
  return j.dump(2) + "\n";
}

// Writes the recipe of a ranked layout, which a training reads like any other.
void write_layout(const PlanOptions& o, const predict::LayoutRanking& ranking,
                  const ClusterPlan& planned) {
  if (o.write > ranking.ranked.size())
    throw UserError(
        fmt::format("--write {}: the ranking has {} layouts", o.write, ranking.ranked.size()),
        fmt::format("write a number from 1 to {}", ranking.ranked.size()));
  const auto trial =
      plan::plan_trial(planned.source, ranking.ranked[o.write - 1].change, planned.vocabulary);
  MT_CHECK(trial, "a ranked layout has become illegal");
  write_file_atomic(o.output, print_recipe(trial->recipe, false));
}

std::unique_ptr<const predict::LaunchCosts> cluster_costs(ClusterPlan& planned) {
  auto costs =
      predict::costs_for(planned.cluster, planned.plan, folders_of_recipes(), planned.diagnostics);
  recipe::throw_mistakes(planned.diagnostics, "in what the cluster was measured by");
  return costs;
}

void show_search(const PlanOptions& o) {
  Diagnostics mistakes;
  predict::LayoutSearch search{
      .fields = plan::SearchFields::parse(o.free, o.fixed, mistakes),
      .objective = o.objective == "memory" ? predict::Objective::memory : predict::Objective::speed,
      .top = o.top,
      .most_plays = std::max(o.plays, o.top)};
  if ((o.write > 0) != !o.output.empty())
    mistakes.add("--write", "needs --output, and --output needs --write",
                 "write --write 1 --output best.yaml");
  if (!o.timeline.empty())
    mistakes.add("--timeline", "a search draws none", "predict a ranked layout by its settings");
  recipe::throw_mistakes(mistakes, "on the command line");
  ClusterPlan planned = plan_on_cluster(o);
  const auto costs = cluster_costs(planned);
  const predict::LayoutRanking ranking = predict::search_layouts(
      planned.source, planned.recipe, planned.plan, planned.cluster, *costs, search);
  const int width = line_width(STDOUT_FILENO);
  predict::check_ranked(ranking, planned.cluster, width);
  const std::string text = o.json ? ranking_json(ranking, search, planned)
                                  : predict::ranking_text(ranking, search, planned.cluster, width);
  std::fputs(text.c_str(), stdout);
  if (o.write > 0) write_layout(o, ranking, planned);
}

void show_advice(const PlanOptions& o) {
  Diagnostics mistakes;
  const predict::LayoutSearch search{.fields = plan::SearchFields::parse(o.free, o.fixed, mistakes),
                                     .most_plays = o.plays};
  recipe::throw_mistakes(mistakes, "on the command line");
  ClusterPlan planned = plan_on_cluster(o);
  const auto costs = cluster_costs(planned);
  std::fputs(plan_advice(planned, *costs, search, o.json, line_width(STDOUT_FILENO)).c_str(),
             stdout);
}

// Checks the words that go together with some others alone.
void check_words(const CLI::App& command, const PlanOptions& o) {
  Diagnostics mistakes;
  for (const char* word : {"--top", "--objective", "--write", "--output"})
    if (command.count(word) > 0 && !o.search)
      mistakes.add(word, "is for the layouts that a search ranks", "add --search");
  for (const char* word : {"--free", "--fix", "--plays"})
    if (command.count(word) > 0 && !o.search && !o.advice)
      mistakes.add(word, "is for a search", "add --search or --advice");
  if (o.advice && o.search)
    mistakes.add("--advice", "compares the sizing guide, and --search ranks layouts",
                 "use one of the two");
  if (o.advice && !o.timeline.empty())
    mistakes.add("--timeline", "shows one layout, and --advice compares many",
                 "leave one of the two out");
  if (o.memory && (o.advice || o.search))
    mistakes.add("--memory", "shows one layout", "predict a ranked layout by its settings");
  if (!o.timeline.empty() && !predict::timeline_format(o.timeline))
    mistakes.add("--timeline", o.timeline + " is neither a picture nor a trace",
                 "write a name that ends in .svg, .html or .json");
  recipe::throw_mistakes(mistakes, "on the command line");
}

void show_plan(const PlanOptions& o) {
  if (o.advice) return show_advice(o);
  if (o.search) return show_search(o);
  const auto format = predict::timeline_format(o.timeline);
  ClusterPlan planned = plan_on_cluster(o);
  const auto costs = cluster_costs(planned);
  const predict::StepModel model(
      planned.plan, planned.cluster,
      format ? predict::parts_for_timeline(planned.plan) : predict::RecordedParts::few);
  const predict::Prediction p = model.price(*costs);
  const auto memory =
      o.memory ? predict::memory_of_ranks(planned.plan) : std::vector<predict::RankMemory>();
  const int width = line_width(STDOUT_FILENO);
  std::string text = o.json ? prediction_json(p, planned, memory)
                            : predict::prediction_text(p, planned.plan, planned.cluster, width);
  if (o.memory && !o.json) text += "\n" + predict::rank_memory_text(memory, width);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);  // before the warnings on stderr
  tell(planned.diagnostics);
  if (!fits(p, planned.cluster))
    log::warn(fmt::format(
        "the plan does not fit the memory of the cluster's devices\n    hint: add --search to find "
        "layouts that do"));
  if (format)
    predict::write_timeline(o.timeline, *format, planned.plan, planned.cluster, *costs, model, p);
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto o = std::make_shared<PlanOptions>();
  auto* command = app.add_subcommand(
      "plan", "predict the step time and the memory of a recipe on a cluster, without devices");
  set_examples(
      *command,
      {"mtrain plan --recipe llama3_8b --cluster dgx_h100 --world-size 32",
       "mtrain plan --recipe recipes/quickstart.yaml --cluster cpu_2cores --json",
       "mtrain plan --recipe llama3_70b --cluster dgx_h100 distributed.tp_size=4",
       "mtrain plan --recipe mixtral_8x7b --cluster dgx_h100 --timeline mixtral.html",
       "mtrain plan --recipe llama3_8b --cluster dgx_h100 --world-size 32 --search --free tp",
       "mtrain plan --recipe llama3_2_1b --cluster dgx_h100 --world-size 8 --advice"});
  command
      ->add_option("--recipe,-r,--config,-c", o->recipe,
                   "YAML recipe: a path, or the name of a ready recipe (llama3_8b)")
      ->required();
  command
      ->add_option("--cluster", o->cluster,
                   "cluster file: a path, or the name of a ready one (dgx_h100)")
      ->required();
  command->add_option("overrides", o->overrides,
                      "settings that override the recipe: section.field=value");
  command
      ->add_option("--world-size", o->world_size,
                   "ranks to plan for; by default one for each device of the cluster, which has as "
                   "many nodes as the recipe's sizes need unless its file says how many")
      ->check(integer_from(int64_t{1}, int64_t{1} << 24).description(""))
      ->type_name("N");
  command->add_option("--timeline", o->timeline,
                      "write the ranks' work over time to this .svg or .html file, or as a trace "
                      "for Perfetto and `mtrain timeline` to this .json file");
  command->add_flag("--json", o->json, "as JSON, with all figures");
  command->add_flag("--memory", o->memory,
                    "also the memory by category: planned, and of a recorded step of each "
                    "pipeline rank");
  command->add_flag("--search", o->search, "rank layouts of the recipe instead");
  command->add_flag("--advice", o->advice,
                    "compare the sizing guide with the best layouts within and outside of it");
  command->add_option(
      "--free", o->free,
      "--search, --advice: the fields that may change, such as tp,pp,micro_batch; all unless "
      "given");
  command
      ->add_option("--fix", o->fixed,
                   "--search, --advice: a field's value in all layouts, such as tp=4")
      ->type_name("FIELD=VALUE");
  command->add_option("--top", o->top, "--search: how many layouts are ranked")
      ->check(integer_from(int64_t{1}, int64_t{1000}).description(""))
      ->type_name("N");
  command
      ->add_option("--plays", o->plays,
                   "--search, --advice: how many layouts are predicted at most")
      ->check(integer_from(int64_t{1}, int64_t{100000}).description(""))
      ->type_name("N");
  command->add_option("--objective", o->objective, "--search: speed, or memory of a device")
      ->check(CLI::IsMember({"speed", "memory"}));
  command
      ->add_option("--write", o->write,
                   "--search: write the recipe of this place in the ranking to --output")
      ->check(integer_from(int64_t{1}, int64_t{1000}).description(""))
      ->type_name("N");
  command->add_option("--output", o->output, "--search: the file that --write writes");
  command->callback([o, command] {
    check_words(*command, *o);
    show_plan(*o);
  });
}

}  // namespace mtrain
