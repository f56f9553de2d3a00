// Figures that follow from the steps of a calibration, with times that are written by hand.
#include <catch2/catch.hpp>

#include "run/calibration_samples.h"

namespace run_calibration_samples_test {

using namespace mtrain;
using namespace mtrain::run;
using device::StreamKind;

namespace {

const LaunchKey kGemm{.name = "matmul_up_fwd", .flops = 1e6, .read = 100, .written = 50},
    kBlock{.name = "attention_block_fwd", .flops = 1e5, .read = 10, .written = 5};

plan::Calibration figures(const MeasuredSteps& samples) {
  plan::Calibration c;
  c.links.push_back(
      {.kind = "exchange", .dtype = DType::f32, .ranks = 2, .alpha_s = 1e-5, .bytes_per_s = 1e9});
  summarize(samples, c);
  return c;
}

// Communication that works for `seconds`, of which a share is beside computations. That part takes
// 1 + `more` times as long.
StepLink link_with(double seconds, double share, double more, int64_t count = 1) {
  const double beside = seconds * share * (1 + more);
  return {.seconds = seconds * (1 - share) + beside, .beside = beside, .count = count};
}

MeasuredSteps alone() {
  return {.alone = {{kGemm, {1.9e-3, 2e-3, 5e-3}}}, .gaps = {1e-6}, .hosts = {2e-6}};
}

}  // namespace

TEST_CASE("launches of ranks that work together are compared with those of ranks alone") {
  MeasuredSteps samples = alone();
  for (const double longer : {1.0, 1.2, 3.0}) {
    StepTogether step{.parallelism = "tp"};
    for (int i = 0; i < 4; ++i) step.undisturbed[kGemm].add(longer * 2e-3);
    step.undisturbed[kBlock].add(longer * 1e-3);
    samples.together.push_back(step);
  }
  const plan::Calibration c = figures(samples);
  CHECK(c.together.at("tp") == Approx(0.2));
  REQUIRE(c.find("matmul_up_fwd", DType::f32));
  REQUIRE(c.find("matmul_up_fwd", DType::f32)->points.size() == 1);
  CHECK(c.find("matmul_up_fwd", DType::f32)->points[0].seconds == 2e-3);
  // Only ranks that work together have such launches.
  CHECK(c.find("attention_block_fwd", DType::f32)->points.at(0).seconds == Approx(1e-3));
  CHECK(c.gap_s == 1e-6);
  CHECK(c.host_s == 2e-6);
  CHECK(c.wakes.empty());
}

TEST_CASE("a stream's idle time without gaps, over its waits, is its time to wake up") {
  MeasuredSteps samples = alone();
  for (const double idle : {30e-6, 130e-6, 1130e-6})
    samples.together.push_back({.parallelism = "tp", .waits = 10, .launches = 30, .idle_s = idle});
  CHECK(figures(samples).wakes.at("tp") == Approx(10e-6));
}

TEST_CASE("what computations lose beside communication counts in sums over all steps") {
  MeasuredSteps samples = alone();
  StepTogether step{.parallelism = "dp"};
  for (int i = 0; i < 15; ++i) {
    step.disturbed[StreamKind::dp_grad].push_back({kGemm, 2e-3, 2e-3});
    step.disturbed[StreamKind::dp_grad].push_back({kGemm, 6e-3, 6e-3});
    step.disturbed[StreamKind::dp_grad].push_back({kGemm, 90e-3, 1e-3});  // mostly alone
  }
  step.disturbed[StreamKind::dp_param].push_back({kGemm, 6e-3, 6e-3});  // too few
  samples.together.push_back(step);
  const plan::Calibration c = figures(samples);
  // Half of the common time is lost, so the other half takes twice as long.
  CHECK(c.slowdowns.at("dp_grad") == Approx(1));
  CHECK_FALSE(c.slowdowns.contains("dp_param"));
}

TEST_CASE("computations that are longer everywhere are not slowed down by communication") {
  MeasuredSteps samples = alone();
  StepTogether step{.parallelism = "tp"};
  for (int i = 0; i < 30; ++i) {
    step.undisturbed[kGemm].add(2.4e-3);
    step.disturbed[StreamKind::tp].push_back({kGemm, 2.4e-3, 2.4e-3});
  }
  samples.together.push_back(step);
  const plan::Calibration c = figures(samples);
  CHECK(c.together.at("tp") == Approx(0.2));
  CHECK((!c.slowdowns.contains("tp") || c.slowdowns.at("tp") < 1e-9));
}

TEST_CASE("communication that is always beside computations does not show what these cost") {
  MeasuredSteps samples = alone();
  const StepLinkKey gather{StreamKind::dp_param, "all_gather", DType::f32, 2};
  for (const auto& [bytes, seconds] : {std::pair{1e3, 1.1e-4}, {3e4, 3e-4}, {1e6, 1.3e-3}}) {
    StepTogether step{.parallelism = "dp"};
    step.links[gather][bytes] = {.seconds = seconds, .beside = 0.9 * seconds, .count = 1};
    samples.together.push_back(step);
  }
  const plan::Calibration c = figures(samples);
  CHECK(c.besides.empty());
  REQUIRE(c.find_link("dp_param", "all_gather", DType::f32, 2));
  CHECK(c.find_link("dp_param", "all_gather", DType::f32, 2)->seconds(1e6) ==
        Approx(1.3e-3).epsilon(0.15));
}

TEST_CASE("messages of two sizes show what computations beside them cost if each size has both") {
  const StepLinkKey message{StreamKind::pp_send, "exchange", DType::f32, 2};
  const auto measured = [&](bool both) {
    MeasuredSteps samples = alone();
    for (const double bytes : {1e4, 2e4})
      for (const double beside : {0.0, 0.8}) {
        if (!both && bytes == 1e4 && beside > 0) continue;
        StepTogether step{.parallelism = "pp"};
        // Three times as long as alone, and the part beside computations three times that.
        step.links[message][bytes] = link_with(3 * (1e-5 + bytes / 1e9), beside, 2);
        samples.together.push_back(step);
      }
    return figures(samples);
  };
  const plan::Calibration c = measured(true);
  CHECK(c.besides.at("pp_send") == Approx(2));
  const plan::LinkTimes* line = c.find_link("pp_send", "exchange", DType::f32, 2);
  REQUIRE(line);
  CHECK(line->alpha_s == Approx(3e-5));
  CHECK(line->bytes_per_s == Approx(1e9 / 3));
  CHECK(line->spread < 1e-9);
  CHECK(measured(false).besides.empty());
}

TEST_CASE("communication in steps is a line over the bytes, without computations beside it") {
  MeasuredSteps samples = alone();
  const StepLinkKey gather{StreamKind::dp_param, "all_gather", DType::f32, 2},
      ring{StreamKind::cp, "exchange", DType::f32, 2},
      other{StreamKind::ep, "all_to_all", DType::f32, 2};
  for (const double bytes : {1e4, 1e5, 1e6})
    for (const double beside : {0.0, 0.8}) {
      StepTogether step{.parallelism = "dp"};
      step.links[gather][bytes] = link_with(3 * (2e-5 + bytes / 2e9), beside, 1.5, 3);
      step.stretch[StreamKind::dp_param] = 1.5;
      samples.together.push_back(step);
    }
  StepTogether step{.parallelism = "cp"};
  step.links[ring] = {{1e4, {.seconds = 4e-5, .count = 1}}, {3e4, {.seconds = 8e-5, .count = 1}}};
  step.links[other] = {{1e4, {.seconds = 4e-5, .count = 1}}};
  step.idle_share = {{StreamKind::cp, 0.25}, {StreamKind::dp_param, 0}};
  samples.together.push_back(step);
  const plan::Calibration c = figures(samples);
  CHECK(c.besides.at("dp_param") == Approx(1.5));
  const plan::LinkTimes* line = c.find_link("dp_param", "all_gather", DType::f32, 2);
  REQUIRE(line);
  CHECK(line->alpha_s == Approx(2e-5));
  CHECK(line->bytes_per_s == Approx(2e9));
  // Sizes that are alike: twice the time of the exchange alone, 2e-5 s and 4e-5 s.
  const plan::LinkTimes* scaled = c.find_link("cp", "exchange", DType::f32, 2);
  REQUIRE(scaled);
  CHECK(scaled->alpha_s == Approx(2e-5));
  CHECK(scaled->bytes_per_s == Approx(5e8));
  CHECK_FALSE(c.besides.contains("cp"));
  CHECK_FALSE(c.find_link("ep", "all_to_all", DType::f32, 2));  // not measured alone
  CHECK(c.stretches.at("dp_param") == 1.5);
  CHECK(c.idle_shares.at("cp") == 0.25);
  CHECK_FALSE(c.idle_shares.contains("dp_param"));
}

}  // namespace run_calibration_samples_test
