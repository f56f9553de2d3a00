// Tests the simulated times, the pictures, and the actions that passes add around computations.
#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "schedule/catalog.h"
#include "schedule/expert_parts.h"
#include "schedule/lower.h"
#include "schedule/render.h"
#include "schedule/simulator.h"

namespace schedule_simulator_test {

using namespace mtrain;
using namespace mtrain::schedule;

namespace {

Schedule ready(const char* name, const ScheduleSize& size) {
  return with_messages(make_schedule(schedule_named(name), size));
}

StageParts usual_parts(const ExpertStage& stage) {
  return stage_parts(costs_of_layer(stage), std::vector<bool>(size_t(stage.layers), true), false);
}

}  // namespace

TEST_CASE("a pipeline of two, by hand") {
  const Schedule s = ready("gpipe", {2, 1, 2});
  CHECK(to_string(s.ranks[0]) == "0F0, 0SEND_F0, 0F1, 0SEND_F1, 0RECV_B0, 0B0, 0RECV_B1, 0B1");
  CHECK(to_string(s.ranks[1]) == "1RECV_F0, 1F0, 1RECV_F1, 1F1, 1B0, 1SEND_B0, 1B1, 1SEND_B1");
  // F 1, B 3 on stage 0; F 2, B 4 on stage 1.
  ScheduleCosts costs{.stages = {{1, 2, 1}, {2, 3, 1}}};
  // 0F0 [0,1] 1F0 [1,3] 1F1 [3,5] 1B0 [5,9] 1B1 [9,13]; 0B0 [9,12] 0B1 [13,16]
  Timeline t = simulate(s, costs);
  CHECK(t.step == 16);
  CHECK(t.busy == std::vector<double>{8, 12});
  CHECK(t.bubble() == Approx(1 - 20.0 / 32));
  CHECK(t.times[1][0].end == 1);  // a receive lasts until its message is there
  CHECK(t.times[0][5].begin == 9);

  SECTION("latency delays the actions that wait") {
    costs.p2p_latency = 0.5;
    // All actions on the critical path 0F0, 1F0, 1F1, 1B0, 1B1, 0B1 are delayed by two messages.
    CHECK(simulate(s, costs).step == 17);
  }
  SECTION("messages to one receiver follow each other, and latency delays them all") {
    costs.p2p_transfer = 3;  // 0F0 [0,1], 1F0 [4,6]; 0F1's message waits for the link: [4,7]
    const Timeline busy_link = simulate(s, costs);
    CHECK(busy_link.times[1][2].end == 7);
    costs.p2p_latency = 2;  // 0F0's message [1,6], 0F1's [6,11]
    CHECK(simulate(s, costs).times[1][2].end == 11);
  }
  SECTION("a delay is that of one message, and of those that follow it to the same receiver") {
    costs.message_delays = {{0, 1.5, 0, 0, 0, 0, 0, 0}, std::vector<double>(8)};
    const Timeline delayed = simulate(s, costs);
    CHECK(delayed.times[1][0].end == 2.5);
    CHECK(delayed.times[1][2].end == 4.5);  // 1F0 [2.5,4.5] ends after the second message is there
    CHECK(delayed.step == 17.5);
    CHECK(delayed.sums[0].busy[size_t(Lane::pp_send)] == 1.5);
    costs.message_delays[0][1] = 0;
    costs.message_delays[0][3] = 2;  // 1F0 [1,3] waits for no delay, 1F1 [4,6] for one
    CHECK(simulate(s, costs).step == 17);
  }
  SECTION("a gradient leaves before the weight gradients that wait for it") {
    costs.delayed_wgrad = 1;  // 1B0 [5,9] gives its gradient at 8
    const Timeline delayed = simulate(s, costs);
    CHECK(delayed.times[0][5].begin == 8);
    CHECK(delayed.step == 15);
    CHECK(delayed.busy == t.busy);
    costs.overlap_p2p = false;
    CHECK(simulate(s, costs).step == 16);
  }
  SECTION("without overlap the sender waits, too") {
    costs.p2p_latency = 0.25;
    costs.p2p_transfer = 0.25;
    costs.overlap_p2p = false;
    const Timeline blocked = simulate(s, costs);
    CHECK(blocked.times[0][2].begin == 1.5);  // 0F1
    // 0F0, send, 1F0, 1F1, 1B0, send, 1B1, send, 0B1
    CHECK(blocked.step == 1 + 0.5 + 2 + 2 + 4 + 0.5 + 4 + 0.5 + 3);
    CHECK(blocked.busy == t.busy);
  }
}

TEST_CASE("overlapped communication is never slower, and no cost makes a step shorter") {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const int64_t v = kind.min_stages;
    const std::string name(kind.name);
    const Schedule s = ready(name.c_str(), {4, v, 12}),
                   batched = with_batched_messages(make_schedule(schedule_named(name), {4, v, 12}));
    double before = 0;
    for (const double latency : {0.0, 0.1, 0.5, 2.0}) {
      ScheduleCosts costs{.p2p_latency = latency, .p2p_transfer = latency / 2};
      const double hidden = simulate(s, costs).step;
      costs.overlap_p2p = false;
      INFO(kind.name << " latency " << latency);
      CHECK(hidden <= simulate(batched, costs).step);
      CHECK(hidden >= before);
      before = hidden;
    }
  }
}

