// Compares AdamW and clipping over parameter units with float64.
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include <catch2/catch.hpp>

#include "device/device.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "optim/adamw.h"

namespace optim_adamw_test {

using namespace mtrain;
using namespace mtrain::optim;

namespace {

// Two units; in the first, a parameter that does not decay lies between two that do, and sizes are
// odd, so that there is padding.
struct Fixture {
  explicit Fixture(DType compute = DType::f32)
      : device(Device::cpu(2, {})), stream(device->stream(device::StreamKind::compute)) {
    decayed = params.add({model::UnitKind::layer, 0}, {.name = "w", .shape = {7, 19}});
    plain = params.add({model::UnitKind::layer, 0},
                       {.name = "bias", .shape = {33}, .role = TensorRole::vector});
    second = params.add({model::UnitKind::layer, 0}, {.name = "w2", .shape = {5}});
    other = params.add({model::UnitKind::layer, 1}, {.name = "v", .shape = {211}});
    params.materialize(stream, compute, true);
    for (model::Parameter* p : params.params()) {
      params.set_master(stream, *p, filled(*p, 1.0));
      put(p->grad, filled(*p, 3.0));
    }
  }
  // Distinct values around +-scale.
  static std::vector<float> filled(const model::Parameter& p, double scale) {
    std::vector<float> x(size_t(p.shape.count()));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = float(scale * std::sin(1.0 + double(i) + double(p.name.size())));
    return x;
  }
  void put(const Tensor& to, std::vector<float> values) {
    auto keep = std::make_shared<std::vector<float>>(std::move(values));
    const void* data = keep->data();
    stream.upload(to, std::move(keep), data);
  }
  std::vector<float> get(const Tensor& t) { return t.to_host<float>(stream); }

