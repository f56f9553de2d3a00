// Plants each kind of mistake in a valid schedule, and tests that it is reported with its place.
#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>

#include "schedule/catalog.h"
#include "schedule/lower.h"
#include "schedule/validator.h"

namespace schedule_validator_test {

using namespace mtrain;
using namespace mtrain::schedule;
using K = ActionKind;

namespace {

// 8 stages on 4 ranks, stage s on rank s % 4; backwards in halves.
Schedule right() { return make_schedule(schedule_named("zero_bubble"), {4, 2, 8}); }
Schedule with_everything() { return with_messages(with_sharding(right(), 2)); }

size_t find(const ActionList& list, K kind, int64_t stage, int64_t micro_batch = 0) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const Action& a) {
    return a.kind == kind && a.stage == stage && a.micro_batch == micro_batch;
  });
  REQUIRE(at != list.end());
  return size_t(at - list.begin());
}
Action take(ActionList& list, size_t at) {
  const Action a = list[at];
  list.erase(list.begin() + int64_t(at));
  return a;
}
void put(ActionList& list, size_t at, const Action& a) {
  list.insert(list.begin() + int64_t(at), a);
}

std::vector<int64_t> bounds(const Schedule& s) {
  std::vector<int64_t> most;
  for (int64_t rank = 0; rank < s.pp; ++rank)
    most.push_back(
        chunks_in_flight(schedule_named(s.name), {s.pp, s.stages / s.pp, s.micro_batches}, rank));
  return most;
}

struct Planted {
  const char* what;
  std::string message;  // is among the faults
  Schedule schedule;
  std::function<void(Schedule&)> plant;
};

std::vector<Planted> in_computations() {
  const Schedule s = right();
  return {
      {"a rank without a list", "there are 3 lists for 4 ranks", s,
       [](Schedule& c) { c.ranks.pop_back(); }},
      {"a stage without a rank", "7 of 8 stages are given a rank", s,
       [](Schedule& c) { c.rank_of_stage.pop_back(); }},
      {"a stage on a rank that is none", "stage 7 is on rank 4, but there are 4 ranks", s,
       [](Schedule& c) { c.rank_of_stage[7] = 4; }},
      {"a stage out of range", "rank 0, action 0: 9F0: there are 8 stages", s,
       [](Schedule& c) { c.ranks[0][0].stage = 9; }},
      {"a micro-batch out of range", "rank 1, action 0: 1F8: there are 8 micro-batches", s,
       [](Schedule& c) { c.ranks[1][0].micro_batch = 8; }},
      {"an action on another stage's rank", "rank 1, action 0: 2F0: stage 2 is on rank 2", s,
       [](Schedule& c) { c.ranks[1][0].stage = 2; }},
      {"a forward left out", "rank 2 never does 2F3", s,
       [](Schedule& c) { take(c.ranks[2], find(c.ranks[2], K::F, 2, 3)); }},
      {"a forward done twice", "rank 2, action 1: 2F0 comes twice", s,
       [](Schedule& c) {
         put(c.ranks[2], 1, {K::F, 2, 0});
       }},
      {"a backward left out", "rank 3 does neither 7B2 nor 7I2", s,
       [](Schedule& c) {
         take(c.ranks[3], find(c.ranks[3], K::W, 7, 2));
         take(c.ranks[3], find(c.ranks[3], K::I, 7, 2));
       }},
      {"a weight gradient left out", "rank 3 does 7I2 and never 7W2", s,
       [](Schedule& c) { take(c.ranks[3], find(c.ranks[3], K::W, 7, 2)); }},
      {"a weight gradient beside a whole backward", "0W3 comes after 0B3, which includes it", s,
       [](Schedule& c) { c.ranks[0][find(c.ranks[0], K::I, 0, 3)].kind = K::B; }},
      {"a whole backward after a half", "0B3 comes after 0I3, which is half of it", s,
       [](Schedule& c) { c.ranks[0][find(c.ranks[0], K::W, 0, 3)].kind = K::B; }},
      {"a backward before its forward", "rank 3, action 0: 7I0 comes before 7F0", s,
       [](Schedule& c) { put(c.ranks[3], 0, take(c.ranks[3], find(c.ranks[3], K::I, 7, 0))); }},
      {"a weight gradient before its input gradient", "rank 3, action 0: 7W0 comes before 7I0", s,
       [](Schedule& c) { put(c.ranks[3], 0, take(c.ranks[3], find(c.ranks[3], K::W, 7, 0))); }},
      {"a stage before another of its rank", "rank 3, action 0: 4F0 comes before 3F0",
       make_schedule(schedule_named("v_schedule"), {4, 2, 8}),
       [](Schedule& c) { put(c.ranks[3], 0, take(c.ranks[3], find(c.ranks[3], K::F, 4, 0))); }},
      {"a pair whose second half is none", "must run together with a backward, but none is next", s,
       [](Schedule& c) { c.ranks[0][0].overlaps_next = true; }},
      {"a pair of one micro-batch", "7F0 cannot run together with 7I0, which needs it", s,
       [](Schedule& c) { c.ranks[3][find(c.ranks[3], K::F, 7, 0)].overlaps_next = true; }},
      {"too many activations", "rank 1 holds activations of 9 chunks at once, but its bound is 8",
       s,
       [](Schedule& c) {
         put(c.ranks[1], 0, take(c.ranks[1], find(c.ranks[1], K::F, 5, 4)));
         // After the stage that it needs, here the forward before it on this rank.
         std::rotate(c.ranks[1].begin(), c.ranks[1].begin() + 1, c.ranks[1].begin() + 8);
       }},
      {"two ranks that wait for each other",
       "deadlock: rank 0 waits at 0RECV_B0 for rank 1, rank 1 waits at 1RECV_F1 for rank 0",
       make_schedule(schedule_named("gpipe"), {2, 1, 2}),
       [](Schedule& c) {
         c.ranks[0] = {{K::F, 0, 0}, {K::B, 0, 0}, {K::F, 0, 1}, {K::B, 0, 1}};
         c.ranks[1] = {{K::F, 1, 0}, {K::F, 1, 1}, {K::B, 1, 0}, {K::B, 1, 1}};
       }},
  };
}