TEST_CASE("a forward and a backward together take their share and end together") {
  // The published (P-1) (F&B + B - 3W) is the idle time of the last rank, which has the most pairs.
  for (int64_t pp = 1; pp <= 6; ++pp)
    for (const int64_t m : {2 * pp, 2 * pp + 1, 5 * pp})
      for (const double share : {0.75, 0.9, 1.0}) {
        const Timeline t = simulate(ready("dualpipev", {pp, 2, m}), {.together = share});
        INFO("pp " << pp << " micro-batches " << m << " share " << share);
        CHECK(t.step - t.busy.back() == Approx(double(pp - 1) * (3 * share + 2 - 3)).margin(1e-9));
      }
}

TEST_CASE("when the gradient of a pair leaves, by hand") {
  using enum ActionKind;
  const Schedule computed{.name = "pair",
                          .pp = 2,
                          .stages = 2,
                          .micro_batches = 2,
                          .rank_of_stage = {0, 1},
                          .ranks = {{{F, 0, 0}, {F, 0, 1}, {B, 0, 0}, {B, 0, 1}},
                                    {{F, 1, 0}, {F, 1, 1, -1, true}, {B, 1, 0}, {B, 1, 1}}}};
  const Schedule s = with_messages(computed);
  CHECK(to_string(s.ranks[0]) == "0F0, 0SEND_F0, 0F1, 0SEND_F1, 0RECV_B0, 0B0, 0RECV_B1, 0B1");
  const auto begin = [](const Timeline& t) { return t.times[0][5].begin; };  // 0B0
  // 1F0 [1.5,2.5], the pair 1F1 and 1B0 [2.5,5.5], then 1B1
  ScheduleCosts costs{.p2p_transfer = 0.5};
  const Timeline at_end = simulate(s, costs);
  CHECK(begin(at_end) == 6);
  CHECK(at_end.step == 10);
  costs.paired_gradient = PairedGradient::in_order;
  const Timeline in_order = simulate(s, costs);
  CHECK(begin(in_order) == 6);
  CHECK(in_order.step == 10.5);  // 1B1 waits until the gradient has been sent
  costs.delayed_wgrad = 1;       // 1B0's run meanwhile, and 1B1's after its gradient is sent
  const Timeline delayed = simulate(s, costs);
  CHECK(begin(delayed) == 5);
  CHECK(delayed.step == 9);
  costs.delayed_wgrad = 0;
  costs.paired_gradient = PairedGradient::at_once;
  costs.forward_tail = 0.5;
  const Timeline at_once = simulate(s, costs);
  CHECK(begin(at_once) == 5.5);
  CHECK(at_once.step == 10);
  for (const Timeline* t : {&in_order, &delayed, &at_once}) CHECK(t->busy == at_end.busy);
}

