#include "run/parity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "base/error.h"
#include "comm/thread/thread_transport.h"
#include "data/dataset/counting_data.h"
#include "plan/parity_recipe.h"
#include "train/build_trainer.h"
#include "train/parameter_pieces.h"

namespace mtrain::run {

namespace {

using train::Pieces;

// Rounding of earlier steps grows in the moments. The contract bounds them in step 1 alone; above
// this, a later step has a fault of its own.
constexpr double kLaterGradient = 1e-3;
// Many ranks share few cores.
constexpr auto kParityTimeout = std::chrono::minutes(10);

// What one training leaves.
struct ParityRun {
  std::vector<double> losses;                // of each step
  std::vector<std::vector<Pieces>> moments;  // by rank and step
  std::vector<std::string> parameters;       // in the order of the model; of a single rank
};

struct ParityRank {
  std::vector<double> losses;
  std::vector<Pieces> moments;
  std::vector<std::string> parameters;
};

ParityRank train_rank(const RunPlan& plan, Device& device, comm::World world, int64_t steps) {
  std::shared_ptr<const data::Dataset> data;
  if (plan.dataset.packed_size > 0)
    data = std::make_shared<data::PackedCountingData>(plan::kParityVocab, plan.sample_length);
  else
    data = std::make_shared<data::CountingData>(plan::kParityVocab, plan.sample_length);
  train::Trainer trainer = train::build_trainer(device, plan, std::move(data), std::move(world));
  ParityRank out;
  for (const model::ParamUnit* unit : trainer.params().units())
    for (const model::Parameter* p : unit->params) out.parameters.push_back(p->name);
  for (int64_t i = 0; i < steps; ++i) {
    out.losses.push_back(trainer.step().loss);
    out.moments.push_back(train::first_moments(trainer));
  }
  return out;
}

ParityRun train_alone_for_parity(const RunPlan& plan, int64_t steps) {
  const auto device = Device::cpu(1);
  ParityRank rank = train_rank(plan, *device, comm::World::alone(), steps);
  return {std::move(rank.losses), {std::move(rank.moments)}, std::move(rank.parameters)};
}

ParityRun train_layout(const RunPlan& plan, const ParityOptions& options) {
  std::vector<ParityRank> ranks(size_t(plan.layout.world));
  comm::run_thread_ranks(int(plan.layout.world),
                         [&](comm::World& world) {
                           const auto device = Device::cpu(1);
                           if (options.on_rank) options.on_rank(world.rank(), *device);
                           ranks[size_t(world.rank())] =
                               train_rank(plan, *device, world, options.steps);
                           device->set_launch_check({});
                         },
                         {.timeout = kParityTimeout});
  ParityRun run{.losses = ranks.front().losses};
  for (ParityRank& rank : ranks) run.moments.push_back(std::move(rank.moments));
  return run;
}

double relative(double reference, double value) {
  if (reference == value) return 0;
  const double difference = std::abs(reference - value) / std::abs(reference);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

// The relative L2 difference of a parameter's moments after a step; infinite if ranks disagree.
double moment_difference(const ParityRun& one, const ParityRun& other, const std::string& name,
                         size_t step) {
  const auto of_step = [&](const ParityRun& run) {
    std::vector<const Pieces*> ranks;
    for (const auto& steps : run.moments) ranks.push_back(&steps.at(step));
    return train::assemble_pieces(ranks, name);
  };
  const train::AssembledTensor want = of_step(one), got = of_step(other);
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  if (!got.complete || !got.same || got.values.size() != want.values.size()) return kInfinite;
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.values.size(); ++i) {
    difference += std::pow(double(got.values[i]) - double(want.values[i]), 2);
    size += std::pow(double(want.values[i]), 2);
  }
  if (difference == 0) return 0;
  const double relative_size = std::sqrt(difference / size);
  return std::isnan(relative_size) ? kInfinite : relative_size;
}

// Compares the moments after one step. Returns the first parameter beyond `allowed`.
std::optional<ParityDifference> compare_moments(const ParityRun& one, const ParityRun& other,
                                                size_t step, double allowed, double& largest) {
  std::optional<ParityDifference> first;
  for (const std::string& name : one.parameters) {
    const double difference = moment_difference(one, other, name, step);
    largest = std::max(largest, difference);
    if (difference <= allowed) continue;
    if (!first)
      first = ParityDifference{.step = int64_t(step) + 1,
                               .what = "gradient",
                               .parameter = name,
                               .difference = difference,
                               .allowed = allowed};
    ++first->parameters;
  }
  return first;
}

void compare_runs_for_parity(const ParityRun& one, const ParityRun& other, ParityRow& row) {
  for (size_t step = 0; step < one.losses.size(); ++step) {
    const double difference = relative(one.losses[step], other.losses[step]);
    row.loss = std::max(row.loss, difference);
    double largest = 0;
    auto moments =
        compare_moments(one, other, step, step == 0 ? kParityGradient : kLaterGradient, largest);
    if (step == 0) row.gradient = largest;
    if (row.difference) continue;
    if (difference > kParityLoss)
      row.difference = ParityDifference{.step = int64_t(step) + 1,
                                        .what = "loss",
                                        .parameter = moments ? moments->parameter : "",
                                        .difference = difference,
                                        .allowed = kParityLoss,
                                        .parameters = moments ? moments->parameters : 0};
    else
      row.difference = std::move(moments);
  }
}

std::string layout_text_of(const plan::Layout& l) {
  std::string text;
  for (const auto& [name, size] :
       {std::pair{"tp", l.tp}, std::pair{"pp", l.pp}, std::pair{"cp", l.cp}, std::pair{"ep", l.ep},
        std::pair{"dp", l.dp}})
    if (size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, size);
  return text.empty() ? "one rank" : text;
}

}  // namespace

bool ParityReport::equal() const {
  return std::ranges::none_of(rows,
                              [](const ParityRow& row) { return row.difference.has_value(); });
}

ParityReport check_parity(const plan::RecipeSource& source, const ParityOptions& options) {
  if (source.world < 1 || source.world > kParityRanks)
    throw UserError(
        fmt::format("parity is checked for 1 to {} ranks, not {}", kParityRanks, source.world),
        "give the smallest --world-size that has each parallelism");
  const plan::Change shrunk = plan::shrink_for_parity(source, options.steps);
  const auto layout = plan::plan_trial(source, shrunk, plan::kParityVocab);
  const auto alone =
      plan::plan_trial(source, plan::on_single_rank(source, shrunk), plan::kParityVocab);
  MT_CHECK(layout && alone, "a recipe that was accepted before");
  ParityReport report{.model = plan::parity_sizes_text(*layout),
                      .layout = layout_text_of(layout->plan.layout),
                      .world = source.world,
                      .steps = options.steps};
  const auto say = [&](const std::string& what) {
    if (options.progress) options.progress(what);
  };
  say("one rank");
  const ParityRun one = train_alone_for_parity(alone->plan, options.steps);
  std::optional<ParityRun> with_overlap;
  const auto compare = [&](const std::string& what, const RunPlan& plan) {
    ParityRow row{.what = what};
    say(what);
    try {
      ParityRun run = train_layout(plan, options);
      compare_runs_for_parity(one, run, row);
      if (report.rows.empty())
        with_overlap = std::move(run);
      else if (with_overlap)
        row.same_bits = run.losses == with_overlap->losses && run.moments == with_overlap->moments;
    } catch (const Error& e) {
      row.difference = ParityDifference{.what = e.message()};
    }
    report.rows.push_back(std::move(row));
  };
  compare("the layout", layout->plan);
  for (const plan::OverlapOff& off : plan::each_overlap_off(source, shrunk, layout->plan)) {
    const auto trial = off.change ? plan::plan_trial(source, *off.change, plan::kParityVocab)
                                  : std::optional<plan::Trial>();
    if (trial)
      compare(off.what, trial->plan);
    else
      report.rows.push_back({.what = off.what, .skipped = "it cannot be off alone"});
  }
  return report;
}

}  // namespace mtrain::run