std::vector<Planted> in_messages() {
  const Schedule s = with_messages(right());
  return {
      {"a send left out", "5RECV_F0: rank 1 waits for it, and rank 0 never sends it", s,
       [](Schedule& c) { take(c.ranks[0], find(c.ranks[0], K::send_f, 4, 0)); }},
      {"a send done twice", "0SEND_F0 comes twice", s,
       [](Schedule& c) {
         const size_t at = find(c.ranks[0], K::send_f, 0, 0);
         put(c.ranks[0], at, c.ranks[0][at]);
       }},
      {"a send before its computation", "rank 0, action 0: 0SEND_F1 comes before 0F1", s,
       [](Schedule& c) {
         put(c.ranks[0], 0, take(c.ranks[0], find(c.ranks[0], K::send_f, 0, 1)));
       }},
      {"a receive left out", "2F1 comes before 2RECV_F1", s,
       [](Schedule& c) { take(c.ranks[2], find(c.ranks[2], K::recv_f, 2, 1)); }},
      {"a receive after its use", "0I2 comes before 0RECV_B2", s,
       [](Schedule& c) {
         const Action a = take(c.ranks[0], find(c.ranks[0], K::recv_b, 0, 2));
         c.ranks[0].push_back(a);
       }},
      {"a message to another rank", "0SEND_F0 with rank 2: stage 1 is on rank 1", s,
       [](Schedule& c) { c.ranks[0][find(c.ranks[0], K::send_f, 0, 0)].peer = 2; }},
      {"a message off the model's end", "7SEND_F0: there is no stage 8", s,
       [](Schedule& c) {
         put(c.ranks[3], 1, {K::send_f, 7, 0, 0});
       }},
      {"a message within a rank", "3SEND_F0: stage 4 is on the same rank",
       with_messages(make_schedule(schedule_named("v_schedule"), {4, 2, 8})),
       [](Schedule& c) {
         c.ranks[3].push_back({K::send_f, 3, 0, 3});
       }},
      {"receives in another order than sends",
       "message 0 from rank 0 to rank 1 is 1RECV_F0, where rank 1 receives 1RECV_F1", s,
       [](Schedule& c) {
         put(c.ranks[1], 0, take(c.ranks[1], find(c.ranks[1], K::recv_f, 1, 1)));
       }},
      {"a receive too early to ever come",
       "deadlock: rank 0 waits at 4RECV_B0 for rank 1, rank 1 waits at 1RECV_F0 for rank 0", s,
       [](Schedule& c) {
         const size_t at = find(c.ranks[0], K::recv_b, 4, 0);
         const Action first = take(c.ranks[0], at);
         put(c.ranks[0], 0, first);
       }},
  };
}

