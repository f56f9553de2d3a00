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

struct Sent {
  double latency = 0, transfer = 0;
  MessageWork work;
  double share = 1, more = 0;
};

// Nothing is beside the second message of rank 0.
void expect_delays(const Sent& sent, double of_first) {
  const Schedule s = forwards();
  const Timeline t =
      simulate(s, {.stages = {{.F = 4}}, .messages = {{{0, 1}, {sent.latency, sent.transfer, 0}}}});
  const double share = sent.share;
  const std::vector<std::vector<double>> delays = message_delays(
      s, t, {{{0, 1}, sent.work}}, {{share, 0, share, 0}, {0, share, 0, share}}, sent.more);
  REQUIRE(delays.size() == 2);
  CHECK(delays[0][0] == 0);
  CHECK(delays[0][1] == Approx(of_first));
  CHECK(delays[0][2] == 0);
  CHECK(delays[0][3] == 0);
  CHECK(delays[1] == std::vector<double>(4));
}

}  // namespace

TEST_CASE("a message beside its sender's next pass takes longer, and the last one does not") {
  // The first message works from 4 s to 6 s, beside the second forward, which ends at 8 s. For the
  // second message both ranks wait.
  expect_delays({.latency = 2, .work = {2, 0}, .more = 1}, 2);
  // Four seconds beside it do 1.6 s of the work.
  expect_delays({.latency = 2, .work = {2, 0}, .more = 1.5}, 2.4);
  // A half of a pass that waits for other communication does not disturb.
  expect_delays({.latency = 2, .work = {2, 0}, .share = 0.5, .more = 1}, 2 / 0.75 - 2);
  expect_delays({.latency = 2, .work = {2, 0}, .more = 0}, 0);
}

TEST_CASE("only the work of a message is beside computations, not its link or its receiver") {
  // The link carries it from 4 s to 7 s, its sender works until 9 s, and its receiver wakes up.
  expect_delays({.latency = 2 + 0.5, .transfer = 3, .work = {2, 0.5}, .more = 1.5}, 0.6);
  // Rank 0 has nothing to compute when the link has carried the message.
  expect_delays({.latency = 2, .transfer = 5, .work = {2, 0}, .more = 1.5}, 0);
}

TEST_CASE("a message of a rank that computes on arrives later at one that waits") {
  const Schedule s = forwards();
  ScheduleCosts costs{.stages = {{.F = 4}}, .messages = {{{0, 1}, {2, 0, 0}}}};
  const double alone = simulate(s, costs).step;
  costs.message_delays =
      message_delays(s, simulate(s, costs), {{{0, 1}, {2, 0}}}, {{1, 0, 1, 0}, {0, 1, 0, 1}}, 1.5);
  // 0F0 [0,4], its message [4,8.4], 1F0 [8.4,12.4], 1F1 [12.4,16.4]
  CHECK(alone == 14);
  CHECK(simulate(s, costs).step == Approx(16.4));
}

TEST_CASE("a receive has the delay of its message") {
  const std::vector<std::vector<double>> received =
      delays_of_receives(forwards(), {{0, 2.4, 0, 0.5}, {0, 0, 0, 0}});
  CHECK(received == std::vector<std::vector<double>>{{0, 0, 0, 0}, {2.4, 0, 0.5, 0}});
  CHECK(delays_of_receives(forwards(), {}).empty());
}

// The delayed weight gradient of a backward is beside its message, and its rank then waits.
TEST_CASE("actions after a send that its rank waits for are not beside the message") {
  using enum ActionKind;
  const Schedule s{.name = "backwards",
                   .pp = 2,
                   .stages = 2,
                   .micro_batches = 2,
                   .rank_of_stage = {0, 1},
                   .ranks = {{{.kind = F, .stage = 0, .micro_batch = 1},
                              {.kind = send_f, .stage = 0, .micro_batch = 1, .peer = 1},
                              {.kind = recv_b, .stage = 0, .micro_batch = 0, .peer = 1},
                              {.kind = B, .stage = 0, .micro_batch = 0},
                              {.kind = recv_b, .stage = 0, .micro_batch = 1, .peer = 1},
                              {.kind = B, .stage = 0, .micro_batch = 1}},
                             {{.kind = recv_f, .stage = 1, .micro_batch = 1, .peer = 0},
                              {.kind = F, .stage = 1, .micro_batch = 1, .overlaps_next = true},
                              {.kind = B, .stage = 1, .micro_batch = 0},
                              {.kind = send_b, .stage = 1, .micro_batch = 0, .peer = 0},
                              {.kind = B, .stage = 1, .micro_batch = 1},
                              {.kind = send_b, .stage = 1, .micro_batch = 1, .peer = 0}}}};
  const auto delay = [&](PairedGradient gradient) {
    const Timeline t = simulate(s, {.stages = {{.F = 0, .I = 1, .W = 1}},
                                    .messages = {{{1, 0}, {2, 0, 0}}, {{0, 1}, {0, 0, 0}}},
                                    .delayed_wgrad = 1,
                                    .paired_gradient = gradient});
    return message_delays(s, t, {{{1, 0}, {2, 0}}},
                          std::vector<std::vector<double>>(2, std::vector<double>(6, 1)), 1)[1][3];
  };
  // Sent at 1 s, beside 1 s of the weight gradient. Another backward may follow that, from 2 s on.
  CHECK(delay(PairedGradient::in_order) == Approx(0.5));
  CHECK(delay(PairedGradient::at_end) == Approx(1.5));
}

}  // namespace predict_message_delays_test
