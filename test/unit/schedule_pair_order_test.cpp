// Tests the order of a forward and a backward that run together, by hand and on random lists.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <string>

#include "schedule/pass_costs.h"

namespace schedule_pair_order_test {

using namespace mtrain::schedule;

namespace {

struct NamedPart {
  std::string name;
  PairPart part;
};
using NamedPass = std::vector<NamedPart>;

std::vector<PairPart> parts(const NamedPass& pass) {
  std::vector<PairPart> list;
  for (const NamedPart& p : pass) list.push_back(p.part);
  return list;
}

// A forward and a backward of `layers` layers with experts. Of a layer's compute, attention is
// about a half; an exchange takes `exchange`.
NamedPass forward_of(int layers, double exchange) {
  NamedPass pass;
  for (int l = 0; l < layers; ++l) {
    const std::string n = std::to_string(l);
    pass.push_back({"attention_f" + n, {.cost = 5}});
    pass.push_back({"route_f" + n, {.cost = 0.5}});
    pass.push_back(
        {"dispatch_f" + n, {.kind = PairPartKind::exchange, .cost = exchange, .host_waits = true}});
    pass.push_back({"mlp_f" + n, {.cost = 4}});
    pass.push_back({"combine_f" + n, {.kind = PairPartKind::exchange, .cost = exchange}});
    pass.push_back({"merge_f" + n, {.cost = 0.5}});
  }
  return pass;
}
NamedPass backward_of(int layers, double exchange) {
  NamedPass pass;
  for (int l = layers - 1; l >= 0; --l) {
    const std::string n = std::to_string(l);
    pass.push_back({"shared_b" + n, {.cost = 0.5, .weight_cost = 0.5}});
    pass.push_back({"combine_b" + n, {.kind = PairPartKind::exchange, .cost = exchange}});
    pass.push_back({"mlp_b" + n, {.cost = 4, .weight_cost = 4}});
    pass.push_back({"dispatch_b" + n, {.kind = PairPartKind::exchange, .cost = exchange}});
    pass.push_back({"route_b" + n, {.cost = 0.5, .weight_cost = 0.25}});
    pass.push_back({"attention_b" + n, {.cost = 6, .weight_cost = 4}});
  }
  return pass;
}

// Returns the names of an order's steps, the exchanges in brackets.
std::string names_of(const std::vector<PairStep>& order, const NamedPass& f, const NamedPass& b) {
  std::string text;
  size_t next_f = 0, next_b = 0, next_w = 0;
  for (const PairStep step : order) {
    while (next_w < b.size() && b[next_w].part.weight_cost == 0) ++next_w;
    std::string name;
    if (step == PairStep::weight_gradients) {
      name = b[next_w++].name;
      name[name.rfind("_b") + 1] = 'W';
    } else {
      const NamedPart& p = step == PairStep::forward ? f[next_f++] : b[next_b++];
      name = p.part.kind == PairPartKind::exchange ? "[" + p.name + "]" : p.name;
    }
    text += (text.empty() ? "" : " ") + name;
  }
  return text;
}

}  // namespace

TEST_CASE("a pair of two layers with experts, in the order that hides its exchanges") {
  const NamedPass f = forward_of(2, 3), b = backward_of(2, 3);
  const auto order = [&](bool delay_wgrad) {
    const PairOptions options{.delay_wgrad = delay_wgrad};
    const auto steps = pair_order(parts(f), parts(b), options);
    CHECK(pair_faults(steps, parts(f), parts(b), options).empty());
    return names_of(steps, f, b);
  };
  CHECK(order(true) ==
        "shared_b1 [combine_b1] attention_f0 route_f0 mlp_b1 [dispatch_f0] [dispatch_b1] shared_W1 "
        "mlp_W1 mlp_f0 [combine_f0] route_b1 attention_b1 shared_b0 [combine_b0] route_W1 "
        "attention_W1 shared_W0 merge_f0 attention_f1 route_f1 mlp_b0 [dispatch_f1] [dispatch_b0] "
        "mlp_W0 mlp_f1 [combine_f1] route_b0 attention_b0 route_W0 attention_W0 merge_f1");
  CHECK(order(false) ==
        "shared_b1 shared_W1 [combine_b1] attention_f0 route_f0 mlp_b1 mlp_W1 [dispatch_f0] "
        "[dispatch_b1] mlp_f0 [combine_f0] route_b1 route_W1 attention_b1 attention_W1 shared_b0 "
        "shared_W0 [combine_b0] merge_f0 attention_f1 route_f1 mlp_b0 mlp_W0 [dispatch_f1] "
        "[dispatch_b0] mlp_f1 [combine_f1] route_b0 route_W0 attention_b0 attention_W0 merge_f1");
}

TEST_CASE("an order depends on the lists alone, and not on the unit of their costs") {
  const auto f = parts(forward_of(3, 5)), b = parts(backward_of(2, 5));
  const auto scaled = [](std::vector<PairPart> list) {
    for (PairPart& part : list) part.cost *= 4, part.weight_cost *= 4;
    return list;
  };
  for (const bool delay_wgrad : {false, true}) {
    const auto order = pair_order(f, b, {.delay_wgrad = delay_wgrad});
    CHECK(order == pair_order(f, b, {.delay_wgrad = delay_wgrad}));
    CHECK(order == pair_order(scaled(f), scaled(b), {.delay_wgrad = delay_wgrad}));
  }
}

TEST_CASE("faults of a pair's order are reported with their place") {
  using enum PairStep;
  const auto x = [](double cost) { return PairPart{.kind = PairPartKind::exchange, .cost = cost}; };
  const std::vector<PairPart> f{{.cost = 1}, x(5), {.cost = 1}},
      b{{.cost = 1, .weight_cost = 1}, {.cost = 2}};
  const auto faults = [&](const std::vector<PairStep>& order, bool delay_wgrad) {
    std::string text;
    for (const std::string& fault : pair_faults(order, f, b, {.delay_wgrad = delay_wgrad}))
      text += (text.empty() ? "" : "; ") + fault;
    return text;
  };
  const PairStep F = forward, B = backward, W = weight_gradients;
  CHECK(faults({F, F, B, W, B, F}, false) == "");
  CHECK(faults({F, F, B, B, W, F}, true) == "");
  CHECK(faults({F, F, B, W, B}, true) == "part 2 of the forward is never enqueued");
  CHECK(faults({F, F, B, B, F}, true) ==
        "the weight gradients of part 0 of the backward are never enqueued");
  CHECK(
      faults({F, F, W, B, B, F}, true) ==
      "step 2 enqueues the weight gradients of part 0 of the backward, which is not enqueued yet");
  CHECK(faults({F, F, B, W, B, F, B}, true) ==
        "step 6 enqueues part 2 of the backward, which does not exist");
  CHECK(faults({F, F, B, B, W, F}, false) ==
        "the weight gradients of part 0 of the backward do not directly follow it");
  CHECK(faults({F, B, F, W, B, F}, true) ==
        "part 1 of the forward could be enqueued before part 0 of the backward");
  CHECK(faults({F, F, B, W, F, B}, true) ==
        "part 2 of the forward waits from 3 to 6, but part 1 of the backward could run in the "
        "meantime");
}

TEST_CASE("a random pair is in a valid order that is no slower than a plain one") {
  std::mt19937 random(7);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  const auto cost = [&] { return below(5) == 0 ? 0.0 : below(1000) / 100.0; };
  // Layers are dense or have experts, and a list may begin or end with surplus ones.
  const auto pass = [&](bool forward) {
    std::vector<PairPart> list;
    for (int layer = below(5); layer >= 0; --layer) {
      const auto compute = [&] {
        list.push_back({.cost = cost(), .weight_cost = forward ? 0 : cost()});
      };
      const auto exchange = [&](bool host_waits) {
        list.push_back(
            {.kind = PairPartKind::exchange, .cost = cost() * below(3), .host_waits = host_waits});
      };
      compute();
      if (below(3) == 0) continue;
      compute();
      exchange(forward);
      compute();
      exchange(false);
      if (below(2)) compute();
    }
    if (below(10) == 0) list.clear();
    return list;
  };
  // An order whose weight gradients follow their parts may be faster if the other leaves a wait
  // unused.
  int slower = 0;
  for (int i = 0; i < 500; ++i) {
    const auto f = pass(true), b = pass(false);
    double undelayed = 0;
    for (const bool delay_wgrad : {false, true}) {
      INFO("pair " << i << ", weight gradients delayed " << delay_wgrad);
      const PairOptions options{.delay_wgrad = delay_wgrad};
      const auto order = pair_order(f, b, options);
      const PairTimeline t = simulate_pair(order, f, b);
      CHECK(pair_faults(order, f, b, options) == std::vector<std::string>{});
      if (delay_wgrad)
        slower += t.length > undelayed * (1 + 1e-9);
      else
        undelayed = t.length;
      CHECK(t.exposed() >= std::max(0.0, t.exchanges - t.compute) - 1e-9 * t.length);
      for (const auto& plain :
           {plain_pair_order(f, b, options), plain_pair_order(f, b, options, FirstPass::backward),
            alternating_pair_order(f, b, options)})
        CHECK(t.length <= simulate_pair(plain, f, b).length * (1 + 1e-9));
    }
  }
  CHECK(slower <= 1);
}

TEST_CASE(
    "neither pass runs further ahead, and no more weight gradients wait, than memory allows") {
  const PassCosts costs{.attention = {4, 5, 4},
                        .mlp = {4, 4, 4},
                        .route = {0.5, 0.5, 0.5},
                        .experts = {4, 4, 4},
                        .shared = {0.5, 0.5, 0.5},
                        .exchange = {5, 5},
                        .head = {}};
  const auto stage = [&](int dense, int with_experts) {
    std::vector<bool> layers(size_t(dense), false);
    layers.resize(size_t(dense + with_experts), true);
    return stage_parts(costs, layers, false);
  };
  using Layers = std::pair<int, int>;
  for (const auto& [dense_f, experts_f] : {Layers{6, 0}, {3, 3}, {0, 6}, {0, 3}, {1, 0}})
    for (const auto& [dense_b, experts_b] : {Layers{6, 0}, {3, 3}, {0, 6}, {0, 12}, {2, 0}})
      for (const bool delay_wgrad : {false, true}) {
        INFO(dense_f << " + " << experts_f << " and " << dense_b << " + " << experts_b
                     << " layers, weight gradients delayed " << delay_wgrad);
        const PairOptions options{.delay_wgrad = delay_wgrad};
        const auto f = stage(dense_f, experts_f).forward, b = stage(dense_b, experts_b).backward;
        const auto order = pair_order(f, b, options);
        CHECK(pair_faults(order, f, b, options) == std::vector<std::string>{});
        const double layers_f = dense_f + experts_f, layers_b = dense_b + experts_b;
        size_t next_f = 0, next_b = 0, next_w = 0;
        const auto skip = [&] {
          while (next_w < b.size() && b[next_w].weight_cost == 0) ++next_w;
        };
        skip();
        for (const PairStep step : order) {
          ++(step == PairStep::forward ? next_f : step == PairStep::backward ? next_b : next_w);
          skip();
          // In micro-batches: the memory that the forward has filled and the backward has freed.
          const double filled = next_f ? double(f[next_f - 1].layer + 1) / layers_f : 0,
                       freed = next_b < b.size() ? 1 - double(b[next_b].layer + 1) / layers_b : 1;
          CHECK(filled - freed <= 2 / layers_f + 1e-9);
          if (next_w < next_b) CHECK(b[next_w].layer - b[next_b - 1].layer < 2);
        }
      }
}

}  // namespace schedule_pair_order_test
