// A layer's experts in 8 bits: their GEMMs, and their delayed scales.
#include <map>
#include <sstream>

#include <catch2/catch.hpp>

#include "base/rng.h"
#include "device/device.h"
#include "model/experts/expert_linear.h"
#include "ops/elementwise.h"
#include "test/support/tolerance.h"

namespace model_expert_linear_test {

using namespace mtrain;
using namespace mtrain::model;

namespace {

constexpr int64_t kO = 32, kI = 48;

// The experts [rank E, (rank + 1) E) of the `ranks` E experts of a layer, and the other objects of
// a step.
struct Experts {
  Experts(int64_t E, const QuantizerOptions& options, ExpertShard shard = {})
      : quantizer(std::make_shared<Quantizer>(options)),
        weight(
            params.add({UnitKind::experts, 0},
                       {.name = "up.weight", .shape = {E, kO, kI}, .std = 0.1f, .experts = shard})),
        linear(*weight, "up", {"up_fwd", "up_dgrad", "up_wgrad"}, quantizer) {
    params.materialize(stream, DType::bf16, true);
    params.initialize(stream, 3);
    params.zero_grads(stream);
    quantizer->materialize(stream);
  }
  Tensor random(const char* name, int64_t rows, int64_t columns, float std) {
    std::vector<float> values(size_t(rows * columns));
    fill_normal(rng_key(5, name), 0, rows * columns, std, values.data());
    const Tensor x = Tensor::empty(stream, {rows, columns}, DType::bf16);
    ops::cast(stream, Tensor::from_host<float>(stream, {rows, columns}, values), x);
    return x;
  }
  Tensor rows(const std::vector<int32_t>& first) {
    return Tensor::from_host<int32_t>(stream, {int64_t(first.size())}, first);
  }
  // Runs all GEMMs of some rows, for the maxima that they record.
  void run(const std::vector<int32_t>& first, float x_std, float dy_std) {
    const int64_t R = first.back();
    LinearOperand x_RI = random("x", R, kI, x_std);
    const auto x = linear.input(step, x_RI);
    linear.forward(step, x, rows(first), false);
    linear.gradient(step, random("dy", R, kO, dy_std));
    quantizer->end_step(stream, [](const Tensor&, UnitKind) {});
  }

  std::unique_ptr<Device> device = Device::cpu(1, {.stream_sanitizer = true});
  Stream& stream = device->stream(device::StreamKind::compute);
  ParamStore params;
  std::shared_ptr<Quantizer> quantizer;
  Parameter* weight;
  ExpertLinear linear;
  WgradQueue wgrad;
  Stash stash;
  SequenceInfo seq;
  Step step{.compute = stream, .wgrad = wgrad, .stash = &stash, .seq = seq};
};

// The numbers that `x` represents in 8 bits under one scale.
template <class T>
std::vector<double> in_8_bits(const std::vector<float>& x) {
  float amax = 0;
  for (float v : x) amax = std::max(amax, std::abs(v));
  const float scale = largest_float8(dtype_of<T>) / amax;
  std::vector<double> q;
  for (float v : x) q.push_back(double(float(T(v * scale))) / double(scale));
  return q;
}

struct Line {
  std::string experts;
  std::vector<double> numbers;  // the scale and the history
  bool operator==(const Line&) const = default;
};
std::map<std::string, Line> lines_of(const std::string& state) {
  std::map<std::string, Line> all;
  std::istringstream text(state);
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::string name, word;
    words >> name;
    Line& own = all[name];
    words >> own.experts;
    while (words >> word) own.numbers.push_back(std::strtod(word.c_str(), nullptr));
  }
  return all;
}

}  // namespace

