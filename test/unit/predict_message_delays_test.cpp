// Messages of small schedules whose times a reader can add up.
#include <catch2/catch.hpp>

#include "predict/message_delays.h"

namespace predict_message_delays_test {

using namespace mtrain;
using namespace mtrain::predict;
using namespace mtrain::schedule;

namespace {

// Two ranks with a stage each: rank 0 computes two forwards of 4 s, and rank 1 one after the other.
Schedule forwards() {
  using enum ActionKind;
  return {.name = "forwards",
          .pp = 2,
          .stages = 2,
          .micro_batches = 2,
          .rank_of_stage = {0, 1},
          .ranks = {{{.kind = F, .stage = 0, .micro_batch = 0},
                     {.kind = send_f, .stage = 0, .micro_batch = 0, .peer = 1},
                     {.kind = F, .stage = 0, .micro_batch = 1},
                     {.kind = send_f, .stage = 0, .micro_batch = 1, .peer = 1}},
                    {{.kind = recv_f, .stage = 1, .micro_batch = 0, .peer = 0},
                     {.kind = F, .stage = 1, .micro_batch = 0},
                     {.kind = recv_f, .stage = 1, .micro_batch = 1, .peer = 0},
                     {.kind = F, .stage = 1, .micro_batch = 1}}}};
}

// Of `latency`, the sender works for the last but `after_s`.
std::vector<double> delays_of_sends(double latency, double transfer, const MessageWork& work,
                                    double share, double more) {
  const Schedule s = forwards();
  const Timeline t =
      simulate(s, {.stages = {{.F = 4}}, .messages = {{{0, 1}, {latency, transfer, 0}}}});
  const std::vector<std::vector<double>> delays =
      message_delays(s, t, {{{0, 1}, work}}, {{share, 0, share, 0}, {0, share, 0, share}}, more);
  REQUIRE(delays.size() == 2);
  CHECK(delays[0][0] == 0);
  CHECK(delays[0][2] == 0);
  CHECK(delays[1] == std::vector<double>(4));
  return {delays[0][1], delays[0][3]};
}

}  // namespace

TEST_CASE("a message beside its sender's next pass takes longer, and the last one does not") {
  // The first message works from 4 s to 6 s, beside the second forward, which ends at 8 s. For the
  // second message both ranks wait.
  CHECK(delays_of_sends(2, 0, {2, 0}, 1, 1.5) == std::vector{3.0, 0.0});
  // A half of a pass that waits for other communication does not disturb.
  CHECK(delays_of_sends(2, 0, {2, 0}, 0.5, 1.5) == std::vector{1.5, 0.0});
  CHECK(delays_of_sends(2, 0, {2, 0}, 1, 0) == std::vector{0.0, 0.0});
}

TEST_CASE("only the work of a message is beside computations, not its link or its receiver") {
  // The link carries it from 4 s to 7 s, its sender works until 9 s, and its receiver wakes up.
  CHECK(delays_of_sends(2 + 0.5, 3, {2, 0.5}, 1, 1.5) == std::vector{1.5, 0.0});
  // Rank 0 has nothing to compute when the link has carried the message.
  CHECK(delays_of_sends(2, 5, {2, 0}, 1, 1.5) == std::vector{0.0, 0.0});
}

TEST_CASE("a message of a rank that computes on arrives later at one that waits") {
  const Schedule s = forwards();
  ScheduleCosts costs{.stages = {{.F = 4}}, .messages = {{{0, 1}, {2, 0, 0}}}};
  const double alone = simulate(s, costs).step;
  costs.message_delays =
      message_delays(s, simulate(s, costs), {{{0, 1}, {2, 0}}}, {{1, 0, 1, 0}, {0, 1, 0, 1}}, 1.5);
  // 0F0 [0,4], its message [4,9], 1F0 [9,13], 1F1 [13,17]
  CHECK(alone == 14);
  CHECK(simulate(s, costs).step == 17);
}

}  // namespace predict_message_delays_test
