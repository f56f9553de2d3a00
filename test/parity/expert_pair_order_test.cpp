// Tests the order in which a forward and a backward that run together are enqueued. Exchanges of
// experts' rows travel while the other pass computes, and the order is that of the simulator.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <regex>
#include <thread>

#include <catch2/catch.hpp>

#include "schedule/pass_costs.h"
#include "train_experts_testing.h"

namespace parity_expert_pair_order_test {

using namespace mtrain;
using namespace train_testing;

namespace {

const Changes kOn{"comm_overlap.overlap_moe_expert_parallel_comm=true"},
    kDelay{"comm_overlap.delay_wgrad_compute=true"},
    kTwoRanks = join({kPlain, ep(2), kMegatron});  // four micro-batches each

// Returns the position of a launch; fails unless there is one.
size_t at(const std::vector<Launched>& launches, const std::string& launch) {
  CAPTURE(launch);
  const auto found = std::ranges::find(launches, launch, &Launched::text);
  REQUIRE(found != launches.end());
  return size_t(found - launches.begin());
}

// Where a rank was when it enqueued a launch.
struct Place {
  std::string pass;     // "0F1", "weights of 0B0"; empty if passes have no names
  std::string segment;  // "layers.3.mlp", "output"; empty outside of these
};
Place place_of(const Launched& launch) {
  static const std::regex segments("layers\\.[0-9]+\\.[a-z]+|output");
  const std::string& scope = launch.scope;
  const size_t cut = scope.rfind(" > "), last_begin = cut == std::string::npos ? 0 : cut + 3;
  std::string last = scope.substr(last_begin);
  if (std::regex_match(last, segments))
    return {cut == std::string::npos ? "" : scope.substr(0, scope.find(" > ")), std::move(last)};
  return {scope.substr(0, scope.find(" > ")), ""};
}

// Returns the segments in the order in which a rank enters them.
std::vector<std::string> segments_of(const std::vector<Launched>& launches) {
  std::vector<std::string> segments;
  for (const Launched& l : launches) {
    std::string segment = place_of(l).segment;
    if (!segment.empty() && (segments.empty() || segments.back() != segment))
      segments.push_back(std::move(segment));
  }
  return segments;
}

// The parts of a stage's passes: their names and costs.
struct NamedParts {
  std::vector<std::string> forward, backward;
  schedule::StageParts costs;
};
NamedParts parts_of(const schedule::PassCosts& costs, int64_t first, int64_t end, int64_t dense,
                    bool head) {
  NamedParts parts;
  std::vector<bool> with_experts;
  for (int64_t layer = first; layer < end; ++layer) {
    const bool experts = layer >= dense;
    with_experts.push_back(experts);
    const auto kinds =
        experts ? std::vector{"attention", "route", "dispatch", "mlp", "combine", "merge"}
                : std::vector{"attention", "mlp"};
    for (const char* kind : kinds)
      parts.forward.push_back(fmt::format("layers.{}.{}", layer, kind));
  }
  if (head) parts.forward.emplace_back("output");
  parts.backward.assign(parts.forward.rbegin(), parts.forward.rend());
  parts.costs = schedule::stage_parts(costs, with_experts, head);
  REQUIRE(parts.costs.forward.size() == parts.forward.size());
  REQUIRE(parts.costs.backward.size() == parts.backward.size());
  return parts;
}

// These return the name of the weight gradients that a kernel belongs to, and of those of a part.
std::string weights_of_kernel(const std::string& kernel) {
  static const std::vector<std::pair<const char*, const char*>> names{
      {"experts_", "W experts"},      {"matmul_router_", "W router"},
      {"matmul_qkv_", "W attention"}, {"matmul_proj_", "W attention"},
      {"matmul_fc", "W linears"},     {"matmul_shared_gate_", "W linears"}};
  for (const auto& [begin, name] : names)
    if (kernel.starts_with(begin)) return name;
  return "W of " + kernel;
}
std::string weights_of_part(const std::string& part, bool experts) {
  if (part.ends_with("attention")) return "W attention";
  if (part.ends_with("route")) return "W router";
  return experts && part.ends_with("mlp") ? "W experts" : "W linears";
}

// Returns the steps of a pair's order by name: "F layers.1.route", "B layers.3.mlp", "W experts".
// An absent forward leaves the backward alone.
std::vector<std::string> simulated(const NamedParts& f, const NamedParts& b, bool delay) {
  const std::vector<schedule::PairPart>& costs = b.costs.backward;
  std::vector<std::string> steps;
  size_t forwards = 0, backwards = 0, weights = 0;  // parts that the order has reached
  for (const schedule::PairStep step :
       schedule::pair_order(f.costs.forward, costs, {.delay_wgrad = delay})) {
    switch (step) {
      case schedule::PairStep::forward: steps.push_back("F " + f.forward[forwards++]); break;
      case schedule::PairStep::backward: steps.push_back("B " + b.backward[backwards++]); break;
      case schedule::PairStep::weight_gradients: {
        while (costs[weights].weight_cost == 0) ++weights;
        const std::string& part = b.backward[weights++];
        // A layer with experts has a part that routes.
        const std::string layer = part.substr(0, part.rfind('.'));
        const bool experts = std::ranges::count(b.backward, layer + ".route") > 0;
        steps.push_back(weights_of_part(part, experts));
        break;
      }
    }
  }
  return steps;
}

// Returns the same for the launches of a forward (empty: none) and a backward on a rank. Weight
// gradients that run within their part follow it.
std::vector<std::string> executed(const std::vector<Launched>& launches, const std::string& forward,
                                  const std::string& backward) {
  std::vector<std::string> steps;
  std::string now, weights;
  const auto begin = [&](const std::string& step) {
    if (step == now) return;
    if (!weights.empty()) steps.push_back(std::exchange(weights, {}));
    if (!step.empty()) steps.push_back(step);
    now = step;
  };
  for (const Launched& l : launches) {
    const auto [pass, segment] = place_of(l);
    const bool is_weights = l.name.ends_with("_wgrad");
    if (pass == "weights of " + backward && is_weights) begin(weights_of_kernel(l.name));
    if (segment.empty() || (pass != forward && pass != backward)) continue;
    begin((pass == forward ? "F " : "B ") + segment);
    if (pass == backward && is_weights) weights = weights_of_kernel(l.name);
  }
  begin("");
  return steps;
}

struct Pass {
  std::string name;
  bool forward = false, paired = false;
  int64_t stage() const { return std::stoll(name); }
};
// Returns a rank's forwards and backwards, in the order of their first launches.
std::vector<Pass> passes_of(const std::vector<Launched>& launches) {
  static const std::regex names("[0-9]+[FB][0-9]+");
  std::vector<Pass> passes;
  for (const Launched& l : launches) {
    const std::string name = l.scope.substr(0, l.scope.find(" > "));
    if (!std::regex_match(name, names)) continue;
    const auto known = std::ranges::find(passes, name, &Pass::name);
    if (known == passes.end())
      passes.push_back({name, name.find('F') != std::string::npos, l.paired});
    else
      REQUIRE(known->paired == l.paired);
  }
  return passes;
}

struct Orders {
  int pairs = 0, alone = 0;  // the numbers of compared passes
};
// Compares the order of all pairs that a rank runs in a step with the simulator's and, where weight
// gradients are delayed, that of the backwards that run alone.
Orders expect_simulated_orders(int ranks, const Changes& changes, int of_rank = 0) {
  CAPTURE(ranks, changes, of_rank);
  const Recipe r = tiny(changes, ranks);
  const RunPlan plan = plan::make_plan(r, ranks, kVocab);
  REQUIRE(plan.pipeline.pair_costs);
  const bool delay = plan.overlap.delay_wgrad_compute;
  const int64_t stages = plan.layout.stages, layers = r.model.num_layers / stages;
  const std::vector<Launched> launches = launches_of(ranks, changes, of_rank);
  const std::vector<Pass> passes = passes_of(launches);
  const auto parts_of_pass = [&](const Pass& pass) {
    const int64_t stage = pass.stage();
    NamedParts parts = parts_of(*plan.pipeline.pair_costs, stage * layers, (stage + 1) * layers,
                                r.model.moe.first_dense_layers, stage + 1 == stages);
    // The weight gradients of a chunk's first layer, except its MLP's, wait until the gradient is
    // sent, unless this rank also has the stage before.
    const std::string first = fmt::format("layers.{}.", stage * layers);
    if (stage > 0 && std::ranges::count(passes, stage - 1, &Pass::stage) == 0)
      for (size_t i = 0; i < parts.backward.size(); ++i)
        if (parts.backward[i].starts_with(first) && !parts.backward[i].ends_with("mlp"))
          parts.costs.backward[i].weight_cost = 0;
    return parts;
  };
  Orders orders;
  for (size_t i = 0; i < passes.size(); ++i) {
    if (!passes[i].paired) {
      if (!delay || passes[i].forward) continue;
      CAPTURE(passes[i].name);
      CHECK(executed(launches, "", passes[i].name) ==
            simulated({}, parts_of_pass(passes[i]), delay));
      ++orders.alone;
      continue;
    }
    // Each pair ends before the next one begins.
    REQUIRE(i + 1 < passes.size());
    const Pass &one = passes[i], &other = passes[++i];
    REQUIRE(other.paired);
    REQUIRE(one.forward != other.forward);
    const Pass &f = one.forward ? one : other, &b = one.forward ? other : one;
    CAPTURE(f.name, b.name);
    CHECK(executed(launches, f.name, b.name) ==
          simulated(parts_of_pass(f), parts_of_pass(b), delay));
    ++orders.pairs;
  }
  return orders;
}

// Blocks a stream until done() holds. After five seconds it gives up and sets `in_vain`.
void hold(Stream& stream, std::atomic<bool>& in_vain, std::function<bool()> done) {
  stream.launch({.name = "hold"}, [&in_vain, done](const device::LaunchContext&) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!done() && !in_vain) {
      in_vain = std::chrono::steady_clock::now() > end;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
}

}  // namespace

TEST_CASE("exchanges are enqueued before the weight gradients that hide them") {
  const auto all = launches_of(2, join({kTwoRanks, kOn, kDelay}));
  // The forward of micro-batch 1 runs together with the backward of micro-batch 0. Its layer 0 is
  // dense; the backward begins with layer 3.
  CHECK(at(all, "0F1 > layers.1.dispatch all_to_all") <
        at(all, "weights of 0B0 experts_down_wgrad"));
  CHECK(at(all, "0B0 > layers.3.mlp experts_up_dgrad") <
        at(all, "0F1 > layers.1.dispatch all_to_all"));
  CHECK(at(all, "0B0 > layers.3.combine all_to_all") <
        at(all, "0F1 > layers.1.attention norm_fwd"));
  CHECK(at(all, "0B0 > layers.3.dispatch all_to_all") <
        at(all, "0F1 > layers.1.mlp experts_up_fwd"));
  CHECK(at(all, "0F1 > layers.1.combine all_to_all") <
        at(all, "0B0 > layers.3.attention matmul_proj_dgrad"));
  CHECK(at(all, "0B0 > layers.2.combine all_to_all") < at(all, "weights of 0B0 matmul_qkv_wgrad"));
}

TEST_CASE("without the setting a pass begins when the one before has ended") {
  const NamedParts parts = parts_of({}, 0, 4, 1, true);
  std::vector<std::string> expected;
  for (int micro_batch = 0; micro_batch < 4; ++micro_batch)
    for (const auto& pass : {parts.forward, parts.backward})
      for (const std::string& segment : pass)
        if (expected.empty() || expected.back() != segment) expected.push_back(segment);
  CHECK(segments_of(launches_of(2, kTwoRanks)) == expected);
  CHECK(segments_of(launches_of(2, join({kTwoRanks, kOn}))) != expected);
}

TEST_CASE("passes are enqueued in the order that is simulated") {
  for (const Changes& model : {kPlain, kShared})
    for (const Changes& dense :
         {Changes{}, Changes{"model.num_layers=6", "model.moe.first_dense_layers=3"}}) {
      const Changes layout = join({model, dense, ep(2), kMegatron, kOn});
      CHECK(expect_simulated_orders(2, layout).pairs == 3);
      const Orders delayed = expect_simulated_orders(2, join({layout, kDelay}));
      CHECK(delayed.pairs == 3);
      CHECK(delayed.alone == 1);
    }
}

TEST_CASE("passes of a pipeline's stages are enqueued in the order that is simulated") {
  for (const char* schedule : {"interleaved_1f1b", "dfs", "dualpipev"})
    for (const char* dense : {"0", "3"}) {
      const Changes layout =
          join({kPlain,
                ep(2),
                kMegatron,
                pipelined(schedule, 2),
                {"model.num_layers=8", fmt::format("model.moe.first_dense_layers={}", dense)},
                kOn});
      for (const int rank : {0, 3}) {  // the first and the last of the pipeline
        CHECK(expect_simulated_orders(4, layout, rank).pairs >= 3);
        const Orders delayed = expect_simulated_orders(4, join({layout, kDelay}), rank);
        CHECK(delayed.pairs >= 3);
        CHECK(delayed.alone > 0);
      }
    }
}

// The host must read the forward's numbers of rows while the backward's rows are under way. In this
// test the rows arrive only after it has read them.
TEST_CASE("a host reads the next numbers of rows while other rows are under way") {
  for (const Changes& dispatcher : {Changes{}, Changes{"model.moe.token_dispatcher=flex"}}) {
    const Recipe r = tiny(join({kTwoRanks, kOn, dispatcher}), 2);
    struct Seen {
      bool held = false;
      std::atomic<bool> dispatched{false}, in_vain{false};
    };
    std::array<Seen, 2> ranks;
    run_ranks(2, "thread", [&](TestRank& rank) {
      Device& device = rank.device;
      Seen& seen = ranks[size_t(rank.rank())];
      train::Trainer t = make_trainer(device, r, std::make_shared<CountingData>(), rank.world);
      device.set_launch_check([&](Stream& stream, const device::LaunchInfo& info) {
        const std::string text = device.scope() + " " + info.name;
        if (text == "0F1 > layers.1.dispatch all_to_all") seen.dispatched = true;
        if (text != "0B0 > layers.3.combine all_to_all" || seen.held) return;
        seen.held = true;
        CHECK_FALSE(seen.dispatched);
        hold(stream, seen.in_vain, [&] { return seen.dispatched.load(); });
      });
      t.step();
      device.synchronize();
      device.set_launch_check({});
    });
    for (const Seen& seen : ranks) {
      CHECK(seen.held);
      CHECK(seen.dispatched);
      CHECK_FALSE(seen.in_vain);
    }
  }
}

// Rows of a forward must leave when its router has ended. Before the host reads the numbers of
// rows, it enqueues the experts of the other pass, which block the compute stream in this test.
TEST_CASE("rows travel while earlier launches occupy the compute stream") {
  for (const Changes& delay : {Changes{}, kDelay}) {
    const Recipe r = tiny(join({kTwoRanks, kOn, delay}), 2);
    struct Seen {
      bool held = false, exchanged_before = false;
      std::atomic<uint64_t> exchange{0};  // the stream's items up to the exchange
      std::atomic<bool> in_vain{false};
    };
    std::array<Seen, 2> ranks;
    run_ranks(2, "thread", [&](TestRank& rank) {
      Device& device = rank.device;
      const Stream& ep = device.stream(device::StreamKind::ep);
      Seen& seen = ranks[size_t(rank.rank())];
      train::Trainer t = make_trainer(device, r, std::make_shared<CountingData>(), rank.world);
      device.set_launch_check([&](Stream& stream, const device::LaunchInfo& info) {
        const std::string text = device.scope() + " " + info.name;
        if (text == "0F1 > layers.1.dispatch all_to_all" && seen.exchange == 0)
          seen.exchange = ep.enqueued();
        if (text != "0B0 > layers.3.mlp experts_down_dgrad") return;
        seen.held = true;
        seen.exchanged_before = seen.exchange > 0;
        hold(stream, seen.in_vain,
             [&] { return seen.exchange > 0 && ep.completed() >= seen.exchange; });
      });
      t.step();
      device.synchronize();
      device.set_launch_check({});
    });
    for (const Seen& seen : ranks) {
      CHECK(seen.held);
      CHECK(seen.exchange > 0);
      CHECK_FALSE(seen.exchanged_before);
      CHECK_FALSE(seen.in_vain);
    }
  }
}

}  // namespace parity_expert_pair_order_test