std::vector<Planted> in_weights() {
  const Schedule s = with_everything();
  return {
      {"weights that are not there", "0F0 while the stage's weights are sharded", s,
       [](Schedule& c) { take(c.ranks[0], find(c.ranks[0], K::unshard, 0)); }},
      {"weights gathered twice", "0UNSHARD of weights that are gathered", s,
       [](Schedule& c) {
         put(c.ranks[0], 1, {K::unshard, 0});
       }},
      {"weights let go twice", "0RESHARD of weights that are sharded", s,
       [](Schedule& c) {
         c.ranks[0].push_back({K::reshard, 0});
       }},
      {"weights that stay", "rank 0 never frees stage 4's weights", s,
       [](Schedule& c) { take(c.ranks[0], find(c.ranks[0], K::reshard, 4)); }},
      {"gradients that are not reduced", "rank 2 reduces stage 6's gradients 0 times", s,
       [](Schedule& c) { take(c.ranks[2], find(c.ranks[2], K::reduce, 6)); }},
      {"gradients reduced twice", "rank 2 reduces stage 6's gradients 2 times", s,
       [](Schedule& c) {
         c.ranks[2].push_back({K::reduce, 6});
       }},
      {"gradients reduced too early", "6REDUCE_GRAD before the gradients of 1 micro-batches", s,
       [](Schedule& c) {
         const Action a = take(c.ranks[2], find(c.ranks[2], K::reduce, 6));
         put(c.ranks[2], find(c.ranks[2], K::W, 6, 7), a);
       }},
  };
}

}  // namespace

TEST_CASE("a right schedule has no faults, in any state of lowering") {
  for (const Schedule& s : {right(), with_messages(right()), with_everything()})
    CHECK(schedule_faults(s, bounds(s)).empty());
}

TEST_CASE("each planted mistake is reported with its place") {
  for (const auto& list : {in_computations(), in_messages(), in_weights()})
    for (const Planted& p : list) {
      INFO(p.what);
      REQUIRE(schedule_faults(p.schedule, bounds(p.schedule)).empty());
      Schedule corrupt = p.schedule;
      p.plant(corrupt);
      const std::vector<std::string> faults = schedule_faults(corrupt, bounds(p.schedule));
      std::string all;
      for (const std::string& f : faults) all += f + "\n";
      CHECK_THAT(all, Catch::Contains(p.message));
    }
}

TEST_CASE("a single misplaced action is found wherever it goes") {
  // Every action of a rank, moved before the one before it. This is valid only if the two are
  // independent, and then the schedule can still run.
  const Schedule s = with_everything();
  int64_t refused = 0, accepted = 0;
  for (size_t rank = 0; rank < s.ranks.size(); ++rank)
    for (size_t i = 1; i < s.ranks[rank].size(); ++i) {
      Schedule moved = s;
      std::swap(moved.ranks[rank][i - 1], moved.ranks[rank][i]);
      const Action &first = s.ranks[rank][i - 1], &second = s.ranks[rank][i];
      const bool faulty = !schedule_faults(moved).empty();
      faulty ? ++refused : ++accepted;
      const bool same = first.stage == second.stage && first.micro_batch == second.micro_batch;
      INFO(to_string(first) << " and " << to_string(second) << " of rank " << rank);
      // A computation and its message, or the halves of a backward, cannot change places.
      if (same && first.kind != K::reduce && second.kind != K::reduce &&
          !(is_send(first.kind) && second.kind == K::W))
        CHECK(faulty);
    }
  CHECK(refused > 100);
  CHECK(accepted > 20);
}

}  // namespace schedule_validator_test