TEST_CASE("messages to different ranks share a link if a rank has one") {
  using enum ActionKind;
  // The second of three ranks sends an activation and a gradient at the same time.
  const Schedule s =
      with_messages({.name = "three",
                     .pp = 3,
                     .stages = 3,
                     .micro_batches = 2,
                     .rank_of_stage = {0, 1, 2},
                     .ranks = {{{F, 0, 0}, {F, 0, 1}, {B, 0, 0}, {B, 0, 1}},
                               {{F, 1, 0}, {F, 1, 1, -1, true}, {B, 1, 0}, {B, 1, 1}},
                               {{F, 2, 0}, {B, 2, 0}, {F, 2, 1}, {B, 2, 1}}}});
  ScheduleCosts costs{.p2p_transfer = 1};
  const auto begin_of_0B0 = [&] { return simulate(s, costs).times[0][5].begin; };
  const double apart = begin_of_0B0();
  costs.one_link = true;  // the activation goes first
  CHECK(begin_of_0B0() == apart + 1);
  costs.one_link = false;
  costs.messages = {{{1, 0}, {.transfer = 1, .link = 7}}, {{1, 2}, {.transfer = 1, .link = 7}}};
  CHECK(begin_of_0B0() == apart + 1);
  costs.messages[{1, 0}].link = 8;
  CHECK(begin_of_0B0() == apart);
}

TEST_CASE("each hop of a pipeline has its own link") {
  // 0F0 [0,1] ... of three ranks; only the message from the second to the third one takes time.
  const Schedule s = with_messages(make_schedule(schedule_named("gpipe"), {3, 1, 1}));
  ScheduleCosts costs;
  const double free = simulate(s, costs).step;
  costs.messages[{1, 2}] = {.latency = 2, .transfer = 3};
  CHECK(simulate(s, costs).step == free + 5);
  costs.p2p_transfer = 1;  // of the three other messages
  CHECK(simulate(s, costs).step == free + 5 + 3);
}

TEST_CASE("the lanes of a rank, by hand") {
  const auto sum = [](const Timeline& t, size_t rank, Lane lane) {
    return std::pair{t.sums[rank].busy[size_t(lane)], t.sums[rank].exposed[size_t(lane)]};
  };
  using Sum = std::pair<double, double>;
  const Schedule computed = make_schedule(schedule_named("gpipe"), {2, 1, 2});
  SECTION("a message is exposed from the end of the computation that sends it") {
    // 0F0 [0,1] 0F1 [1,2]; messages arrive at 3 and 5, since they follow each other. 1F0 [3,4], 1F1
    // [5,6], 1B0 [6,8], 1B1 [8,10]; gradients arrive at 10 and 12, and 0B0 [10,12], 0B1 [12,14].
    const Timeline t = simulate(with_messages(computed), {.p2p_latency = 0.5, .p2p_transfer = 1.5});
    CHECK(t.step == 14);
    CHECK(sum(t, 0, Lane::pp_send) == Sum{4, 0});
    // From 1 to 3, from 4 to 5; 1F1's message could leave at 2, and so is exposed while 1 waits.
    CHECK(sum(t, 1, Lane::pp_receive).second == 2 + 1);
    CHECK(sum(t, 0, Lane::pp_receive).second == 2);  // from 8 to 10
    CHECK(sum(t, 0, Lane::dp) == Sum{0, 0});
  }
  SECTION("without overlap the sender waits, and that is exposed, too") {
    const Timeline t =
        simulate(with_batched_messages(computed), {.p2p_transfer = 1, .overlap_p2p = false});
    CHECK(sum(t, 0, Lane::pp_send).second == 2);
  }
  SECTION("gradients are reduced after a stage's last backward, and only the end is exposed") {
    const Timeline without = simulate(with_messages(computed), {});
    ScheduleCosts costs;
    costs.stages[0].reduce = 5;
    const Timeline t = simulate(with_messages(computed), costs);
    // Rank 1 ends its backwards 2 before rank 0 does.
    CHECK(t.step == without.step + 5);
    CHECK(sum(t, 0, Lane::dp) == Sum{5, 5});
    CHECK(sum(t, 1, Lane::dp) == Sum{5, 5});
    CHECK(t.busy == without.busy);
    // The reductions of all stages but the first hide behind the others' backwards.
    const Schedule two =
        with_messages(make_schedule(schedule_named("interleaved_1f1b"), {1, 2, 4}));
    costs.stages[0].reduce = 2;
    const Timeline hidden = simulate(two, costs);
    CHECK(sum(hidden, 0, Lane::dp) == Sum{4, 2});
  }
  SECTION("weights are gathered ahead, and a computation waits for those of its stage") {
    const Schedule s = with_messages(
        with_sharding(make_schedule(schedule_named("interleaved_1f1b"), {1, 4, 4}), 2));
    ScheduleCosts costs;
    const double free = simulate(s, costs).step;
    costs.stages[0].gather = 0.5;
    const Timeline t = simulate(s, costs);
    int64_t gathers = 0;
    for (const Action& a : s.ranks[0]) gathers += a.kind == ActionKind::unshard;
    CHECK(sum(t, 0, Lane::dp).first == 0.5 * double(gathers));
    CHECK(t.step - free == Approx(sum(t, 0, Lane::dp).second));
    CHECK(sum(t, 0, Lane::dp).second >= 0.5);  // the first gather hides behind nothing
    CHECK(sum(t, 0, Lane::dp).second < sum(t, 0, Lane::dp).first);
    // If the host enqueues nothing ahead, less is hidden.
    costs.run_ahead = 0;
    CHECK(simulate(s, costs).step >= t.step);
  }
  SECTION("communication inside of a computation takes no further time") {
    ScheduleCosts costs;
    const Timeline without = simulate(with_messages(computed), costs);
    costs.stages[0].tp = {.F = {0.4, 0.1}, .I = {0.5, 0.2}, .W = {0.25, 0}};
    const Timeline t = simulate(with_messages(computed), costs);
    CHECK(t.step == without.step);
    CHECK(sum(t, 0, Lane::tp).first == Approx(2 * (0.4 + 0.5 + 0.25)));
    CHECK(sum(t, 0, Lane::tp).second == Approx(2 * (0.1 + 0.2)));
    CHECK(sum(t, 0, Lane::cp) == Sum{0, 0});
  }
}