  std::unique_ptr<Device> device;
  Stream& stream;
  model::ParamStore params;
  model::Parameter *decayed, *plain, *second, *other;
};

constexpr size_t kFirst = 0, kSecond = 1;  // moments in Optimizer::state()

plan::OptimizerOptions config() {
  plan::OptimizerOptions c;
  c.beta1 = 0.8;
  c.beta2 = 0.9;
  c.eps = 1e-3;
  c.weight_decay = 0.5;
  return c;
}

// The published rules (Loshchilov and Hutter 2019; L2 in the gradient: Kingma and Ba 2015) in
// float64, for one element and a constant gradient.
double reference(double w, double g, bool decay, int steps, double lr,
                 const plan::OptimizerOptions& c) {
  double m = 0, v = 0;
  for (int t = 1; t <= steps; ++t) {
    const double decayed = decay ? c.weight_decay * w : 0,
                 whole = g + (c.decoupled_decay ? 0 : decayed);
    m = c.beta1 * m + (1 - c.beta1) * whole;
    v = c.beta2 * v + (1 - c.beta2) * whole * whole;
    const double mhat = m / (1 - std::pow(c.beta1, t)), vhat = v / (1 - std::pow(c.beta2, t));
    w -= lr * (mhat / (std::sqrt(vhat) + c.eps) + (c.decoupled_decay ? decayed : 0));
  }
  return w;
}

}  // namespace

TEST_CASE("three updates equal the float64 rule, with decay only where a parameter decays") {
  const DType compute = GENERATE(DType::f32, DType::bf16, DType::f16);
  plan::OptimizerOptions rule = config();
  rule.decoupled_decay = GENERATE(true, false);
  CAPTURE(rule.decoupled_decay);
  Fixture f(compute);
  AdamW adamw(f.stream, f.params, rule);
  const Tensor scale = Tensor::from_host<float>(f.stream, {1}, {0.25f});
  for (int64_t step = 1; step <= 3; ++step) adamw.step(f.stream, step, 0.1f, scale);
  for (model::Parameter* p : f.params.params()) {
    const auto w = f.get(p->master), start = Fixture::filled(*p, 1.0), g = Fixture::filled(*p, 3.0);
    const auto value = p->value.to_host_float(f.stream);
    INFO(p->name);
    for (size_t i = 0; i < w.size(); ++i) {
      const double wanted = reference(start[i], 0.25 * double(g[i]), p != f.plain, 3, 0.1, rule);
      // A dozen fp32 roundings of values up to 1.
      CHECK(w[i] == Approx(wanted).margin(2e-6));
      // The weight that computes is the master, rounded once: bf16 has 8 bits, fp16 11.
      CHECK(std::abs(value[i] - w[i]) <=
            (compute == DType::f32 ? 0 : std::abs(w[i]) / (compute == DType::bf16 ? 256 : 2048)));
    }
  }
}

namespace {

// A rank's part of a bf16 model under tensor parallelism and sharding, after three updates without
// master weights.
struct Rounded {
  Rounded(int tp, int tp_rank, const model::Sharding& sharding, DType moments = DType::f32)
      : device(Device::cpu(1, {})), stream(device->stream(device::StreamKind::compute)) {
    const auto add = [&](const char* name, Shape shape, model::ShardSpec shard, int64_t rows = -1) {
      shard.ranks = tp, shard.rank = tp_rank;
      params.add({model::UnitKind::layer, 0},
                 {.name = name,
                  .shape = shape,
                  .role = shape.rank() > 1 ? TensorRole::matrix : TensorRole::vector,
                  .rows = rows,
                  .shard = shard});
    };
    const std::vector<model::ShardSpec::Section> heads{{8, 3}, {2, 3}};
    add("qkv", {heads[0].rows_here(tp) + heads[1].rows_here(tp), 5},
        {.dim = model::ShardSpec::Dim::rows, .sections = heads});
    add("proj", {7, 24 / tp}, {.dim = model::ShardSpec::Dim::columns});
    add("norm", {77}, {});
    add("table", {16 / tp, 7}, {.dim = model::ShardSpec::Dim::rows, .sections = {{16, 1}}}, 11);
    params.materialize(stream, DType::bf16, true, sharding, false);
    plan::OptimizerOptions c = config();
    c.master_weights = false;
    c.stochastic_rounding = true;
    c.moments = moments;
    adamw.emplace(stream, params, c, 17);
    for (model::Parameter* p : params.params()) {
      CHECK(!p->master);
      std::vector<float> whole(size_t(p->full_shape().count()));
      for (size_t i = 0; i < whole.size(); ++i) whole[i] = float(std::sin(1.0 + double(i)));
      params.set_master(stream, *p, whole);
      for (float& g : whole) g = 3 * g + 1;
      std::vector<float> here;  // this rank's elements, in the order of its tensor
      for (const model::ElementRun& r : p->runs())
        here.insert(here.end(), whole.begin() + r.full, whole.begin() + r.full + r.count);
      for (const model::OwnedPart& part : owned_parts(*p)) {
        const auto keep = std::make_shared<std::vector<float>>(here);
        stream.upload(part.range->grad.flat(part.in_range, {part.count}), keep,
                      keep->data() + part.in_param);
      }
    }
    const Tensor scale = Tensor::from_host<float>(stream, {1}, {1.0f});
    for (int64_t step = 1; step <= 3; ++step) adamw->step(stream, step, 0.01f, scale);
  }
  // Copies the part of a parameter that this rank owns into the layout-free tensor.
  void collect(const std::string& name, std::vector<float>& whole) {
    const model::Parameter& p = *params.find(name);
    whole.resize(size_t(p.full_shape().count()), -1e9f);
    for (const model::OwnedPart& part : owned_parts(p)) {
      const auto got = part.range->value.flat(part.in_range, {part.count}).to_host_float(stream);
      for (int64_t i = 0; i < part.count; ++i)
        whole[size_t(p.full_index(part.in_param + i))] = got[size_t(i)];
    }
  }
  // The same for a moment (0: the first, 1: the second), whose ranges follow each other.
  void collect(const std::string& name, size_t which, std::vector<float>& whole) {
    const model::Parameter& p = *params.find(name);
    whole.resize(size_t(p.full_shape().count()), -1e9f);
    const auto all = adamw->state()[which].values.own(stream, *p.unit).to_host_float(stream);
    for (const model::OwnedPart& part : owned_parts(p)) {
      int64_t first = part.in_range;
      for (const model::OwnedRange* r = p.unit->owned.data(); r != part.range; ++r)
        first += r->count;
      for (int64_t i = 0; i < part.count; ++i)
        whole[size_t(p.full_index(part.in_param + i))] = all[size_t(first + i)];
    }
  }
  std::unique_ptr<Device> device;
  Stream& stream;
  model::ParamStore params;
  std::optional<AdamW> adamw;
};

}  // namespace

TEST_CASE("without master weights every layout rounds alike, bit for bit") {
  Rounded alone(1, 0, {});
  for (const char* name : {"qkv", "proj", "norm", "table"}) {
    std::vector<float> want;
    alone.collect(name, want);
    for (const int tp : {1, 2, 4})
      for (const int ranks : {1, 3}) {
        CAPTURE(name, tp, ranks);
        std::vector<float> got;
        for (int t = 0; t < tp; ++t)
          for (int rank = 0; rank < ranks; ++rank)
            Rounded(tp, t,
                    {.ranks = ranks,
                     .rank = rank,
                     .values = rank % 2 == 0,
                     .grads = true,
                     .piece = 100})
                .collect(name, got);
        CHECK(got == want);
      }
  }
}

TEST_CASE("bf16 moments are rounded alike under every layout, bit for bit") {
  Rounded alone(1, 0, {}, DType::bf16), fp32(1, 0, {});
  for (const char* name : {"qkv", "proj", "norm", "table"}) {
    std::vector<float> want[3], exact;
    alone.collect(name, want[0]);
    alone.collect(name, kFirst, want[1]);
    alone.collect(name, kSecond, want[2]);
    fp32.collect(name, kFirst, exact);
    CHECK(want[1] != exact);
    for (size_t i = 0; i < exact.size(); ++i)  // three roundings by up to a step of 2^-7 each
      CHECK(want[1][i] == Approx(exact[i]).epsilon(0.03).margin(0.03));
    for (const int tp : {1, 2, 4})
      for (const int ranks : {1, 3}) {
        CAPTURE(name, tp, ranks);
        std::vector<float> got[3];
        for (int t = 0; t < tp; ++t)
          for (int rank = 0; rank < ranks; ++rank) {
            Rounded r(tp, t,
                      {.ranks = ranks,
                       .rank = rank,
                       .values = rank % 2 == 0,
                       .grads = true,
                       .piece = 100},
                      DType::bf16);
            r.collect(name, got[0]);
            r.collect(name, kFirst, got[1]);
            r.collect(name, kSecond, got[2]);
          }
        for (int k = 0; k < 3; ++k) CHECK((got[k] == want[k]));
      }
  }
}

TEST_CASE("bf16 moments beside master weights are unbiased") {
  constexpr int64_t n = 1 << 14;
  const auto mean_after = [&](DType moments, size_t which) {
    Fixture f(DType::bf16);
    model::ParamStore params;
    model::Parameter* p = params.add({model::UnitKind::layer, 0}, {.name = "w", .shape = {n}});
    params.materialize(f.stream, DType::bf16, true);
    plan::OptimizerOptions c = config();
    c.beta1 = 0.9, c.beta2 = 0.999;  // a step of v is below half a step of bf16
    c.moments = moments;
    AdamW adamw(f.stream, params, c, 3);
    params.set_master(f.stream, *p, std::vector<float>(n, 1.0f));
    ops::fill(f.stream, p->grad, 1);
    for (int64_t step = 1; step <= 60; ++step)
      adamw.step(f.stream, step, 1e-3f, Tensor::from_host<float>(f.stream, {1}, {1.0f}));
    const auto values = adamw.state()[which].values.own(f.stream, *p->unit).to_host_float(f.stream);
    return std::accumulate(values.begin(), values.end(), 0.0) / double(n);
  };
  for (const size_t which : {kFirst, kSecond})
    CHECK(mean_after(DType::bf16, which) == Approx(mean_after(DType::f32, which)).epsilon(3e-3));
}

TEST_CASE("stochastic_rounding: false rounds to nearest") {
  for (const bool random : {true, false}) {
    Fixture f(DType::bf16);
    model::ParamStore params;
    model::Parameter* p = params.add({model::UnitKind::layer, 0}, {.name = "w", .shape = {64}});
    params.materialize(f.stream, DType::bf16, true, {}, false);
    plan::OptimizerOptions c = config();
    c.master_weights = false, c.weight_decay = 0;
    c.stochastic_rounding = random;
    AdamW adamw(f.stream, params, c, 1);
    params.set_master(f.stream, *p, std::vector<float>(64, 1.0f));
    ops::fill(f.stream, p->grad, 1);
    // A tenth of half a step each.
    for (int64_t step = 1; step <= 20; ++step)
      adamw.step(f.stream, step, 0x1p-9f / 10, Tensor::from_host<float>(f.stream, {1}, {1.0f}));
    const auto w = p->value.to_host_float(f.stream);
    CHECK((w == std::vector<float>(64, 1.0f)) != random);
  }
}

TEST_CASE("moments lie as the unit's parameters do") {
  Fixture f;
  AdamW adamw(f.stream, f.params, config());
  adamw.step(f.stream, 1, 0.1f, Tensor::from_host<float>(f.stream, {1}, {1.0f}));
  for (model::Parameter* p : f.params.params()) {
    const auto moment = [&](size_t which) {
      return f.get(adamw.state()[which].values.own(f.stream, *p->unit).flat(p->begin, p->shape));
    };
    const auto m = moment(kFirst), v = moment(kSecond), g = Fixture::filled(*p, 3.0);
    REQUIRE(m.size() == g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      CHECK(m[i] == Approx(0.2 * g[i]).epsilon(1e-6));
      CHECK(v[i] == Approx(0.1 * g[i] * g[i]).epsilon(1e-6));
    }
  }
}

TEST_CASE("parameters with equal rules are updated in one launch for each owned range") {
  Fixture f;
  const auto kinds = [](const model::Parameter& p) { return std::optional(p.decays() ? 1 : 0); };
  CHECK(segments_of(*f.params.units()[0], kinds).size() == 2);
  CHECK(segments_of(*f.params.units()[1], kinds).size() == 1);
  for (const Segment& s : segments_of(*f.params.units()[0], kinds))
    CHECK(s.count == s.range->count);
}

TEST_CASE("state of some parameters alone lies where they are, and is 0 elsewhere") {
  Fixture f;
  const OwnedState state(f.stream, f.params, DType::f32,
                         [](const model::ParamSpec& p) { return p.decays() && p.name != "w2"; });
  for (model::Parameter* p : f.params.params()) {
    const auto parts = owned_parts(*p);
    if (!state.has(*p)) continue;
    f.put(state.at(*p->unit, *parts[0].range, parts[0].in_range, parts[0].count),
          Fixture::filled(*p, 2.0));
  }
  for (model::Parameter* p : f.params.params())
    CHECK((
        f.get(state.own(f.stream, *p->unit).flat(p->begin, p->shape)) ==
        (state.has(*p) ? Fixture::filled(*p, 2.0) : std::vector<float>(size_t(p->shape.count())))));
}

TEST_CASE("the gradient norm is that of all units together") {
  Fixture f;
  double squares = 0;
  for (model::Parameter* p : f.params.params())
    for (float g : Fixture::filled(*p, 3.0)) squares += double(g) * g;
  const double norm = std::sqrt(squares);
  REQUIRE(norm > 5);
  const auto clip = [&](float most) {
    const ops::Clip c = clip_grad_norm(
        f.stream, f.params, [](const Tensor&) {}, most);
    CHECK(f.get(c.norm)[0] == Approx(norm).epsilon(1e-6));
    return f.get(c.scale)[0];
  };
  CHECK(clip(0) == 1);                               // off
  CHECK(clip(float(2 * norm)) == 1);                 // short enough
  CHECK(clip(1) == Approx(1 / norm).epsilon(1e-5));  // brought down; some add an epsilon
}

TEST_CASE("a gradient that is not finite changes nothing") {
  Fixture f;
  AdamW adamw(f.stream, f.params, config());
  auto g = Fixture::filled(*f.other, 3.0);
  g[100] = std::numeric_limits<float>::infinity();
  f.put(f.other->grad, g);
  const ops::Clip clip = clip_grad_norm(
      f.stream, f.params, [](const Tensor&) {}, 1);
  adamw.step(f.stream, 1, 0.1f, clip.scale);
  for (model::Parameter* p : f.params.params()) {
    CHECK((f.get(p->master) == Fixture::filled(*p, 1.0)));
    CHECK((f.get(adamw.state()[kFirst].values.own(f.stream, *p->unit)) ==
           std::vector<float>(size_t(p->unit->count))));
  }
}

}  // namespace optim_adamw_test