TEST_CASE("experts in 8 bits multiply the numbers of their tensors under one scale each") {
  const std::vector<int32_t> first{0, 5, 5, 17};
  const int64_t E = 3, R = 19;  // two rows are unused
  Experts e(E, {});
  std::vector<float> x = e.random("x", R, kI, 1).to_host_float(e.stream),
                     dy = e.random("dy", R, kO, 1e-3f).to_host_float(e.stream);
  // Rows that belong to no expert are 0.
  std::fill(x.end() - 2 * kI, x.end(), 0.0f), std::fill(dy.end() - 2 * kO, dy.end(), 0.0f);
  const auto rounded = [&](const std::vector<float>& values, int64_t columns) {
    const Tensor t = Tensor::empty(e.stream, {R, columns}, DType::bf16);
    ops::cast(e.stream, Tensor::from_host<float>(e.stream, {R, columns}, values), t);
    return t;
  };
  LinearOperand x_RI = rounded(x, kI);
  const auto x_8 = e.linear.input(e.step, x_RI);
  REQUIRE(x_8.data.dtype() == DType::f8e4m3);
  const auto y = e.linear.forward(e.step, x_8, e.rows(first), true);
  const auto dy_8 = e.linear.gradient(e.step, rounded(dy, kO));
  REQUIRE(dy_8.data.dtype() == DType::f8e5m2);
  const auto dx = e.linear.dgrad(e.step, dy_8, e.rows(first), true);
  // An input that is computed again has the bits of the first.
  x_RI.value = rounded(x, kI);
  const auto again = e.linear.input(e.step, x_RI);
  e.linear.wgrad(e.step, dy_8, x_8, e.rows(first));
  e.linear.wgrad(e.step, dy_8, again, e.rows(first));

  const auto qx = in_8_bits<f8e4m3>(x), qdy = in_8_bits<f8e5m2>(dy),
             qw = in_8_bits<f8e4m3>(e.weight->value.to_host_float(e.stream));
  std::vector<double> want_y(size_t(R * kO)), want_dx(size_t(R * kI)), want_dw(size_t(E * kO * kI));
  for (size_t expert = 0; expert < size_t(E); ++expert)
    for (auto r = size_t(first[expert]); r < size_t(first[expert + 1]); ++r)
      for (size_t o = 0; o < kO; ++o)
        for (size_t i = 0; i < kI; ++i) {
          const size_t w = (expert * kO + o) * kI + i;
          want_y[r * kO + o] += qx[r * kI + i] * qw[w];
          want_dx[r * kI + i] += qdy[r * kO + o] * qw[w];
          want_dw[w] += 2 * qdy[r * kO + o] * qx[r * kI + i];
        }
  test::Closeness close("experts in 8 bits");
  const auto check = [&](const Tensor& got, const std::vector<double>& want, double K,
                         double term) {
    REQUIRE(close(got, want, {.dtype = got.dtype(), .K = K, .scale = term, .sums = DType::f32}) ==
            "");
  };
  e.stream.synchronize();
  check(y, want_y, kI, 1);
  check(dx, want_dx, kO, 1e-3);
  check(e.weight->grad, want_dw, 2 * 12, 0.02);
}

TEST_CASE("experts without rows, and their weights, keep finite scales") {
  for (const bool delayed : {false, true}) {
    Experts e(2, {.delayed = delayed, .history = 2});
    for (int step = 0; step < 2; ++step) {
      LinearOperand x_RI = e.random("x", 0, kI, 1);
      const auto x = e.linear.input(e.step, x_RI);
      CHECK(e.linear.forward(e.step, x, e.rows({0, 0, 0}), false).count() == 0);
      const auto dy = e.linear.gradient(e.step, e.random("dy", 0, kO, 1));
      e.linear.wgrad(e.step, dy, x, e.rows({0, 0, 0}));
      CHECK((e.weight->grad.to_host<float>(e.stream) ==
             std::vector<float>(size_t(e.weight->grad.count()))));
      e.params.zero_grads(e.stream);
      e.quantizer->end_step(e.stream, [](const Tensor&, UnitKind) {});
    }
  }
}

TEST_CASE("experts whose first rows come late have a current scale for them, then delayed ones") {
  const QuantizerOptions options{.delayed = true, .history = 2};
  Experts idle(2, options), restored(2, options);
  for (int step = 0; step < 3; ++step) idle.run({0, 0, 0}, 1, 1);
  restored.quantizer->restore(restored.stream, idle.quantizer->state(idle.stream));
  for (Experts* e : {&idle, &restored}) {
    CHECK_FALSE(e->quantizer->steady());
    // Under a scale of 1 these gradients would be 0.
    const auto inverse = [&](float std) {
      const Tensor dy = e->random("dy", 4, kO, std);
      float amax = 0;
      for (const float v : dy.to_host_float(e->stream)) amax = std::max(amax, std::abs(v));
      const Tensor got = e->linear.gradient(e->step, dy).inverse;
      return std::pair{double(got.to_host<float>(e->stream)[0]),
                       double(amax / largest_float8(DType::f8e5m2))};
    };
    const auto [first, current] = inverse(1e-6f);
    CHECK(first == Approx(current));
    e->run({0, 1, 4}, 1, 1e-6f);
    CHECK(e->quantizer->steady());
    CHECK(inverse(1e-3f).first == Approx(current));
  }
}

