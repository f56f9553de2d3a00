// Files of measured times: written, read, and refused with all their mistakes.
#include <catch2/catch.hpp>

#include "plan/calibration.h"

namespace plan_calibration_test {

using namespace mtrain;
using namespace mtrain::plan;
using mtrain::recipe::Severity;

namespace {

std::string mistakes(const std::string& text) {
  Diagnostics diagnostics;
  read_calibration_text(text, "m.yaml", diagnostics);
  return diagnostics.text(Severity::error);
}

constexpr const char* kAdd =
    "launches:\n"
    "  add fp32:\n"
    "    flops: [0, 0]\n"
    "    read: [80, 800]\n"
    "    written: [40, 400]\n"
    "    seconds: [1, 10]\n"
    "    spread: [0, 0.1]\n";

std::vector<LinkSample> samples(double alpha, double rate, double noise) {
  std::vector<LinkSample> s;
  double sign = 1;
  for (double bytes = 1024; bytes <= 16 << 20; bytes *= 8, sign = -sign)
    s.push_back({bytes, (alpha + bytes / rate) * (1 + sign * noise)});
  return s;
}

}  // namespace

TEST_CASE("alpha and the rate of a link are fitted to relative errors") {
  const LinkTimes exact = fit_link("all_reduce", DType::f32, 4, samples(20e-6, 3e9, 0));
  CHECK(exact.alpha_s == Approx(20e-6));
  CHECK(exact.bytes_per_s == Approx(3e9));
  CHECK(exact.spread == Approx(0).margin(1e-9));
  CHECK(exact.seconds(3e9) == Approx(1 + 20e-6));
  const LinkTimes noisy = fit_link("all_reduce", DType::f32, 4, samples(20e-6, 3e9, 0.05));
  CHECK(noisy.alpha_s == Approx(20e-6).epsilon(0.1));
  CHECK(noisy.bytes_per_s == Approx(3e9).epsilon(0.1));
  CHECK((noisy.spread > 0.02 && noisy.spread < 0.12));
  // No time is negative, whatever the measurements are.
  const LinkTimes odd = fit_link("send", DType::f32, 2, {{1e3, 1e-6}, {1e6, 2e-3}});
  CHECK(odd.alpha_s == 0);
  CHECK(odd.bytes_per_s > 0);
  const LinkTimes flat = fit_link("send", DType::f32, 2, {{1e3, 2e-3}, {1e6, 1e-3}});
  CHECK((flat.alpha_s >= 0 && flat.bytes_per_s > 0));
}

TEST_CASE("a calibration is read as it was written") {
  const Calibration c{
      .device = "cpu",
      .machine = "a CPU with \"quotes\"",
      .build = "mtrain 1",
      .date = "2026-01-02T03:04:05Z",
      .threads = 2,
      .ranks = 8,
      .gap_s = 1.5e-6,
      .host_s = 0.7e-6,
      .wakes = {{"cp", 25e-6}},
      .slowdowns = {{"dp_grad", 0.25}, {"tp", 0.5}},
      .stretches = {{"cp", 1.5}},
      .idle_shares = {{"tp", 0.0625}},
      .besides = {{"dp_param", 1.25}},
      .together = {{"cp", 0.0625}},
      .launches = {{.name = "matmul_qkv_fwd",
                    .dtype = DType::bf16,
                    .points = {{1e9, 123456789012, 4e5, 1.2345e-3, 0.01},
                               {2e9, 2e6, 4e5, 2e-3, 0}}},
                   {.name = "add", .dtype = DType::f32, .points = {{0, 12, 8, 1e-6, 0.5}}}},
      .links = {fit_link("all_reduce", DType::f32, 2, {{1e3, 1e-5}, {1e7, 1e-2}}),
                fit_link("all_reduce", DType::f32, 8, {{1e3, 2e-5}, {1e7, 2e-2}}),
                fit_link("all_reduce", DType::bf16, 2, {{1e3, 3e-5}, {1e7, 3e-2}}),
                {.stream = "tp",
                 .kind = "all_reduce",
                 .dtype = DType::f32,
                 .ranks = 4,
                 .alpha_s = 1e-6,
                 .bytes_per_s = 2e9}}};
  Diagnostics diagnostics;
  const std::string text = print_calibration(c);
  const Calibration r = read_calibration_text(text, "m.yaml", diagnostics);
  INFO(text << diagnostics.text(Severity::error));
  REQUIRE_FALSE(diagnostics.has_errors());
  CHECK(r.machine == "a CPU with  quotes ");
  CHECK(r.date == c.date);
  CHECK(r.device == "cpu");
  CHECK(r.threads == 2);
  CHECK(r.ranks == 8);
  CHECK(r.gap_s == Approx(c.gap_s));
  CHECK(r.host_s == Approx(c.host_s));
  CHECK(r.wakes.at("cp") == Approx(25e-6));
  CHECK(r.slowdowns == c.slowdowns);
  CHECK(r.stretches == c.stretches);
  CHECK(r.idle_shares == c.idle_shares);
  CHECK(r.besides == c.besides);
  CHECK(r.together == c.together);
  REQUIRE(r.find("matmul_qkv_fwd", DType::bf16));
  const LaunchPoint& p = r.find("matmul_qkv_fwd", DType::bf16)->points.at(0);
  CHECK(p.flops == 1e9);
  CHECK(p.read == 123456789012);
  CHECK(p.seconds == Approx(1.2345e-3));
  CHECK(p.spread == Approx(0.01));
  CHECK_FALSE(r.find("matmul_qkv_fwd", DType::f32));
  REQUIRE(r.links.size() == 4);
  REQUIRE(r.find_link("tp", "all_reduce", DType::f32, 8));
  CHECK(r.find_link("tp", "all_reduce", DType::f32, 8)->ranks == 4);
  CHECK_FALSE(r.find_link("cp", "all_reduce", DType::f32, 4));
  CHECK(r.links[1].alpha_s == Approx(c.links[1].alpha_s).epsilon(1e-4));
  CHECK(r.links[1].bytes_per_s == Approx(c.links[1].bytes_per_s).epsilon(1e-4));
  CHECK(r.find_link("all_reduce", DType::f32, 3)->ranks == 2);
  CHECK(r.find_link("all_reduce", DType::f32, 64)->ranks == 8);
  CHECK(r.find_link("all_reduce", DType::bf16, 64)->ranks == 2);
  CHECK(r.find_link("all_reduce", DType::f16, 8)->ranks == 8);
  CHECK_FALSE(r.find_link("send", DType::f32, 2));
  CHECK(print_calibration(r) == text);
}

TEST_CASE("all mistakes of a calibration are reported at once, with their lines") {
  CHECK(mistakes(kAdd).empty());
  std::string text = kAdd;
  text += "  add bf16: {flops: [0], read: [1, 2], written: [1], seconds: [1], spread: [0]}\n";
  text += "  cast: {flops: [0], read: [1], written: [1], seconds: [1], spread: [0]}\n";
  text += "  norm fp32: {flop: [0], read: [1], written: [1], seconds: [-2], spread: [0]}\n";
  text += "  fill fp32: {flops: [], read: [], written: [], seconds: [], spread: []}\n";
  text +=
      "  copy fp32: {flops: [0, 0], read: [1, 1], written: [2, 2], seconds: [1, 2],\n"
      "              spread: [0, 0]}\n";
  text += "  flat fp32: 3\n";
  text += "links:\n  all_reduce 2: {alpha_us: 1, gbytes_s: 1}\n";
  text += "  send fp32 2: {alpha_us: -1, gbytes_s: 1}\n";
  text += "links_in_step:\n  all_reduce bf16 2: {alpha_us: 1, gbytes_s: 1}\n";
  text += "  dp_grads all_reduce fp32 2: {alpha_us: 1, gbytes_s: 1}\n";
  text += "together: {dq: 1}\nidle_share: {tp: -1}\n";
  text += "slowdown: {dp_grads: 0.1}\nstretch: {cp: -1}\nmachin: x\nthreads: 0\n";
  const std::string all = mistakes(text);
  for (const char* part : {"m.yaml:8:3: error: add bf16: read has 2 numbers, and seconds has 1",
                           "m.yaml:9:3: error: cast: expected a name such as",
                           "norm fp32: flop: ",
                           "did you mean flops?",
                           "norm fp32: seconds: ",
                           "fill fp32: has no times",
                           "copy fp32: has a size twice",
                           "flat fp32: expected a mapping",
                           "all_reduce 2: expected a name such as",
                           "send fp32 2: alpha_us: ",
                           "all_reduce bf16 2: expected a name such as `tp all_reduce fp32 2`",
                           "together: dq: ",
                           "dp_grads all_reduce fp32 2: expected a name such as",
                           "idle_share: tp: ",
                           "slowdown: dp_grads: ",
                           "did you mean dp_grad?",
                           "stretch: cp: ",
                           "machin: ",
                           "did you mean machine?",
                           "threads: "}) {
    INFO(part << " in\n" << all);
    CHECK(all.find(part) != std::string::npos);
  }
  CHECK(mistakes("").find("is not a calibration") != std::string::npos);
  CHECK(mistakes("machine: x").find("has no measured launches") != std::string::npos);
  CHECK(mistakes("launches: 3").find("launches: expected a name") != std::string::npos);
}

TEST_CASE("broken calibrations are refused, and never crash") {
  const std::string good =
      std::string(kAdd) + "links:\n  send fp32 2: {alpha_us: 1, gbytes_s: 1, spread: 0}\n";
  for (size_t i = 0; i < good.size(); ++i)
    for (const char c : {'\0', '{', ':', '\n', '-', '9', '[', ','}) {
      std::string text = good;
      text[i] = c;
      Diagnostics diagnostics;
      const Calibration r = read_calibration_text(text, "m.yaml", diagnostics);
      if (diagnostics.has_errors()) continue;
      for (const LaunchTimes& t : r.launches)
        for (const LaunchPoint& p : t.points) CHECK((p.seconds > 0 && p.read >= 0));
    }
}

}  // namespace plan_calibration_test
