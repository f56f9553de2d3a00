// Compares learning rates with their closed forms.
#include <cmath>
#include <numbers>

#include <catch2/catch.hpp>

#include "optim/lr_schedule.h"
#include "plan/options/recipe_options.h"
#include "recipe/schema/optimizer.h"

namespace optim_lr_schedule_test {

using namespace mtrain;
using namespace mtrain::optim;

namespace {

constexpr double kLr = 0.8, kMin = 0.08;
constexpr int64_t kWarmUp = 10, kEnd = 110;

recipe::LrSchedulerConfig config(recipe::LrStyle style) {
  recipe::LrSchedulerConfig c;
  c.style = style;
  c.warmup_steps = kWarmUp;
  c.decay_steps = kEnd;
  c.min_lr = kMin;
  return c;
}

LrSchedule schedule(const recipe::LrSchedulerConfig& c, int64_t train_steps = 1000) {
  recipe::OptimizerConfig optimizer;
  optimizer.lr = kLr;
  return LrSchedule(plan::lr_schedule_options(optimizer, c, train_steps));
}

// Allows one rounding to fp32 of a value that is computed in double.
Approx near(double x) { return Approx(x).epsilon(1e-6); }

}  // namespace

TEST_CASE("every style warms up alike, from one part of lr to the whole") {
  for (recipe::LrStyle style : {recipe::LrStyle::cosine, recipe::LrStyle::linear,
                                recipe::LrStyle::constant, recipe::LrStyle::wsd}) {
    auto c = config(style);
    c.wsd_decay_steps = 40;
    const auto s = schedule(c);
    for (int64_t step = 1; step <= kWarmUp; ++step) CHECK(s.at(step) == near(kLr * step / kWarmUp));
    c.init_lr = 0.2;
    CHECK(schedule(c).at(5) == near(0.2 + (kLr - 0.2) * 5 / kWarmUp));
    CHECK(schedule(c).at(kWarmUp) == near(kLr));
    c.warmup_steps = 0;
    CHECK(schedule(c).at(1) == near(kLr).epsilon(0.01));  // the first step of the way down
  }
}

TEST_CASE("cosine, linear and constant") {
  const auto cosine = schedule(config(recipe::LrStyle::cosine)),
             linear = schedule(config(recipe::LrStyle::linear)),
             constant = schedule(config(recipe::LrStyle::constant));
  for (int64_t step = kWarmUp; step <= kEnd; ++step) {
    const double share = double(step - kWarmUp) / double(kEnd - kWarmUp);
    CHECK(cosine.at(step) ==
          near(kMin + (kLr - kMin) * 0.5 * (1 + std::cos(std::numbers::pi * share))));
    CHECK(linear.at(step) == near(kLr + (kMin - kLr) * share));
    CHECK(constant.at(step) == near(kLr));
  }
  CHECK(cosine.at(60) == near((kLr + kMin) / 2));  // halfway, under every formula
  for (int64_t step : {kEnd, kEnd + 1, int64_t{100000}}) {
    CHECK(cosine.at(step) == near(kMin));
    CHECK(linear.at(step) == near(kMin));
    CHECK(constant.at(step) == near(kLr));
  }
}

TEST_CASE("wsd holds lr, and comes down in four shapes") {
  const auto of = [](LrDecay shape) {
    auto c = config(recipe::LrStyle::wsd);
    c.wsd_decay_steps = 40;
    c.wsd_decay_style = shape;
    return schedule(c);
  };
  const auto linear = of(LrDecay::linear), cosine = of(LrDecay::cosine),
             exponential = of(LrDecay::exponential), root = of(LrDecay::minus_sqrt);
  for (const auto* s : {&linear, &cosine, &exponential, &root}) {
    for (int64_t step = kWarmUp; step <= 70; ++step) CHECK(s->at(step) == near(kLr));
    CHECK(s->at(71) < kLr);
    CHECK(s->at(kEnd) == near(kMin));
    CHECK(s->at(kEnd + 50) == near(kMin));
  }
  // The remaining part of lr - min_lr after a quarter, a half and three quarters of the decay.
  const auto left = [](const LrSchedule& s, int64_t step) {
    return (double(s.at(step)) - kMin) / (kLr - kMin);
  };
  const double half = std::sqrt(0.5);
  for (const auto& [step, share] : {std::pair{80, 0.25}, {90, 0.5}, {100, 0.75}}) {
    CHECK(left(linear, step) == near(1 - share));
    CHECK(left(root, step) == near(1 - std::sqrt(share)));
  }
  CHECK(left(cosine, 80) == near((1 + half) / 2));
  CHECK(left(cosine, 90) == near(0.5));
  CHECK(left(cosine, 100) == near((1 - half) / 2));
  CHECK(left(exponential, 80) == near(2 / std::pow(2, 0.25) - 1));
  CHECK(left(exponential, 90) == near(2 * half - 1));
  CHECK(left(exponential, 100) == near(2 / std::pow(2, 0.75) - 1));
}

TEST_CASE("edges: a decay longer than the run, and one that begins inside the warm-up") {
  auto c = config(recipe::LrStyle::wsd);
  c.wsd_decay_style = LrDecay::linear;
  c.wsd_decay_steps = 1000;  // from the end of the warm-up then
  CHECK(schedule(c).at(kWarmUp) == near(kLr));
  CHECK(schedule(c).at(60) == near((kLr + kMin) / 2));
  c = config(recipe::LrStyle::linear);
  c.decay_steps.reset();  // train.steps
  CHECK(schedule(c, 30).at(20) == near((kLr + kMin) / 2));
  CHECK(schedule(c, 30).at(30) == near(kMin));
  c.warmup_steps = 30;  // the warm-up takes all steps
  CHECK(schedule(c, 30).at(30) == near(kLr));
  CHECK(schedule(c, 30).at(31) == near(kMin));
}

TEST_CASE("between two steps the rate is between theirs") {
  const LrSchedule linear = schedule(config(recipe::LrStyle::linear));
  for (const double step : {2.5, 9.5, 10.5, 60.25, 109.75}) {
    INFO(step);
    const double before = std::floor(step), share = step - before;
    CHECK(linear.at(step) == near((1 - share) * linear.at(before) + share * linear.at(before + 1)));
  }
  CHECK(linear.at(110.5) == float(kMin));
}

}  // namespace optim_lr_schedule_test
