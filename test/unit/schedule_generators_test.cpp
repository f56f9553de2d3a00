// Proves every schedule for every size that it can have, and compares its cost with the published
// one.
#include <algorithm>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "schedule/catalog.h"
#include "schedule/lower.h"
#include "schedule/simulator.h"
#include "schedule/validator.h"

namespace schedule_generators_test {

using namespace mtrain;
using namespace mtrain::schedule;

namespace {

bool legal(const ScheduleKind& kind, const ScheduleSize& size) {
  try {
    check_size(kind, size);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

std::vector<int64_t> bounds(const ScheduleKind& kind, const ScheduleSize& size) {
  std::vector<int64_t> most;
  for (int64_t rank = 0; rank < size.pp; ++rank) most.push_back(chunks_in_flight(kind, size, rank));
  return most;
}

// All sizes up to 8 ranks, 8 stages per rank, and enough micro-batches to fill them; some larger
// sizes of each.
std::vector<ScheduleSize> sizes() {
  std::vector<ScheduleSize> all;
  for (int64_t pp = 1; pp <= 8; ++pp)
    for (int64_t v = 1; v <= 8; ++v)
      for (int64_t m = 1; m <= 64; m += m < 18 || v <= 2 ? 1 : 5) all.push_back({pp, v, m});
  for (const int64_t pp : {9, 11, 12, 16})
    for (const int64_t v : {1, 2, 3, 5, 8})
      for (const int64_t m : std::vector<int64_t>{1, pp - 1, pp, pp + 1, 2 * pp - 1, 2 * pp, 64})
        all.push_back({pp, v, m});
  return all;
}

std::string text(const ScheduleKind& kind, const ScheduleSize& s) {
  return fmt::format("{} pp {} stages {} micro-batches {} group {} moe_overlap {}", kind.name, s.pp,
                     s.stages_per_rank, s.micro_batches, s.group, s.moe_overlap);
}

void prove(const ScheduleKind& kind, const ScheduleSize& size) {
  const Schedule s = make_schedule(kind, size);
  std::vector<std::string> faults = schedule_faults(with_messages(s), bounds(kind, size));
  if (faults.empty() && size.micro_batches < 18)
    faults = schedule_faults(with_messages(with_sharding(s, 2 + size.micro_batches % 3)));
  const bool pairs =
      std::ranges::any_of(s.ranks[0], [](const Action& a) { return a.overlaps_next; });
  if (faults.empty() && pairs) faults = schedule_faults(with_messages(s, true));
  if (faults.empty() && size.micro_batches < 18) {
    const Schedule batched = with_batched_messages(s),
                   sharded = with_batched_messages(with_sharding(s, 2));
    faults = schedule_faults(batched, bounds(kind, size));
    if (faults.empty()) faults = schedule_faults(sharded);
    for (const Schedule* b : {&batched, &sharded})
      if (!runs_blocking(*b, Blocking::all_messages))
        faults.push_back("batches wait for each other");
    const Schedule single = with_single_messages(s);
    if (faults.empty()) faults = schedule_faults(single, bounds(kind, size));
    if (!runs_blocking(single, Blocking::one_by_one))
      faults.push_back("single messages wait for each other");
    // Only in groups of at least twice the ranks does a gradient wait for its receiver.
    if (pairs && group_of(size) < 2 * size.pp &&
        !runs_blocking(with_messages(s), Blocking::paired_gradients))
      faults.push_back("paired gradients wait for each other");
  }
  INFO(text(kind, size));
  REQUIRE(faults == std::vector<std::string>{});
}

double simulated_bubble(const ScheduleKind& kind, const ScheduleSize& size) {
  return simulate(with_messages(make_schedule(kind, size)), {}).bubble();
}

}  // namespace

TEST_CASE("every schedule of every legal size is proved right, within its bound") {
  int64_t proved = 0;
  for (const ScheduleKind& kind : schedule_kinds())
    for (const ScheduleSize& size : sizes())
      if (legal(kind, size)) {
        prove(kind, size);
        ++proved;
      }
  CHECK(proved > 5000);
}

TEST_CASE("every size of a group, and the order with overlapped experts, is proved right") {
  for (const char* name : {"interleaved_1f1b", "zero_bubble"}) {
    const ScheduleKind& kind = schedule_named(name);
    for (int64_t pp = 1; pp <= 6; ++pp)
      for (const int64_t v : {2, 3, 5})
        for (int64_t m = pp; m <= 20; ++m)
          for (int64_t group = pp; group <= m; ++group)
            if (legal(kind, {pp, v, m, group})) {
              prove(kind, {pp, v, m, group});
              if (kind.name == "interleaved_1f1b") prove(kind, {pp, v, m, group, true});
            }
  }
}

TEST_CASE("the formula counts the pairs of every list") {
  for (const ScheduleKind& kind : schedule_kinds())
    for (ScheduleSize size : sizes()) {
      size.moe_overlap = kind.pairs != nullptr;
      if (!legal(kind, size)) continue;
      bool some = false;
      for (int64_t rank = 0; rank < size.pp; ++rank) {
        const auto pairs = std::ranges::count_if(kind.list(size, rank), &Action::overlaps_next);
        some = some || pairs > 0;
        INFO(text(kind, size) << " rank " << rank);
        REQUIRE(pairs == (kind.pairs ? kind.pairs(size, rank) : 0));
      }
      REQUIRE(passes_pair(kind, size) == some);
    }
  const ScheduleKind& interleaved = schedule_named("interleaved_1f1b");
  CHECK(passes_pair(interleaved, {4, 65536, 1 << 30, 0, true}));
  CHECK(interleaved.pairs({2, 3, 12, 4, true}, 0) == 3 * 12 - (2 * 4 + 2 + 1));
}

TEST_CASE("activations in flight reach the published bound") {
  for (const ScheduleKind& kind : schedule_kinds())
    for (const ScheduleSize& size : sizes()) {
      // ZB-V needs 2P-1 micro-batches to be full; with fewer the bound is not reached.
      if (!legal(kind, size) || (kind.name == "v_schedule" && size.micro_batches < 2 * size.pp - 1))
        continue;
      const Schedule s = make_schedule(kind, size);
      std::vector<int64_t> held;
      for (const ActionList& list : s.ranks)
        held.push_back(peak_in_flight(list).to_weight_gradient);
      INFO(text(kind, size));
      REQUIRE(held == bounds(kind, size));
    }
}

TEST_CASE("the simulated bubble is the published one") {
  for (const ScheduleKind& kind : schedule_kinds())
    for (const ScheduleSize& size : sizes()) {
      if (!legal(kind, size)) continue;
      INFO(text(kind, size));
      // The zero-bubble formula is one of full pipelines: with fewer micro-batches than ranks it is
      // a lower bound.
      if (kind.name == "zero_bubble" && size.micro_batches < size.pp)
        REQUIRE(simulated_bubble(kind, size) > bubble_fraction(kind, size));
      else
        REQUIRE(simulated_bubble(kind, size) == Approx(bubble_fraction(kind, size)).margin(1e-12));
    }
}

TEST_CASE("steps, idle time and activations of a separate simulator") {
  // F = I = W = 1 for a micro-batch on a rank; its chunks take their share of that.
  struct Case {
    const char* name;
    ScheduleSize size;
    double step, idle_over_busy;
    std::vector<int64_t> to_input, to_weight;
  };
  const auto same = [](int64_t pp, int64_t n) { return std::vector<int64_t>(size_t(pp), n); };
  for (const Case& c : std::vector<Case>{
           {"gpipe", {4, 1, 8}, 33, 0.375, same(4, 8), same(4, 8)},
           {"1f1b", {4, 1, 8}, 33, 0.375, {4, 3, 2, 1}, {4, 3, 2, 1}},
           {"zero_bubble", {4, 1, 8}, 27, 0.125, {4, 3, 2, 1}, same(4, 4)},
           {"interleaved_1f1b", {4, 2, 8}, 28.5, 0.1875, {11, 9, 7, 5}, {11, 9, 7, 5}},
           {"interleaved_1f1b", {4, 4, 8}, 26.25, 0.09375, {19, 17, 15, 13}, {19, 17, 15, 13}},
           {"interleaved_1f1b", {4, 2, 8, 0, true}, 28.5, 0.1875, {12, 10, 8, 6}, {12, 10, 8, 6}},
           {"dfs", {4, 2, 8}, 28.5, 0.1875, {11, 9, 7, 5}, {11, 9, 7, 5}},
           {"looped_bfs", {4, 2, 8}, 28.5, 0.1875, same(4, 16), same(4, 16)},
           {"zero_bubble", {4, 2, 8}, 25.5, 0.0625, {8, 7, 6, 5}, same(4, 8)},
           {"v_schedule", {4, 2, 8}, 25.5, 0.0625, same(4, 8), same(4, 8)},
           {"dualpipev", {4, 2, 8}, 27, 0.125, same(4, 9), same(4, 9)},
           {"gpipe", {4, 1, 16}, 57, 0.1875, same(4, 16), same(4, 16)},
           {"1f1b", {4, 1, 16}, 57, 0.1875, {4, 3, 2, 1}, {4, 3, 2, 1}},
           {"zero_bubble", {4, 2, 16}, 49.5, 0.03125, {8, 7, 6, 5}, same(4, 8)},
           {"v_schedule", {4, 2, 16}, 49.5, 0.03125, same(4, 8), same(4, 8)},
           {"dualpipev", {4, 2, 16}, 51, 0.0625, same(4, 9), same(4, 9)},
           {"interleaved_1f1b",
            {8, 4, 32},
            101.25,
            0.0546875,
            {39, 37, 35, 33, 31, 29, 27, 25},
            {39, 37, 35, 33, 31, 29, 27, 25}},
           {"zero_bubble",
            {8, 2, 32},
            99.5,
            7.0 / 192,
            {16, 15, 14, 13, 12, 11, 10, 9},
            same(8, 16)},
           {"v_schedule", {8, 2, 32}, 99.5, 7.0 / 192, same(8, 16), same(8, 16)},
           {"dualpipev", {8, 2, 32}, 103, 7.0 / 96, same(8, 17), same(8, 17)}}) {
    INFO(text(schedule_named(c.name), c.size));
    const Schedule s = with_messages(make_schedule(schedule_named(c.name), c.size));
    const double share = 1.0 / double(c.size.stages_per_rank);
    const Timeline t = simulate(s, {.stages = {{share, share, share}}});
    CHECK(t.step == Approx(c.step));
    CHECK(t.bubble() == Approx(c.idle_over_busy / (1 + c.idle_over_busy)));
    for (size_t rank = 0; rank < s.ranks.size(); ++rank) {
      CHECK(peak_in_flight(s.ranks[rank]).to_input_gradient == c.to_input[rank]);
      CHECK(peak_in_flight(s.ranks[rank]).to_weight_gradient == c.to_weight[rank]);
    }
  }
}

TEST_CASE("sends may block where messages of neighbours meet, and not where they cross") {
  const auto may_block = [](const char* name, const ScheduleSize& size) {
    return runs_blocking(with_messages(make_schedule(schedule_named(name), size)),
                         Blocking::all_messages);
  };
  for (const int64_t pp : {2, 3, 4, 8})
    for (const int64_t m : {1, 2, 4, 8, 16})
      for (const char* name : {"1f1b", "gpipe"}) CHECK(may_block(name, {pp, 1, m}));
  // The last rank sends to the first, which receives only after its full group.
  CHECK_FALSE(may_block("interleaved_1f1b", {4, 2, 8}));
  CHECK_FALSE(may_block("looped_bfs", {4, 2, 8}));
  // Two ranks that each complete a send before they receive.
  const Schedule crossed{
      .pp = 2,
      .ranks = {
          {{ActionKind::send_f, 0, 0, 1}, {ActionKind::F, 0, 1}, {ActionKind::recv_b, 0, 0, 1}},
          {{ActionKind::send_b, 1, 0, 0}, {ActionKind::F, 1, 1}, {ActionKind::recv_f, 1, 0, 0}}}};
  CHECK_FALSE(runs_blocking(crossed, Blocking::all_messages));
}

TEST_CASE("one by one, where a rank sends its neighbour receives") {
  const auto lists = [](const char* name, const ScheduleSize& size) {
    std::vector<std::string> text;
    for (const ActionList& list :
         with_single_messages(make_schedule(schedule_named(name), size)).ranks)
      text.push_back(to_string(list));
    return text;
  };
  // Ranks that all send first wait for each other; begun together, the same messages move.
  const Schedule circle{.pp = 2,
                        .ranks = {{{ActionKind::send_f, 0, 0, 1}, {ActionKind::recv_b, 0, 0, 1}},
                                  {{ActionKind::send_b, 1, 0, 0}, {ActionKind::recv_f, 1, 0, 0}}}};
  CHECK(runs_blocking(circle, Blocking::all_messages));
  CHECK_FALSE(runs_blocking(circle, Blocking::one_by_one));
  // Two stages on each of two ranks: forwards go both ways at once.
  const auto two = lists("interleaved_1f1b", {2, 2, 2});
  INFO(two[0] << "\n" << two[1]);
  CHECK(two[0].find("0SEND_F1, 2RECV_F0") != std::string::npos);
  CHECK(two[1].find("1RECV_F1, 1SEND_F0") != std::string::npos);
}

TEST_CASE("a gradient that holds its sender can wait for ever in large groups alone") {
  const auto runs = [](const ScheduleSize& size) {
    const Schedule s = make_schedule(schedule_named("interleaved_1f1b"), size);
    return runs_blocking(with_messages(s), Blocking::paired_gradients);
  };
  CHECK(runs({2, 2, 8, 0, true}));
  CHECK(runs({4, 2, 16, 0, true}));
  CHECK(runs({2, 2, 9, 3, true}));
  CHECK_FALSE(runs({2, 2, 8, 4, true}));
}

TEST_CASE("forwards alone go through every placement") {
  for (const ScheduleKind& kind : schedule_kinds())
    for (const int64_t pp : {1, 2, 4})
      for (const int64_t m : {1, 3, 8}) {
        const ScheduleSize size{pp, kind.min_stages, 2 * pp};
        const Schedule order = forward_only(make_schedule(kind, size), m);
        const Schedule s = with_messages(order);
        CHECK(runs_blocking(with_batched_messages(order), Blocking::all_messages));
        INFO(text(kind, size) << ", " << m << " forwards");
        std::vector<StuckRank> stuck;
        play(s, {}, stuck);
        CHECK(stuck.empty());
        int64_t forwards = 0;
        for (const ActionList& list : s.ranks)
          forwards += std::ranges::count(list, ActionKind::F, &Action::kind);
        CHECK(forwards == s.stages * m);
      }
}

TEST_CASE("short lists, written out by hand") {
  const auto list = [](const char* name, const ScheduleSize& size, size_t rank) {
    return to_string(make_schedule(schedule_named(name), size).ranks[rank]);
  };
  CHECK(list("gpipe", {2, 1, 3}, 1) == "1F0, 1F1, 1F2, 1B0, 1B1, 1B2");
  CHECK(list("1f1b", {3, 1, 4}, 0) == "0F0, 0F1, 0F2, 0B0, 0F3, 0B1, 0B2, 0B3");
  CHECK(list("interleaved_1f1b", {2, 2, 2}, 1) == "1F0, 1F1, 3F0, 3B0, 3F1, 3B1, 1B0, 1B1");
  CHECK(list("looped_bfs", {2, 2, 2}, 0) == "0F0, 0F1, 2F0, 2F1, 2B1, 2B0, 0B1, 0B0");
  CHECK(list("zero_bubble", {2, 1, 3}, 0) == "0F0, 0F1, 0I0, 0W0, 0F2, 0I1, 0W1, 0I2, 0W2");
  CHECK(list("zero_bubble", {2, 1, 3}, 1) == "1F0, 1I0, 1F1, 1I1, 1W0, 1F2, 1I2, 1W1, 1W2");
  CHECK(list("v_schedule", {2, 2, 3}, 1) ==
        "1F0, 2F0, 1F1, 2F1, 2I0, 2W0, 1F2, 1I0, 1W0, 2F2, 2I1, 2W1, 1I1, 2I2, 1I2, 1W1, 2W2, "
        "1W2");
  CHECK(list("dualpipev", {1, 2, 2}, 0) ==
        "0F0, 1F0, 0F1, 1B0, (1F1;0B0)OVERLAP_F_B, 1B1, 0I1, 0W1");
  // The first rank receives the last rank's messages at once, and a forward and the backward after
  // it exchange all messages together.
  CHECK(
      to_string(with_batched_messages(make_schedule(schedule_named("interleaved_1f1b"), {2, 2, 4}))
                    .ranks[0])
          .starts_with("0F0, 0SEND_F0, 0F1, 0SEND_F1, 2RECV_F0, 2F0, 2SEND_F0, 2RECV_F1, 2F1, "
                       "2SEND_F1, 2RECV_B0, 0F2, 2B0, 0SEND_F2, 2SEND_B0, 2RECV_B1, 0F3, 2B1, "));
}

TEST_CASE("sizes that a schedule cannot have are refused with the nearest possible ones") {
  const auto refused = [](const char* name, const ScheduleSize& size) -> std::string {
    try {
      make_schedule(schedule_named(name), size);
      return "";
    } catch (const UserError& e) {
      return e.what();
    }
  };
  CHECK_THAT(refused("1f1b", {4, 2, 8}), Catch::Contains("exactly 1 stage per rank, not 2"));
  CHECK_THAT(refused("dfs", {4, 1, 8}), Catch::Contains("at least 2 stages per rank, not 1"));
  CHECK_THAT(refused("v_schedule", {4, 3, 8}), Catch::Contains("use 2 per rank"));
  CHECK_THAT(refused("interleaved_1f1b", {4, 2, 9}), Catch::Contains("use 8 or 10 micro-batches"));
  CHECK_THAT(refused("interleaved_1f1b", {4, 2, 8, 6}), Catch::Contains("use a group of 4 or 8"));
  CHECK_THAT(refused("zero_bubble", {4, 2, 3, 4}), Catch::Contains("use at least 4 micro-batches"));
  CHECK_THAT(refused("gpipe", {4, 1, 8, 4}), Catch::Contains("leave the group size out"));
  CHECK_THAT(refused("dualpipev", {4, 2, 7}), Catch::Contains("use 8 micro-batches"));
  CHECK_THAT(refused("1f1b", {0, 1, 8}), Catch::Contains("at least 1"));
  CHECK_THAT(refused("gpipe", {int64_t{1} << 40, 1, int64_t{1} << 40}),
             Catch::Contains("too many to list"));
  CHECK_THAT(refused("zero_buble", {4, 2, 8}), Catch::Contains("did you mean zero_bubble?"));
  // As in torch and Megatron, one round may have any length, and a remainder must not be too short.
  for (const int64_t m : {5, 6, 7, 10, 12}) CHECK(refused("interleaved_1f1b", {4, 2, m}).empty());
  for (const auto& [m, group] : {std::pair{12, 6}, {10, 5}, {9, 9}})
    CHECK(refused("interleaved_1f1b", {4, 2, m, group}).empty());
  for (const auto& [m, group] : {std::pair{10, 4}, {8, 6}, {9, 4}})
    CHECK_FALSE(refused("interleaved_1f1b", {4, 2, m, group}).empty());
}

}  // namespace schedule_generators_test