TEST_CASE("on every lane, what a rank computes, waits for and is idle for makes up its step") {
  for (const ScheduleKind& kind : schedule_kinds())
    for (const bool overlap : {true, false}) {
      const Schedule computed = with_sharding(make_schedule(kind, {4, kind.min_stages, 12}), 2);
      const Schedule s = executed(computed, {.overlap = overlap});
      ScheduleCosts costs{.p2p_latency = 0.1, .p2p_transfer = 0.3, .overlap_p2p = overlap};
      costs.stages[0].gather = 0.7, costs.stages[0].reduce = 1.3;
      const Timeline t = simulate(s, costs);
      INFO(kind.name << (overlap ? "" : " without overlap"));
      for (size_t rank = 0; rank < 4; ++rank) {
        double known = t.busy[rank];
        for (const double exposed : t.sums[rank].exposed) known += exposed;
        CHECK(known <= t.step + 1e-9);
        for (size_t i = 0; i < t.lanes[rank].size(); ++i) {
          const LaneTime& l = t.lanes[rank][i];
          CHECK(l.action < s.ranks[rank].size());
          CHECK((l.begin >= 0 && l.end <= t.step + 1e-9));
        }
      }
    }
}

TEST_CASE("stages of one rank exchange no messages") {
  const Schedule v = ready("v_schedule", {3, 2, 6});
  for (const ActionList& list : v.ranks)
    for (const Action& a : list) {
      CHECK(to_string(a).rfind("2SEND_F", 0) == std::string::npos);  // stages 2 and 3 share rank 2
      CHECK(to_string(a).rfind("3SEND_B", 0) == std::string::npos);
    }
  const Schedule alone = ready("interleaved_1f1b", {1, 4, 4});
  for (const Action& a : alone.ranks[0]) CHECK(is_compute(a.kind));
}