TEST_CASE("8-bit copies of experts' weights are for forward and backward, without a transpose") {
  const auto quantized = [](bool forward, bool backward) {
    Experts e(2, {.keep_weights = forward, .keep_transposed = backward});
    int weights = 0;
    e.device->set_launch_check([&](Stream&, const device::LaunchInfo& info) {
      weights +=
          info.name == std::string("quantize") && info.reads.at(0).data == e.weight->value.data();
    });
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      LinearOperand x_RI = e.random("x", 4, kI, 1);
      const auto x = e.linear.input(e.step, x_RI);
      e.linear.forward(e.step, x, e.rows({0, 1, 4}), false);
      e.linear.dgrad(e.step, e.linear.gradient(e.step, e.random("dy", 4, kO, 1)), e.rows({0, 1, 4}),
                     false);
    }
    e.device->set_launch_check({});
    return weights;
  };
  CHECK(quantized(false, false) == 4);
  CHECK(quantized(true, true) == 1);
  CHECK(quantized(true, false) == 1);
  CHECK(quantized(false, true) == 1);
}

TEST_CASE("delayed scales of experts are read back under other numbers of ranks") {
  const QuantizerOptions options{.delayed = true, .history = 3};
  Experts low(2, options, {.ranks = 2, .rank = 0}), high(2, options, {.ranks = 2, .rank = 1}),
      all(4, options);
  low.run({0, 3, 7}, 1, 1e-3f), high.run({0, 2, 8}, 2, 1e-4f);
  low.run({0, 4, 4}, 3, 1e-3f), high.run({0, 0, 1}, 1, 1e-2f);
  const std::string state = low.quantizer->state(low.stream) + high.quantizer->state(high.stream);
  CHECK(low.quantizer->state(low.stream, true, false) == "");  // it has only experts
  const auto a = lines_of(low.quantizer->state(low.stream)),
             b = lines_of(high.quantizer->state(high.stream));
  REQUIRE(a.size() == 3);
  CHECK((a.at("up.weight").experts == "0:2" && b.at("up.weight").experts == "2:4"));

  all.quantizer->restore(all.stream, state);
  const auto both = lines_of(all.quantizer->state(all.stream));
  REQUIRE(both.size() == 3);
  for (const auto& [name, line] : both) {
    INFO(name);
    const auto &x = a.at(name).numbers, &y = b.at(name).numbers;
    CHECK(line.experts == "0:4");
    REQUIRE(line.numbers.size() == 1 + 3);
    CHECK(line.numbers[0] == std::min(x[0], y[0]));
    for (size_t i = 1; i < 4; ++i) CHECK(line.numbers[i] == std::max(x[i], y[i]));
  }

  // The other half and the same half: saved values of experts that a rank lacks do not count.
  const std::string whole = all.quantizer->state(all.stream);
  Experts half(2, options, {.ranks = 2, .rank = 1});
  half.quantizer->restore(half.stream, whole);
  CHECK(lines_of(half.quantizer->state(half.stream)).at("up.input").numbers ==
        both.at("up.input").numbers);
  half.quantizer->restore(half.stream, state);
  CHECK(half.quantizer->state(half.stream) == high.quantizer->state(high.stream));
  CHECK_THROWS_AS(half.quantizer->restore(half.stream, low.quantizer->state(low.stream)),
                  UserError);

  // Experts that have had no row do not affect the scale.
  Experts idle(2, options, {.ranks = 2, .rank = 1});
  idle.run({0, 0, 0}, 1, 1);
  all.quantizer->restore(all.stream,
                         low.quantizer->state(low.stream) + idle.quantizer->state(idle.stream));
  CHECK(lines_of(all.quantizer->state(all.stream)).at("up.gradient").numbers[0] ==
        a.at("up.gradient").numbers[0]);
}

}  // namespace model_expert_linear_test
