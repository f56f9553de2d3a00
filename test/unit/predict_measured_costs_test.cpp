// Prices launches by made-up points.
#include <catch2/catch.hpp>

#include <cmath>
#include <random>

#include "predict/measured_costs.h"

namespace predict_measured_costs_test {

using namespace mtrain;
using namespace mtrain::predict;
using device::StreamKind;
using plan::LaunchPoint;

namespace {

// A launch with an overhead, a rate of arithmetic and one of memory.
double true_seconds(double flops, double bytes) { return 2e-6 + flops / 50e9 + bytes / 10e9; }

LaunchPoint point(double flops, double read, double written) {
  return {flops, read, written, true_seconds(flops, read + written), 0};
}

std::vector<LaunchPoint> gemms() {
  std::vector<LaunchPoint> points;
  for (const double m : {64.0, 256.0, 1024.0})
    for (const double n : {128.0, 512.0})
      for (const double k : {96.0, 384.0})
        points.push_back(point(2 * m * n * k, 4 * (m * k + k * n), 4 * m * n));
  return points;
}

plan::Cluster cluster() {
  plan::Cluster c;
  c.bf16_flops = c.fp32_flops = 60e9;
  c.memory_bytes_per_s = 10e9;
  c.domain_gpus = 2;
  c.nodes = 2;
  c.domain = {.bytes_per_s = 5e9, .latency_s = 1e-6};
  c.network = {.bytes_per_s = 1e9, .latency_s = 1e-5};
  c.calibration = "m.yaml";
  return c;
}

plan::Calibration calibration() {
  plan::Calibration c{
      .threads = 1,
      .ranks = 2,
      .gap_s = 3e-6,
      .host_s = 2e-6,
      .slowdowns = {{"dp_grad", 0.3}},
      .stretches = {{"cp", 2.0}},
      .launches = {{.name = "matmul_up_fwd", .dtype = DType::f32, .points = gemms()},
                   {.name = "add",
                    .dtype = DType::f32,
                    .points = {point(0, 800, 400), point(0, 8e6, 4e6)}}},
      .links = {
          {.kind = "all_reduce",
           .dtype = DType::f32,
           .ranks = 2,
           .alpha_s = 1e-5,
           .bytes_per_s = 4e9},
          {.kind = "send", .dtype = DType::f32, .ranks = 2, .alpha_s = 2e-5, .bytes_per_s = 4e9}}};
  return c;
}

MeasuredCosts costs(const EmulatedLinkCosts& link = {}) {
  return MeasuredCosts(calibration(), cluster(), CpuRanks{.threads = 1, .of_host = 2}, link);
}

LaunchWork gemm(const char* name, DType dtype, double m, double n, double k) {
  return {.name = name,
          .dtype = dtype,
          .flops = 2 * m * n * k,
          .read = 4 * (m * k + k * n),
          .written = 4 * m * n};
}

LaunchWork sent(const char* name, StreamKind stream, double bytes) {
  return {.name = name, .stream = stream, .dtype = DType::f32, .wire_bytes = bytes};
}

}  // namespace

TEST_CASE("no launch takes less than its class at least") {
  std::mt19937 random(17);
  std::uniform_real_distribution<double> noise(-1, 1), size(10, 500);
  for (int round = 0; round < 20; ++round) {
    plan::Calibration c = calibration();
    c.launches.clear();
    for (const char* name : {"matmul_up_fwd", "matmul_down_fwd", "matmul_qkv_dgrad"}) {
      plan::LaunchTimes times{.name = name, .dtype = DType::f32, .points = gemms()};
      for (LaunchPoint& p : times.points) p.seconds *= std::exp(noise(random));
      c.launches.push_back(std::move(times));
    }
    const MeasuredCosts costs(c, cluster(), {}, {});
    bool faster_than_class = false;
    for (int i = 0; i < 100; ++i)
      for (const char* name :
           {"matmul_up_fwd", "matmul_down_fwd", "matmul_qkv_dgrad", "matmul_other"}) {
        const LaunchWork w = gemm(name, DType::f32, size(random), size(random), size(random));
        LaunchWork of_class = w, half = w;
        of_class.name = "matmul";
        half.flops /= 2;
        const double least = costs.least_seconds(of_class), one = costs.cost(w, nullptr).seconds;
        CHECK(least > 0);
        CHECK(least <= one);
        CHECK(least <= 2 * costs.cost(half, nullptr).seconds);
        faster_than_class |= one < costs.cost(of_class, nullptr).seconds;
      }
    CHECK(faster_than_class);  // the cost of the class alone is not a bound
  }
}

TEST_CASE("a curve is exact at its points, whatever their times are") {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> exponent(-2, 9), noise(-3, 3);
  for (int round = 0; round < 50; ++round) {
    std::vector<LaunchPoint> points;
    for (int i = 0; i <= round; ++i) {
      const auto size = [&] { return std::round(std::pow(10, exponent(random))); };
      LaunchPoint p = point(round % 3 ? size() : 0, size(), size());
      p.seconds *= std::exp(noise(random));
      points.push_back(p);
    }
    const SizeCurve curve(points);
    for (const LaunchPoint& p : points) {
      const bool twice = std::ranges::count_if(points, [&](const LaunchPoint& q) {
                           return std::max(q.flops, 1.0) == std::max(p.flops, 1.0) &&
                                  std::max(q.read, 1.0) == std::max(p.read, 1.0) &&
                                  std::max(q.written, 1.0) == std::max(p.written, 1.0);
                         }) > 1;
      const LaunchCost cost = curve.at(p.flops, p.read, p.written);
      CHECK(cost.known);
      if (!twice) CHECK(cost.seconds == Approx(p.seconds).epsilon(1e-6));
    }
    for (int i = 0; i < 100; ++i) {
      const double seconds =
          curve.at(std::pow(10, exponent(random)), std::pow(10, exponent(random)), 0).seconds;
      CHECK((seconds > 0 && std::isfinite(seconds)));
    }
  }
}

TEST_CASE("a launch of an overhead and two rates is interpolated exactly") {
  const SizeCurve curve(gemms());
  std::mt19937 random(3);
  const auto between = [&](double a, double b) {
    return std::exp(std::uniform_real_distribution<double>(std::log(a), std::log(b))(random));
  };
  for (int i = 0; i < 200; ++i) {
    const double m = between(64, 1024), n = between(128, 512), k = between(96, 384);
    const double flops = 2 * m * n * k, read = 4 * (m * k + k * n), written = 4 * m * n;
    const LaunchCost cost = curve.at(flops, read, written);
    CHECK(cost.known);
    CHECK(cost.seconds == Approx(true_seconds(flops, read + written)).epsilon(1e-6));
  }
}

TEST_CASE("noise at one point changes the times near it, smoothly") {
  std::vector<LaunchPoint> points = gemms();
  points[5].seconds *= 1.5;
  const SizeCurve curve(points);
  double before = 0;
  for (double x = 0.5; x < 2; x *= 1.01) {
    const double seconds = curve.at(points[5].flops * x, points[5].read, points[5].written).seconds;
    if (before > 0) CHECK(std::abs(std::log(seconds / before)) < 0.05);
    before = seconds;
  }
}

TEST_CASE("beyond the measured sizes the nearest efficiency holds, and the cost is unknown") {
  const MeasuredCosts c = costs();
  const LaunchCost large = c.cost(gemm("matmul_up_fwd", DType::f32, 8192, 512, 384), nullptr);
  CHECK_FALSE(large.known);
  CHECK(large.seconds ==
        Approx(true_seconds(2.0 * 8192 * 512 * 384, 4.0 * (8192 * 384 + 384 * 512 + 8192 * 512))));
  const LaunchCost add =
      c.cost({.name = "add", .dtype = DType::f32, .read = 80, .written = 40}, nullptr);
  CHECK_FALSE(add.known);
  CHECK(add.seconds > 0);
}

TEST_CASE("a launch without measurements takes a similar one's time, or the data sheet's") {
  const MeasuredCosts c = costs();
  const LaunchCost similar = c.cost(gemm("matmul_down_fwd", DType::f32, 256, 512, 96), nullptr);
  CHECK_FALSE(similar.known);
  CHECK(similar.seconds ==
        Approx(c.cost(gemm("matmul_up_fwd", DType::f32, 256, 512, 96), nullptr).seconds));
  const LaunchWork other = gemm("matmul_up_fwd", DType::bf16, 256, 512, 96);
  CHECK_FALSE(c.cost(other, nullptr).known);
  CHECK(c.cost(other, nullptr).seconds ==
        Approx(SheetCosts(cluster(), {}).cost(other, nullptr).seconds));
}

TEST_CASE("another number of threads, or of ranks of a host, makes every computation unknown") {
  const LaunchWork w = gemm("matmul_up_fwd", DType::f32, 256, 512, 96);
  const auto known = [&](const std::optional<CpuRanks>& cpu) {
    return MeasuredCosts(calibration(), cluster(), cpu, {}).cost(w, nullptr).known;
  };
  CHECK(known(CpuRanks{.threads = 1, .of_host = 2}));
  CHECK_FALSE(known(CpuRanks{.threads = 2, .of_host = 2}));
  CHECK_FALSE(known(CpuRanks{.threads = 1, .of_host = 1}));
  CHECK(known(std::nullopt));
}

TEST_CASE("communication takes the measured link of its kind") {
  const MeasuredCosts c = costs();
  const plan::GroupLink two = plan::link_of(cluster(), {0, 1}),
                        far = plan::link_of(cluster(), {0, 2}),
                        four = plan::link_of(cluster(), {0, 1, 2, 3});
  const LaunchWork w = sent("all_reduce", StreamKind::dp_grad, 4e6);
  CHECK(c.cost(w, &two).known);
  CHECK(c.cost(w, &two).seconds == Approx(1e-5 + 1e-3));
  CHECK_FALSE(c.cost(w, &far).known);  // between hosts, which were not measured
  CHECK(c.cost(w, &far).seconds == Approx(SheetCosts(cluster(), {}).cost(w, &far).seconds));
  CHECK_FALSE(c.cost(w, &four).known);
  CHECK_FALSE(c.cost(sent("all_to_all", StreamKind::ep, 1e6), &two).known);
  // In a step, streams of cp need twice the time of communication alone.
  CHECK(c.cost(sent("all_reduce", StreamKind::cp, 4e6), &two).seconds == Approx(2 * (1e-5 + 1e-3)));
  CHECK(c.slowdown(StreamKind::dp_grad) == Approx(0.3));
  CHECK(c.slowdown(StreamKind::tp) == 0);
  CHECK(c.gap_seconds() == 3e-6);
}

TEST_CASE("what was measured in steps counts before what was measured alone") {
  plan::Calibration c = calibration();
  c.links.push_back({.stream = "dp_grad",
                     .kind = "all_reduce",
                     .dtype = DType::f32,
                     .ranks = 2,
                     .alpha_s = 0,
                     .bytes_per_s = 1e9});
  c.besides = {{"dp_grad", 1.5}};
  c.together = {{"dp", 0.1}, {"tp", 0.25}};
  c.idle_shares = {{"tp", 0.2}};
  c.wakes = {{"dp", 1e-5}, {"tp", 1e-4}};
  const CpuRanks cpu{.threads = 1, .of_host = 2};
  const MeasuredCosts alone(c, cluster(), cpu, {});
  const plan::GroupLink two = plan::link_of(cluster(), {0, 1});
  const auto reduced = [&](StreamKind stream) {
    return alone.cost(sent("all_reduce", stream, 1e6), &two);
  };
  CHECK(reduced(StreamKind::dp_grad).seconds == Approx(1e-3));
  CHECK(reduced(StreamKind::dp_grad).work_s == Approx(1e-3));
  CHECK(reduced(StreamKind::dp_param).seconds == Approx(1e-5 + 1e6 / 4e9));
  CHECK(alone.beside_compute(StreamKind::dp_grad) == 1.5);
  CHECK(alone.beside_compute(StreamKind::tp) == 0);
  CHECK(alone.idle_share(StreamKind::tp) == 0.2);
  CHECK(alone.idle_share(StreamKind::cp) == 0);
  // Several parallelisms cost as much as the one that costs most.
  plan::Layout layout;
  CHECK(alone.together(layout).longer == 0);
  CHECK(alone.together(layout).wake_s == 0);
  layout.dp = 2;
  CHECK(alone.together(layout).longer == 0.1);
  layout.tp = 2;
  CHECK(alone.together(layout).longer == 0.25);
  CHECK(alone.together(layout).wake_s == 1e-4);
  // Collectives work while the link carries their data, and messages when it has done so.
  const MeasuredCosts slow(c, cluster(), cpu,
                           {.latency_s = 0, .seconds_per_byte = 1e-8, .streams = {}});
  const LaunchCost collective = slow.cost(sent("all_reduce", StreamKind::dp_grad, 1e6), &two),
                   message = slow.cost(sent("send", StreamKind::pp_send, 1e6), &two);
  CHECK(collective.carried_s == Approx(1e-2));
  CHECK(collective.work_s == Approx(1e-3));
  CHECK_FALSE(collective.works_after);
  CHECK(message.carried_s == Approx(1e-2));
  CHECK(message.work_s == Approx(message.seconds - 1e-2));
  CHECK(message.works_after);
  // The sender has used the link.
  CHECK(slow.cost(sent("receive", StreamKind::pp_recv, 0), &two).carried_s == 0);
}

TEST_CASE("an emulated link ends collectives later, and delays messages") {
  const plan::GroupLink two = plan::link_of(cluster(), {0, 1});
  const EmulatedLinkCosts link{.latency_s = 1e-4, .seconds_per_byte = 1e-8, .streams = {}};
  const MeasuredCosts slow = costs(link);
  const auto seconds = [&](const MeasuredCosts& c, const char* name, StreamKind stream) {
    return c.cost(sent(name, stream, 1e6), &two).seconds;
  };
  CHECK(seconds(slow, "all_reduce", StreamKind::tp) == Approx(1e-4 + 1e-2));
  CHECK(slow.cost(sent("all_reduce", StreamKind::tp, 1e6), &two).link_s == Approx(1e-2));
  CHECK(seconds(slow, "send", StreamKind::pp_send) == Approx(1e-4 + 1e-2 + 2e-5 + 1e6 / 4e9));
  // A link that is faster than the memory delays nothing.
  const MeasuredCosts fast = costs({.latency_s = 1e-6, .seconds_per_byte = 1e-12, .streams = {}});
  CHECK(seconds(fast, "all_reduce", StreamKind::tp) == Approx(1e-5 + 1e6 / 4e9));
  CHECK(costs().cost(sent("all_reduce", StreamKind::tp, 1e6), &two).link_s == 0);
  EmulatedLinkCosts only = link;
  only.streams = {"dp_grad", "dp_param"};
  CHECK(seconds(costs(only), "all_reduce", StreamKind::tp) == Approx(1e-5 + 1e6 / 4e9));
  CHECK(seconds(costs(only), "all_reduce", StreamKind::dp_grad) == Approx(1e-4 + 1e-2));
  // Ranks that wait for the link disturb computations less.
  CHECK(slow.slowdown(StreamKind::dp_grad) < 0.3 / 10);
  const EmulatedLinkCosts of_plan =
      emulated_link({.link_latency_us = 5, .link_gbps = 8, .link_streams = {"tp"}});
  CHECK(of_plan.latency_s == Approx(5e-6));
  CHECK(of_plan.seconds_per_byte == Approx(1e-9));
}

}  // namespace predict_measured_costs_test