TEST_CASE(
    "no more stages are gathered than allowed, and each is reduced right after its last use") {
  for (const int64_t most : {2, 3}) {
    const Schedule s =
        with_sharding(make_schedule(schedule_named("interleaved_1f1b"), {2, 4, 8}), most);
    for (const ActionList& list : s.ranks) {
      std::set<int64_t> gathered;
      int64_t gathers = 0;
      for (size_t i = 0; i < list.size(); ++i) {
        const Action& a = list[i];
        if (a.kind == ActionKind::unshard) gathered.insert(a.stage), ++gathers;
        if (a.kind == ActionKind::reshard) gathered.erase(a.stage);
        CHECK(int64_t(gathered.size()) <= most);
        if (a.kind == ActionKind::reduce) {
          CHECK(list[i - 1].stage == a.stage);
          for (size_t k = i + 1; k < list.size(); ++k)
            CHECK_FALSE((is_compute(list[k].kind) && list[k].stage == a.stage));
        }
      }
      CHECK(gathered.empty());
      CHECK(gathers > 4);  // 4 stages do not fit at once
    }
  }
  // If all stages fit, each is gathered once.
  const Schedule s = with_sharding(make_schedule(schedule_named("zero_bubble"), {2, 2, 8}), 3);
  CHECK(std::count_if(s.ranks[0].begin(), s.ranks[0].end(),
                      [](const Action& a) { return a.kind == ActionKind::unshard; }) == 2);
}

TEST_CASE("a pass alone and its chunks, by hand") {
  const PairPart exchange{.kind = PairPartKind::exchange, .cost = 4};
  const std::vector<PairPart> pass{
      {.cost = 1}, exchange, {.cost = 4, .weight_cost = 2}, exchange, {.cost = 1}};
  const PairTimeline whole = simulate_pass(pass, 1, {});
  CHECK(whole.length == 1 + 4 + 6 + 4 + 1);
  CHECK(whole.exposed() == whole.exchanges);
  // The weight gradients fill the way back.
  CHECK(simulate_pass(pass, 1, {.delay_wgrad = true}).exposed() == 6);
  // Chunks compute in [2,3], [3,4], [5,6] and [7,8]. The way there ends at 2, 3, 5 and 7, the way
  // back at 4, 6, 8 and 9. The weight gradients of all chunks follow in [8,10].
  for (const bool delay_wgrad : {false, true}) {
    const PairTimeline four = simulate_pass(pass, 4, {.delay_wgrad = delay_wgrad});
    CHECK(four.length == 11);
    CHECK(four.exchanges == 8);
    CHECK(four.exposed() == 3);
  }
  // With a latency of 1 each way of a chunk takes 1 + 3 / 4. The way there ends at 2.75, 4.5, 8 and
  // 11.5, the way back at 6.25, 9.75, 13.25 and 15; chunks compute from 2.75, 4.5, 8 and 11.5 on.
  std::vector<PairPart> late = pass;
  late[1].latency = late[3].latency = 1;
  const PairTimeline with_latency = simulate_pass(late, 4, {});
  CHECK(with_latency.exchanges == 14);
  CHECK(with_latency.length == 16);
  CHECK(simulate_pass(late, 1, {}).length == whole.length);
  // A shared expert computes before the wait for the first chunk, or for the undivided exchange.
  std::vector<PairPart> shared = pass;
  shared[2].cost += 3, shared[2].ahead = 3;
  CHECK(simulate_pass(shared, 1, {}).exposed() == whole.exposed() - 3);
  // Chunks in [4,5], [5,6], [7,8] and [9,10]: a return comes before the dispatch of the chunk after
  // the next. The weight gradients end at 12.
  CHECK(simulate_pass(shared, 4, {}).length == 13);
  // Work that can run ahead hides at most the time of the exchange.
  shared[2].cost += 3, shared[2].ahead = 6;
  CHECK(simulate_pass(shared, 1, {}).exposed() == whole.exposed() - 4);
  // Only a part that is alone between two exchanges is divided.
  const std::vector<PairPart> two{{.cost = 1}, exchange, {.cost = 1}, {.cost = 1}, exchange};
  CHECK(simulate_pass(two, 4, {}).length == simulate_pass(two, 1, {}).length);
}

