// Shows a pipeline schedule and its costs. Needs neither a recipe nor ranks.
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/text_table.h"
#include "commands.h"
#include "plan/recipe_schedule.h"
#include "schedule/catalog.h"
#include "schedule/expert_parts.h"
#include "schedule/lower.h"
#include "schedule/render.h"
#include "schedule/validator.h"

namespace mtrain {

namespace {

struct ScheduleOptions {
  std::string name, from_csv, svg, html, paired_gradient = "at_end";
  schedule::ScheduleSize size{.pp = 4, .stages_per_rank = 0, .micro_batches = 8};
  schedule::ScheduleCosts costs;
  int64_t gathered = 0, columns = -1, layers = 1;
  double exchange = 0, latency = 0;
  std::vector<std::string> parts, estimates;
  bool text = false, csv = false, actions = false, no_overlap = false, shared_overlap = false;
};

// Reads "attention=3,4,2": a part of a layer, and the times of its forward, input gradient and
// weight gradient. `option` is the name of the option, for errors.
void read_part(const char* option, const std::string& text, schedule::PassCosts& costs) {
  const std::map<std::string, schedule::PartCost*> names{
      {"attention", &costs.attention}, {"route", &costs.route},       {"experts", &costs.experts},
      {"shared", &costs.shared},       {"exchange", &costs.exchange}, {"head", &costs.head}};
  const std::string hint = fmt::format(
      "write {} NAME=F,I,W with the times of forward, input gradient and weight gradient; NAME is "
      "a layer's attention, route, experts, shared or exchange (one way), or head",
      option);
  const size_t equals = text.find('=');
  const auto part = names.find(text.substr(0, equals));
  if (equals == std::string::npos || part == names.end())
    throw UserError(fmt::format("{} {}: not a part of a pass", option, text), hint);
  std::vector<double> times;
  for (const std::string& number : split(text.substr(equals + 1), ',')) {
    size_t read = 0;
    double time = -1;
    try {
      time = std::stod(number, &read);
    } catch (const std::exception&) {
    }
    if (read != number.size() || !(time >= 0 && time <= 1e9))
      throw UserError(fmt::format("{} {}: {:?} is not a time", option, text, number), hint);
    times.push_back(time);
  }
  if (times.size() > 3)
    throw UserError(fmt::format("{} {}: {} times", option, text, times.size()), hint);
  times.resize(3);
  *part->second = {.forward = times[0], .backward = times[1], .weights = times[2]};
}

std::vector<schedule::StageParts> stages_of(const ScheduleOptions& o, schedule::PassCosts costs,
                                            int64_t stages) {
  costs.shared_overlaps = o.shared_overlap;
  costs.exchange_latency = {std::min(o.latency, costs.exchange.forward),
                            std::min(o.latency, costs.exchange.backward)};
  const std::vector<bool> with_experts(size_t(o.layers), true);
  std::vector<schedule::StageParts> all(size_t(stages), stage_parts(costs, with_experts, false));
  all.back() = stage_parts(costs, with_experts, true);
  return all;
}

// Returns the parts of each stage's passes; an empty list without exchanges.
std::vector<schedule::StageParts> stage_parts_of(const ScheduleOptions& o, int64_t stages) {
  if (o.parts.empty() && o.exchange == 0) return {};
  const schedule::StageCost& c = o.costs.stages[0];
  schedule::PassCosts costs;
  if (o.parts.empty())
    costs = schedule::costs_of_layer(
        {.F = c.F, .I = c.I, .W = c.W, .layers = o.layers, .exchange = o.exchange});
  for (const std::string& part : o.parts) read_part("--part", part, costs);
  return stages_of(o, costs, stages);
}

// The order of a pair gives a weight gradient a separate step if its estimated cost is above 0. The
// measured times must have the same steps. Other weight gradients are therefore added to the cost
// of their part.
void take_steps_of(const std::vector<schedule::PairPart>& estimates,
                   std::vector<schedule::PairPart>& parts) {
  constexpr double kNoTime = 1e-12;
  for (size_t i = 0; i < parts.size(); ++i)
    if (estimates[i].weight_cost > 0)
      parts[i].weight_cost = std::max(parts[i].weight_cost, kNoTime);
    else
      parts[i].cost += std::exchange(parts[i].weight_cost, 0);
}

// Orders pairs by the costs of --estimate, and runs them with the times of --part.
void add_estimates(const ScheduleOptions& o, schedule::ScheduleCosts& costs) {
  if (o.estimates.empty()) return;
  schedule::PassCosts estimated;
  for (const std::string& part : o.estimates) read_part("--estimate", part, estimated);
  for (const std::string& part : o.parts) {
    const std::string name = part.substr(0, part.find('=') + 1);
    if (std::ranges::none_of(o.estimates, [&](auto& e) { return e.starts_with(name); }))
      throw UserError(fmt::format("--part {} has no --estimate", part),
                      "give an --estimate for every --part; --dry-run prints them");
  }
  costs.estimates = stages_of(o, estimated, int64_t(costs.parts.size()));
  for (size_t stage = 0; stage < costs.parts.size(); ++stage)
    take_steps_of(costs.estimates[stage].backward, costs.parts[stage].backward);
}

std::string exposure(const char* of, const schedule::Exposure& e) {
  return fmt::format("{} exchanges {:g}, exposed {:.2f} %\n", of, e.exchanges, 100 * e.share());
}

// Returns how long a lane works and is exposed, over all ranks; empty for a lane that does not
// work.
std::string lane_text(const schedule::Timeline& t, const char* what, schedule::Lane busy,
                      std::initializer_list<schedule::Lane> exposed) {
  double work = 0, waits = 0;
  for (const schedule::LaneSums& rank : t.sums) {
    work += rank.busy[size_t(busy)];
    for (const schedule::Lane lane : exposed) waits += rank.exposed[size_t(lane)];
  }
  return work > 0 ? fmt::format("{} {:g}, exposed {:.2f} %\n", what, work, 100 * waits / work) : "";
}

std::string summary(const schedule::Schedule& s, const schedule::Timeline& t,
                    const std::vector<int64_t>& bounds, const std::string& formula, int width) {
  std::string out =
      fmt::format("{}: {} stages on {} ranks, {} micro-batches\nstep {:g}, idle {:.2f} %{}\n",
                  s.name, s.stages, s.pp, s.micro_batches, t.step, 100 * t.bubble(), formula);
  if (has_exchanges(t)) out += exposure("paired", t.paired) + exposure("unpaired", t.unpaired);
  using schedule::Lane;
  out += lane_text(t, "messages", Lane::pp_send, {Lane::pp_send, Lane::pp_receive});
  out += lane_text(t, "weights and gradients", Lane::dp, {Lane::dp});
  std::vector<std::vector<std::string>> rows;
  for (int64_t rank = 0; rank < s.pp; ++rank) {
    std::string stages;
    for (int64_t stage = 0; stage < s.stages; ++stage)
      if (s.rank_of(stage) == rank) stages += fmt::format("{}{}", stages.empty() ? "" : " ", stage);
    rows.push_back({std::to_string(rank), fmt::format("{:g}", t.busy[size_t(rank)]),
                    std::to_string(peak_in_flight(s.ranks[size_t(rank)]).to_weight_gradient),
                    bounds.empty() ? "" : std::to_string(bounds[size_t(rank)]), std::move(stages)});
  }
  constexpr auto kLeft = TableColumn::Align::left;
  const std::vector<TableColumn> columns{{"rank", 6, kLeft},
                                         {"busy", 10},
                                         {"in flight", 12},
                                         {bounds.empty() ? "" : "bound", 10, kLeft},
                                         {"stages", 0, kLeft}};
  return wrap_words(out, width) + "\n" + text_table(columns, rows, width);
}

void show_schedule(ScheduleOptions o) {
  o.costs.overlap_p2p = !o.no_overlap;
  using schedule::PairedGradient;
  o.costs.paired_gradient =
      pick<PairedGradient>(o.paired_gradient, {{"at_end", PairedGradient::at_end},
                                               {"in_order", PairedGradient::in_order},
                                               {"at_once", PairedGradient::at_once}});
  const bool named = o.from_csv.empty();
  schedule::Schedule s;
  std::vector<int64_t> bounds;
  std::string formula;
  if (named) {
    const bool one_rank = o.size.pp == 1;
    if (o.name.empty()) o.name = o.size.moe_overlap && !one_rank ? "interleaved_1f1b" : "1f1b";
    const schedule::ScheduleKind& kind = schedule::schedule_named(plan::schedule_name(o.name));
    if (o.size.moe_overlap && kind.list != schedule::interleaved_1f1b &&
        kind.list != schedule::dualpipev && !(one_rank && kind.list == schedule::one_f_one_b))
      throw UserError(
          fmt::format("{} has no order with overlapped experts on {}", kind.name,
                      one_rank ? "one rank" : fmt::format("{} ranks", o.size.pp)),
          "use interleaved_1f1b, dualpipev, or 1f1b with --pp 1, or leave --moe-overlap out");
    if (o.size.stages_per_rank == 0) o.size.stages_per_rank = kind.min_stages;
    s = make_schedule(kind, o.size);
    for (int64_t rank = 0; rank < s.pp; ++rank)
      bounds.push_back(chunks_in_flight(kind, o.size, rank));
    formula = fmt::format(" (by formula, for F = I = W and free communication: {:.2f} %)",
                          100 * bubble_fraction(kind, o.size));
  } else {
    s = plan::schedule_from_csv(o.from_csv);
  }
  if (o.gathered > 0) s = with_sharding(s, o.gathered);
  const bool at_once = o.costs.paired_gradient == PairedGradient::at_once;
  s = o.no_overlap ? with_batched_messages(s) : with_messages(s, at_once);
  const std::vector<std::string> faults = schedule_faults(s, bounds);
  MT_CHECK(faults.empty(), "{}: {}", s.name, faults[0]);
  o.costs.parts = stage_parts_of(o, s.stages);
  add_estimates(o, o.costs);
  o.costs.pairs_take_turns = named && !o.size.moe_overlap;
  const schedule::Timeline timeline = simulate(s, o.costs);
  const auto write = [](const std::string& path, const std::string& picture) {
    write_file_atomic(path, picture);
    fmt::print("{}: written\n", path);
  };
  if (!o.svg.empty()) write(o.svg, schedule_svg(s, timeline));
  if (!o.html.empty()) write(o.html, schedule_html(s, timeline));
  if (o.csv) std::fputs(schedule_csv(s).c_str(), stdout);
  if (o.actions)
    for (int64_t rank = 0; rank < s.pp; ++rank)
      print_lines(fmt::format("rank {}: {}\n", rank, to_string(s.ranks[size_t(rank)])));
  if (o.csv || o.actions || ((!o.svg.empty() || !o.html.empty()) && !o.text)) return;
  // Rows are wrapped only for a terminal, not for a file or a pipe.
  if (o.columns < 0) o.columns = line_width(STDOUT_FILENO);
  fmt::print("{}\n{}", summary(s, timeline, bounds, formula, int(o.columns)),
             schedule_text(s, timeline, o.columns));
}

const CLI::Validator kTime = number_from(0.0, 1e9);

void add_size_options(CLI::App& command, ScheduleOptions& o) {
  std::string names;
  for (const schedule::ScheduleKind& kind : schedule::schedule_kinds())
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  auto* name = command.add_option(
      "--name", o.name, names + "; 1f1b unless given, interleaved_1f1b with --moe-overlap");
  // A picture has a row per rank; more rows would not be readable.
  const auto whole = integer_from(1, 1024);
  std::vector<CLI::Option*> sizes{
      name,
      command.add_option("--pp", o.size.pp, "ranks")->check(whole)->capture_default_str(),
      command
          .add_option("--vpp", o.size.stages_per_rank,
                      "stages per rank; default: the fewest that the schedule supports")
          ->check(whole),
      command.add_option("--micro", o.size.micro_batches, "micro-batches")
          ->check(integer_from(1, 1 << 16))
          ->capture_default_str(),
      command
          .add_option("--group", o.size.group, "interleaved: consecutive micro-batches per stage")
          ->check(integer_from(1, 1 << 16)),
      command.add_flag("--moe-overlap", o.size.moe_overlap,
                       "run forwards together with backwards: interleaved_1f1b, dualpipev or, on "
                       "one rank, 1f1b (overlap_moe_expert_parallel_comm, fine_grained_1f1b)")};
  auto* from = command.add_option("--from-csv", o.from_csv,
                                  "a CSV file with the schedule, instead of --name");
  for (CLI::Option* size : sizes) from->excludes(size);
}

void add_time_options(CLI::App& command, ScheduleOptions& o) {
  schedule::StageCost& cost = o.costs.stages[0];
  for (CLI::Option* time :
       {command.add_option("--forward", cost.F, "time of a stage's forward"),
        command.add_option("--input-gradient", cost.I, "time of a stage's input gradient"),
        command.add_option("--weight-gradient", cost.W, "time of a stage's weight gradient")})
    time->check(kTime);
  command
      .add_option(
          "--together", o.costs.together,
          "time of a forward and a backward that run together, divided by the sum of their times")
      ->check(number_from(0.5, 1.0));
  command
      .add_option("--paired-gradient", o.paired_gradient,
                  "when a backward that runs together with a forward sends its gradient: at_end of "
                  "both, in_order with compute (fine_grained_1f1b), or at_once "
                  "(overlap_p2p_backward_on_comm_stream)")
      ->check(one_of({"at_end", "in_order", "at_once"}));
  command
      .add_option("--forward-tail,--forward-behind", o.costs.forward_tail,
                  "at_once: share of the forward that runs after the gradient is ready")
      ->check(number_from(0.0, 1.0));
}

// Adds the options about exchanges, and returns them.
std::vector<CLI::Option*> add_exchange_options(CLI::App& command, ScheduleOptions& o) {
  auto* exchange = command.add_option("--exchange", o.exchange,
                                      "time of the experts' exchanges divided by the time of all "
                                      "computations; all layers have experts");
  exchange->check(number_from(1e-6, 100.0));
  auto* part = command.add_option(
      "--part", o.parts,
      "NAME=F,I,W: measured times of a layer's attention, route, experts, shared, exchange (one "
      "way), or of the head, instead of shares of a stage; parts without a time take none");
  for (const char* time : {"--forward", "--input-gradient", "--weight-gradient", "--exchange"})
    part->excludes(command.get_option(time));
  command
      .add_option("--estimate", o.estimates,
                  "NAME=F,I,W: the plan's estimate for a part (--dry-run prints it); it decides "
                  "the order of the parts, and --part their times")
      ->needs(part);
  std::vector<CLI::Option*> of_exchanges{
      command.add_option("--layers", o.layers, "layers per stage")->check(integer_from(1, 1 << 10)),
      command
          .add_option("--chunks", o.costs.exchange_chunks,
                      "chunks of a layer's exchanges in passes that run alone "
                      "(comm_overlap.moe_dispatch_chunks)")
          ->check(integer_from(1, 1 << 10)),
      command
          .add_option("--exchange-latency", o.latency,
                      "fixed time of each chunk, which is part of the time of an exchange")
          ->check(kTime),
      command.add_flag("--delay-wgrad", o.costs.pair.delay_wgrad,
                       "weight gradients after the exchanges that can start (delay_wgrad_compute)"),
      command.add_flag(
          "--shared-overlap", o.shared_overlap,
          "overlap each GEMM of the shared expert with an exchange (shared_expert_overlap)")};
  for (CLI::Option* with : {exchange, part})
    for (const char* share : {"--together", "--forward-tail"})
      with->excludes(command.get_option(share));
  return of_exchanges;
}

void add_message_options(CLI::App& command, ScheduleOptions& o) {
  command.add_option("--p2p-latency", o.costs.p2p_latency, "time until a message arrives")
      ->check(kTime);
  command
      .add_option("--p2p-transfer", o.costs.p2p_transfer, "time that a message keeps its link busy")
      ->check(kTime);
  command.add_flag("--one-link", o.costs.one_link,
                   "all messages of a rank share one link, as with comm.link");
  auto* delayed = command.add_option(
      "--delayed-wgrad", o.costs.delayed_wgrad,
      "share of a backward's weight gradients that run after its gradient is sent");
  delayed->check(number_from(0.0, 1.0))
      ->excludes(command.get_option("--exchange"))
      ->excludes(command.get_option("--part"));
  command.add_flag("--no-overlap", o.no_overlap, "ranks wait until their messages have arrived")
      ->excludes(delayed);
  auto* gathered =
      command
          .add_option("--gathered", o.gathered,
                      "sharded weights: stages whose weights a rank may gather at once")
          ->check(integer_from(2, 1 << 16));
  command.add_option("--gather", o.costs.stages[0].gather, "time to gather the weights of a stage")
      ->check(kTime)
      ->needs(gathered);
  command
      .add_option("--reduce", o.costs.stages[0].reduce,
                  "time to reduce the gradients of a stage, after its last backward")
      ->check(kTime);
}

}  // namespace

void add_schedule_command(CLI::App& app) {
  auto* command = app.add_subcommand("schedule", "show a pipeline schedule and its cost");
  auto o = std::make_shared<ScheduleOptions>();
  const char* of_parts =
      "mtrain schedule --moe-overlap --pp 1 --part attention=4,5,4 --part experts=3,3,3 "
      "--part exchange=2,2";
  set_examples(
      *command,
      {"mtrain schedule --pp 4 --vpp 2 --micro 16 --name zero_bubble",
       "mtrain schedule --pp 8 --micro 32 --name 1f1b --p2p-latency 0.1 --svg 1f1b.svg",
       "mtrain schedule --pp 8 --micro 32 --name zero_bubble --html zero_bubble.html",
       "mtrain schedule --moe-overlap --layers 2 --exchange 0.3 --chunks 4", of_parts,
       "mtrain schedule --pp 4 --micro 8 --name dualpipev --csv > mine.csv  # a table to edit",
       "mtrain schedule --from-csv mine.csv"});
  add_size_options(*command, *o);
  add_time_options(*command, *o);
  const std::vector<CLI::Option*> of_exchanges = add_exchange_options(*command, *o);
  add_message_options(*command, *o);

  command->add_flag("--text", o->text, "as text (the default)");
  command->add_flag("--csv", o->csv, "as a table for distributed.pipeline.pp_schedule_csv");
  command->add_flag("--actions", o->actions, "all actions of each rank, sends and receives too");
  command->add_option("--svg", o->svg,
                      "write a picture to this file; its rows wrap at a width of 1600 pixels");
  command->add_option("--html", o->html, "write an HTML page with a picture to zoom to this file");
  command->add_option("--columns", o->columns, "width of the text; 0: do not wrap")
      ->check(integer_from(0, 1 << 20));
  command->callback([o, of_exchanges] {
    for (const CLI::Option* option : of_exchanges)
      if (option->count() > 0 && o->parts.empty() && o->exchange == 0)
        throw UserError(fmt::format("{} needs --exchange or --part", option->get_name()),
                        "set a time of the experts' exchanges, such as --exchange 0.3");
    show_schedule(*o);
  });
}

}  // namespace mtrain
