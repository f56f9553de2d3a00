#include "predict/row_calibration.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/core.h>

#include "base/error.h"
#include "base/median.h"
#include "plan/stack_file.h"
#include "predict/prediction.h"
#include "predict/robust_fit.h"
#include "predict/step_model.h"

namespace mtrain::predict {

using plan::PublishedModel;

namespace {

// The expected error of a row, in the log of its time: half of what releases differ by.
constexpr double kExpectedError = 0.04;

// A well-tuned program is expected near the first constants. The second ones are the standard
// deviations of their logarithms.
constexpr StackConstants kPrior{.gemm = 0.78,
                                .gemm8 = 0.72,
                                .experts = 0.7,
                                .traffic = 0.3,
                                .attention = 0.55,
                                .memory = 0.85,
                                .conversion = 0.85,
                                .tp_link = 0.8,
                                .dp_link = 0.8,
                                .launch_s = 1.5e-6};
constexpr StackConstants kDeviation{.gemm = 0.12,
                                    .gemm8 = 0.15,
                                    .experts = 0.4,
                                    .traffic = 0.7,
                                    .attention = 0.25,
                                    .memory = 0.5,
                                    .conversion = 0.5,
                                    .tp_link = 0.5,
                                    .dp_link = 0.5,
                                    .launch_s = 0.7};

StackConstants constants_from(const FitVector& logs) {
  StackConstants constants;
  size_t i = 0;
  plan::for_each_constant(
      [&](const auto& field) { constants.*field.member = std::exp(logs[i++]); });
  return constants;
}

struct Recorded {
  plan::Cluster cluster;
  std::unique_ptr<const StepModel> model;
  double step(const StackConstants& constants) const {
    return model->price(SheetCosts(cluster, constants)).step_s;
  }
  double step(const FitVector& logs) const { return step(constants_from(logs)); }
};

double rate_of(const FittedConfiguration& c, const PublishedRows& all) {
  const PublishedRow& row = *c.rows.front();
  return double(*row.batch * *row.seq) * plan::flops_of_token(*all.model_of(row), *row.seq) /
         double(row.gpus) / c.measured;
}

}  // namespace

RowCalibration calibrate_rows(const PublishedRows& all, const RowChoice& choice,
                              const recipe::ModelSource& models,
                              const std::function<void(const std::string&)>& progress) {
  RowCalibration out;
  std::map<std::string, size_t> places;
  std::vector<Recorded> recorded;
  for (const PublishedRow& row : all.rows) {
    if (row.gpu != choice.gpu || plan::stack_of(row) != choice.stack) continue;
    std::string obstacle = plan::row_obstacle(row, all);
    if (!obstacle.empty()) {
      out.obstacles[obstacle].push_back(&row);
      continue;
    }
    const PublishedModel& model = *all.model_of(row);
    const bool experts = model.experts.has_value();
    if (choice.models != RowChoice::Models::all &&
        experts != (choice.models == RowChoice::Models::experts))
      continue;
    const std::string key = plan::configuration_of(row);
    if (const auto known = places.find(key); known != places.end()) {
      out.configurations[known->second].rows.push_back(&row);
      continue;
    }
    try {
      Recorded r{.cluster = plan::cluster_of(row)};
      r.model = std::make_unique<const StepModel>(plan::plan_of(row, model, models), r.cluster);
      places.emplace(key, recorded.size());
      recorded.push_back(std::move(r));
      out.configurations.push_back({.rows = {&row}, .experts = experts});
      progress(plan::row_text(row));
    } catch (const Error& e) {  // also layouts that the trainer cannot build: the row is counted
      out.obstacles["mtrain: " + e.message()].push_back(&row);
    }
  }
  if (recorded.empty())
    throw UserError(
        fmt::format("no row of {} on {} can be predicted", choice.stack, enum_name(choice.gpu)));
  for (FittedConfiguration& c : out.configurations) {
    std::vector<double> times;
    for (const PublishedRow* row : c.rows)
      times.push_back(plan::measured_step(*row, *all.model_of(*row)));
    c.measured = median(std::move(times));
  }

  RobustProblem problem;
  plan::for_each_constant([&](const auto& field) {
    problem.prior.push_back(std::log(kPrior.*field.member));
    problem.deviation.push_back(kDeviation.*field.member);
  });
  problem.residuals = [&](const FitVector& logs) {
    FitVector residuals;
    for (size_t i = 0; i < recorded.size(); ++i)
      residuals.push_back(std::log(recorded[i].step(logs) / out.configurations[i].measured) /
                          kExpectedError);
    return residuals;
  };
  const FitVector weights(recorded.size(), 1.0);
  const RobustFit fit(problem, weights);
  out.constants = constants_from(fit.unknowns());
  for (size_t i = 0; i < recorded.size(); ++i) {
    FittedConfiguration& c = out.configurations[i];
    c.fitted = recorded[i].step(fit.unknowns());
    c.defaults = recorded[i].step(StackConstants());
    FitVector others = weights;
    others[i] = 0;
    c.left_out = recorded[i].step(fit.refit(others));
    std::vector<double> rates;
    for (size_t j = 0; j < recorded.size(); ++j)
      if (const FittedConfiguration& o = out.configurations[j];
          j != i && o.rows.front()->precision == c.rows.front()->precision &&
          o.experts == c.experts)
        rates.push_back(rate_of(o, all));
    if (!rates.empty()) c.single_mfu = c.measured * rate_of(c, all) / median(std::move(rates));
  }
  return out;
}

namespace {

// How far predictions are from what was measured; errors are shares of the measured time.
struct Errors {
  std::vector<double> sorted;
  explicit Errors(const RowCalibration& calibration, double FittedConfiguration::*predicted) {
    for (const FittedConfiguration& c : calibration.configurations)
      if (c.*predicted > 0) sorted.push_back(std::abs(c.*predicted / c.measured - 1));
    std::ranges::sort(sorted);
  }
  size_t within(double share) const {
    return size_t(std::ranges::upper_bound(sorted, share) - sorted.begin());
  }
  double percentile(double share) const {
    if (sorted.empty()) return 0;
    return 100 * sorted[std::min(sorted.size() - 1, size_t(share * double(sorted.size())))];
  }
};

std::string summary(const RowCalibration& calibration) {
  const Errors own(calibration, &FittedConfiguration::left_out),
      mfu(calibration, &FittedConfiguration::single_mfu);
  return fmt::format(
      "{} of {} configurations within 10 %, {} within 25 %, when each is predicted by the others\n"
      "error: median {:.1f} %, 80th percentile {:.1f} %; of a single MFU: {:.1f} % and {:.1f} %\n",
      own.within(0.1), own.sorted.size(), own.within(0.25), own.percentile(0.5),
      own.percentile(0.8), mfu.percentile(0.5), mfu.percentile(0.8));
}

}  // namespace

std::string rows_text(const RowCalibration& calibration, const RowChoice& choice) {
  std::string text = fmt::format("{} on {}\n\n", choice.stack, enum_name(choice.gpu));
  text +=
      "| configuration | recompute | rows | measured s | fitted | left out | single MFU | "
      "defaults |\n|---|---|---|---|---|---|---|---|\n";
  for (const FittedConfiguration& c : calibration.configurations)
    text += fmt::format("| {} | {} | {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} |\n",
                        plan::row_text(*c.rows.front()), c.rows.front()->recompute, c.rows.size(),
                        c.measured, c.fitted / c.measured, c.left_out / c.measured,
                        c.single_mfu / c.measured, c.defaults / c.measured);
  const Errors defaults(calibration, &FittedConfiguration::defaults);
  text += "\n" + summary(calibration) +
          fmt::format("with the default constants: {} of {} within {:.0f} %, median {:.1f} %\n",
                      defaults.within(kUncalibratedBand), defaults.sorted.size(),
                      100 * kUncalibratedBand, defaults.percentile(0.5)) +
          "constants:";
  plan::for_each_constant([&](const auto& field) {
    text += fmt::format(" {} {:.3g}", field.name, calibration.constants.*field.member);
  });
  text += "\n";
  for (const auto& [reason, rows] : calibration.obstacles)
    text += fmt::format("left out, {}: {}\n", rows.size(), reason);
  return text;
}

std::string stack_text(const RowCalibration& calibration, const RowChoice& choice) {
  size_t rows = 0;
  for (const FittedConfiguration& c : calibration.configurations) rows += c.rows.size();
  const std::string comment = fmt::format(
      "Constants of {} on {}, fitted by mtrain calibrate to {} published rows of {} "
      "configurations.\n",
      choice.stack, enum_name(choice.gpu), rows, calibration.configurations.size());
  return plan::print_stack(
      {.kind = recipe::cluster_kind(choice.gpu), .constants = calibration.constants},
      comment + summary(calibration));
}

}  // namespace mtrain::predict