TEST_CASE("passes are ordered by estimates, and take their own times") {
  const auto stage = [](double attention, double experts, double exchange) {
    PassCosts costs;
    costs.attention = {attention, attention, attention};
    costs.experts = {experts, experts, experts};
    costs.exchange = {exchange, exchange};
    return stage_parts(costs, {true, true}, false);
  };
  const StageParts real = stage(1, 6, 2), estimate = stage(5, 1, 4);
  const Schedule s = with_messages(
      make_schedule(schedule_named("1f1b"), {.pp = 1, .micro_batches = 2, .moe_overlap = true}),
      false);
  for (const bool delay_wgrad : {false, true}) {
    CAPTURE(delay_wgrad);
    ScheduleCosts costs;
    costs.parts = {real};
    costs.pair.delay_wgrad = delay_wgrad;
    const double by_own_times = simulate(s, costs).step;
    costs.estimates = {estimate};
    const std::vector<PairStep> order = pair_order(estimate.forward, estimate.backward, costs.pair);
    REQUIRE(order != pair_order(real.forward, real.backward, costs.pair));
    const auto alone = [&](const std::vector<PairPart>& times, const std::vector<PairPart>& by) {
      return simulate_pair(pair_order({}, by, costs.pair), {}, times).length;
    };
    CHECK(simulate(s, costs).step ==
          Approx(alone(real.forward, estimate.forward) +
                 simulate_pair(order, real.forward, real.backward).length +
                 alone(real.backward, estimate.backward)));
    costs.estimates = costs.parts;
    CHECK(simulate(s, costs).step == by_own_times);
  }
}

TEST_CASE("parts that exchange nothing take the time of whole passes") {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const Schedule s = ready(std::string(kind.name).c_str(), {4, kind.min_stages, 12});
    ScheduleCosts costs{.stages = {{1, 1.5, 0.5}}, .p2p_transfer = 0.25};
    const Timeline whole = simulate(s, costs);
    costs.parts = {usual_parts({.F = 1, .I = 1.5, .W = 0.5, .layers = 3})};
    const Timeline in_parts = simulate(s, costs);
    INFO(kind.name);
    CHECK(in_parts.step == Approx(whole.step));
    CHECK(in_parts.bubble() == Approx(whole.bubble()));
    CHECK(in_parts.paired.exposed + in_parts.unpaired.exposed == Approx(0).margin(1e-9));
  }
}

TEST_CASE("exchanges are exposed in passes alone, and hidden in pairs and by chunks") {
  const Schedule alone = ready("interleaved_1f1b", {2, 2, 16});
  const Schedule paired = with_messages(
      make_schedule(schedule_named("interleaved_1f1b"),
                    {.pp = 2, .stages_per_rank = 2, .micro_batches = 16, .moe_overlap = true}));
  ScheduleCosts costs;
  const double free_alone = simulate(alone, costs).step, free_paired = simulate(paired, costs).step;
  costs.parts = {usual_parts({.layers = 2, .exchange = 0.3})};
  const Timeline a = simulate(alone, costs), p = simulate(paired, costs);
  // Each of 2 ranks computes 32 forwards and backwards of 3.
  CHECK(a.unpaired.exchanges == Approx(0.3 * 3 * 64));
  // A forward's shared expert is computed while rows come back, and a backward's last weight
  // gradients of experts while gradients do: these take longer than one of the four exchanges.
  const double hidden = 0.05 / (0.3 * 3) + 0.25;
  CHECK(a.unpaired.share() == Approx(1 - hidden));
  CHECK(a.paired.exchanges == 0);
  CHECK(a.step > 1.2 * free_alone);
  CHECK(p.paired.exchanges + p.unpaired.exchanges == Approx(0.3 * 3 * 64));
  CHECK(p.paired.share() < 0.1);
  CHECK(p.unpaired.share() == Approx(1 - hidden));
  for (const double busy : p.busy) CHECK(busy == Approx(96));
  CHECK(p.step < 1.12 * free_paired);
  costs.exchange_chunks = 4;
  const Timeline chunks = simulate(paired, costs);
  CHECK(chunks.unpaired.share() < 0.4);
  CHECK(chunks.paired.share() == Approx(p.paired.share()).margin(1e-9));
  CHECK(chunks.step < p.step);
  // The exchanges of a rank do not overlap, and each is within the step.
  for (const auto& rank : chunks.exchanges)
    for (size_t i = 0; i < rank.size(); ++i) {
      CHECK(rank[i].begin >= (i ? rank[i - 1].end - 1e-9 : 0));
      CHECK(rank[i].end <= chunks.step + 1e-9);
    }
}

TEST_CASE("exchanges are drawn below their rank") {
  const Schedule s = ready("1f1b", {1, 1, 1});
  ScheduleCosts costs;
  costs.parts = {usual_parts({.F = 2, .I = 1, .W = 1, .exchange = 1})};
  const Timeline t = simulate(s, costs);
  CHECK(t.step == Approx(8 - 0.1 - 0.4 * 2 / 3));
  CHECK(schedule_text(s, t, 0) ==
        "rank 0 0F0 0B0\n"
        "  ep   .f.fb.b.\n");
  CHECK(schedule_svg(s, t).find("<title>exchange of 0F0 1.1 to 2.1</title>") != std::string::npos);
}

TEST_CASE("a schedule as text") {
  const Schedule s = ready("1f1b", {2, 1, 2});
  const Timeline t = simulate(s, {});
  CHECK(schedule_text(s, t, 0) ==
        "rank 0 0F0 0F1 ........0B0---- ....0B1----\n"
        "rank 1 ....1F0 1B0---- 1F1 1B1---- ........\n");
  // Parts of whole cells, each with its time.
  CHECK(schedule_text(s, t, 7 + 5 * 4 + 3) ==
        "from 0\n"
        "rank 0 0F0 0F1 ........0B0-\n"
        "rank 1 ....1F0 1B0---- 1F1\n"
        "\n"
        "from 5\n"
        "rank 0 --- ....0B1----\n"
        "rank 1 1B1---- ........\n");
}

TEST_CASE("a schedule as a table and as a picture") {
  const Schedule s = ready("zero_bubble", {2, 1, 2});
  CHECK(schedule_csv(s) ==
        "0F0,0F1,0I0,0W0,0I1,0W1\n"
        "1F0,1I0,1F1,1I1,1W0,1W1\n");
  const std::string svg = schedule_svg(s, simulate(s, {}));
  CHECK(svg.rfind("<svg ", 0) == 0);
  CHECK(svg.substr(svg.size() - 7) == "</svg>\n");
  const auto count = [&](const std::string& what) {
    int64_t n = 0;
    for (size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++n;
    return n;
  };
  CHECK(count("<title>") == 12);  // an action each
  CHECK(count("<g") == count("</g>"));
  // The legend, the axis, and the stage and micro-batch of a box.
  for (const char* part : {"F forward", "I input gradients", "W weight gradients", ">time<",
                           ">1<tspan", ">s1</tspan>"}) {
    CAPTURE(part);
    CHECK(count(part) > 0);
  }
  CHECK(count("B backward") + count("exchange") == 0);  // the legend omits kinds that do not occur
}

TEST_CASE("a picture is at most 1,600 wide, its rows wrap, and every box has its label") {
  const Schedule s = ready("zero_bubble", {8, 1, 32});
  const Timeline t = simulate(s, {});
  const std::string svg = schedule_svg(s, t);
  const auto count = [&](const std::string& what) {
    int64_t n = 0;
    for (size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++n;
    return n;
  };
  CHECK(std::stod(svg.substr(svg.find("width=\"") + 7)) <= kWidestPicture);
  CHECK(count(">time<") == 2);    // two parts,
  CHECK(count(">rank 7<") == 2);  // each with all ranks
  CHECK(count("</tspan>") >= 8 * 32 * 3);
  // The page has the picture in one row.
  const std::string page = schedule_html(s, t);
  CHECK(page.find(">time<") == page.rfind(">time<"));
  CHECK(page.find("id=\"zoom\"") != std::string::npos);
  CHECK(page.find("http") == page.rfind("http"));  // the namespace alone: nothing is loaded
}

}  // namespace schedule_simulator_test
