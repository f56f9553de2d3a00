// Replays sequences that are written by hand, whose times a reader can add up.
#include <algorithm>

#include <catch2/catch.hpp>

#include "predict/replay.h"

namespace predict_replay_test {

using namespace mtrain;
using namespace mtrain::predict;
using device::StreamId;
using device::StreamKind;

namespace {

// A launch takes as many seconds as its name says: "2" or "0.5".
class NamedCosts : public LaunchCosts {
 public:
  double gap = 0, host = 0, slow = 0, idle = 0, beside = 0;
  TogetherCosts of_ranks{};
  // Seconds for which the one link of the rank carries the data of a communication. 0: no link.
  double link = 0;
  double packets = 0;        // communication of at most so many seconds is a packet
  bool works_after = false;  // communication works when the link has carried its data
  LaunchCost cost(const LaunchWork& launch, const plan::GroupLink*) const override {
    const double work = launch.wire_bytes;
    if (work == 0) return {.seconds = launch.flops > 0 ? launch.flops : launch.read};
    return {.seconds = works_after ? link + work : std::max(link, work),
            .link_s = link,
            .packet = work <= packets,
            .work_s = work,
            .carried_s = link,
            .works_after = works_after};
  }
  double gap_seconds() const override { return gap; }
  double host_seconds() const override { return host; }
  double slowdown(StreamKind) const override { return slow; }
  double idle_share(StreamKind kind) const override { return inside_layers(kind) ? idle : 0; }
  TogetherCosts together(const plan::Layout&) const override { return of_ranks; }
  double beside_compute(StreamKind) const override { return beside; }
};

// Records items as a device does, with the numbers of each stream.
class Script {
 public:
  Script& compute(int64_t seconds, const char* name = "add") {
    return item({.name = name, .stream = StreamKind::compute, .read = {seconds}});
  }
  Script& gemm(int64_t seconds) {
    return item({.name = "matmul_fc1_fwd",
                 .stream = StreamKind::compute,
                 .flops = seconds,
                 .dtype = DType::bf16});
  }
  Script& sends(StreamKind kind, int64_t seconds) {
    return item({.name = "all_reduce", .stream = kind, .wire_bytes = seconds});
  }
  Script& wait(StreamKind stream, StreamKind other) {
    return item({.name = "wait",
                 .stream = stream,
                 .waits_for = StreamId(other),
                 .waits_number = enqueued_[other]});
  }
  Script& forget() {  // what has been enqueued so far is not in the sequence
    sequence_ = {};
    return *this;
  }
  ReplayTimes replay(const NamedCosts& costs = {}, ReplayEnd end = ReplayEnd::all_streams) const {
    return predict::replay(sequence_, list_, list_.price(costs, costs.of_ranks), end);
  }

 private:
  Script& item(device::LaunchRecord r) {
    r.number = ++enqueued_[r.stream];
    const plan::GroupLink link{.ranks = 2};
    sequence_.add(r, r.waits_for ? 0 : list_.number_of(r, r.wire_bytes ? &link : nullptr));
    return *this;
  }
  std::map<StreamId, uint64_t> enqueued_;
  LaunchList list_;
  LaunchSequence sequence_;
};

double exposed(const ReplayTimes& t, StreamKind kind) { return t.exposed[size_t(kind)]; }
double computed(const ReplayTimes& t, LaunchClass c) { return t.compute[size_t(c)]; }

void expect_adds_up(const ReplayTimes& t) {
  double sum = t.gaps + t.idle;
  for (const double c : t.compute) sum += c;
  for (const double e : t.exposed) sum += e;
  CHECK(sum == Approx(t.seconds));
}

}  // namespace

TEST_CASE("a stream runs its launches one after the other") {
  const ReplayTimes t = Script().gemm(3).compute(2).compute(1, "adamw").replay();
  CHECK(t.seconds == 6);
  CHECK(computed(t, LaunchClass::gemm) == 3);
  CHECK(computed(t, LaunchClass::memory) == 2);
  CHECK(computed(t, LaunchClass::optimizer) == 1);
  expect_adds_up(t);
}

TEST_CASE("communication is exposed while compute waits for it") {
  // The all-reduce begins after the first GEMM, and takes 2 s longer than the second one.
  const ReplayTimes t = Script()
                            .gemm(3)
                            .wait(StreamKind::tp, StreamKind::compute)
                            .sends(StreamKind::tp, 4)
                            .gemm(2)
                            .wait(StreamKind::compute, StreamKind::tp)
                            .gemm(1)
                            .replay();
  CHECK(t.seconds == 8);
  CHECK(exposed(t, StreamKind::tp) == 2);
  CHECK(t.busy[size_t(StreamKind::tp)] == 4);
  expect_adds_up(t);
}

TEST_CASE("ranks that share layers wait for later ones") {
  NamedCosts costs;
  costs.idle = 0.1;
  // After 10 s the others are 1 s late, and 2 s later another 0.2 s. The second all-reduce of the
  // pair finds them even.
  const ReplayTimes t = Script()
                            .gemm(10)
                            .wait(StreamKind::tp, StreamKind::compute)
                            .sends(StreamKind::tp, 3)
                            .sends(StreamKind::tp, 3)
                            .wait(StreamKind::compute, StreamKind::tp)
                            .gemm(2)
                            .wait(StreamKind::tp, StreamKind::compute)
                            .sends(StreamKind::tp, 1)
                            .wait(StreamKind::compute, StreamKind::tp)
                            .replay(costs);
  CHECK(t.seconds == Approx(20.2));
  CHECK(t.idle == Approx(1.2));
  CHECK(exposed(t, StreamKind::tp) == Approx(7));
  CHECK(t.busy[size_t(StreamKind::tp)] == Approx(7));
  expect_adds_up(t);
  // Nobody waits beside computations, or for data parallelism.
  const ReplayTimes hidden = Script()
                                 .gemm(10)
                                 .wait(StreamKind::cp, StreamKind::compute)
                                 .sends(StreamKind::cp, 3)
                                 .gemm(5)
                                 .wait(StreamKind::compute, StreamKind::cp)
                                 .wait(StreamKind::dp_grad, StreamKind::compute)
                                 .sends(StreamKind::dp_grad, 1)
                                 .wait(StreamKind::compute, StreamKind::dp_grad)
                                 .replay(costs);
  CHECK(hidden.seconds == Approx(16));
  CHECK(hidden.idle == 0);
  expect_adds_up(hidden);
}

TEST_CASE("a stream wakes up after it has waited for communication") {
  NamedCosts costs;
  costs.of_ranks.wake_s = 0.5;
  const ReplayTimes t = Script()
                            .gemm(3)
                            .wait(StreamKind::tp, StreamKind::compute)
                            .sends(StreamKind::tp, 2)
                            .wait(StreamKind::compute, StreamKind::tp)
                            .gemm(1)
                            .wait(StreamKind::compute, StreamKind::tp)  // is over
                            .gemm(1)
                            .replay(costs);
  CHECK(t.seconds == Approx(7.5));
  CHECK(t.gaps == Approx(0.5));
  CHECK(exposed(t, StreamKind::tp) == Approx(2));
  expect_adds_up(t);
}

TEST_CASE("communication takes longer for the part that is beside computations") {
  NamedCosts costs;
  costs.beside = 0.5;
  // In the 3 s of the GEMM the gather does two thirds of 3 s, and nothing is beside the reduction.
  const ReplayTimes t = Script()
                            .sends(StreamKind::dp_param, 4)
                            .gemm(3)
                            .wait(StreamKind::compute, StreamKind::dp_param)
                            .wait(StreamKind::dp_grad, StreamKind::compute)
                            .sends(StreamKind::dp_grad, 2)
                            .wait(StreamKind::compute, StreamKind::dp_grad)
                            .replay(costs);
  CHECK(t.busy[size_t(StreamKind::dp_param)] == Approx(5));
  CHECK(t.busy[size_t(StreamKind::dp_grad)] == Approx(2));
  CHECK(t.seconds == Approx(7));
  CHECK(exposed(t, StreamKind::dp_param) == Approx(2));
  expect_adds_up(t);
}

TEST_CASE("communication is not beside computations that wait for it") {
  NamedCosts costs;
  costs.beside = 1;
  const auto seconds = [&](bool waits, bool through_another) {
    Script script;
    script.sends(StreamKind::dp_param, 4).gemm(2);
    if (through_another) script.wait(StreamKind::cp, StreamKind::dp_param);
    if (waits)
      script.wait(StreamKind::compute, through_another ? StreamKind::cp : StreamKind::dp_param);
    return script.gemm(4).replay(costs);
  };
  // Beside the first GEMM, 1 s is done. The second GEMM begins at 5 s.
  CHECK(seconds(true, false).seconds == Approx(9));
  CHECK(seconds(true, true).seconds == Approx(9));
  // It is beside both, until 6 s.
  CHECK(seconds(false, false).busy[size_t(StreamKind::dp_param)] == Approx(7));
}

// Sends for 2 s of work beside a GEMM, over a link that needs 8 s; waits for both at the end.
ReplayTimes sent_beside(int64_t gemm, double link, bool works_after) {
  NamedCosts costs;
  costs.beside = 0.5;
  costs.link = link;
  costs.works_after = works_after;
  return Script()
      .sends(StreamKind::cp, 2)
      .gemm(gemm)
      .wait(StreamKind::compute, StreamKind::cp)
      .replay(costs);
}

TEST_CASE("computations make the work of a communication longer, and not its link") {
  // A collective works first. A slow link hides that it takes 3 s then, and one of 2.5 s does not.
  CHECK(sent_beside(3, 8, false).seconds == Approx(8));
  CHECK(sent_beside(3, 2.5, false).seconds == Approx(3));
  CHECK(sent_beside(1, 2.5, false).seconds == Approx(2.5));
  // A message works when the link has carried it, from 8 s on: after the first GEMM, and for 1 s
  // beside the second one, which does two thirds of a second.
  CHECK(sent_beside(3, 8, true).seconds == Approx(10));
  CHECK(sent_beside(9, 8, true).seconds == Approx(10 + 1.0 / 3));
  CHECK(sent_beside(12, 8, true).busy[size_t(StreamKind::cp)] == Approx(11));
}

TEST_CASE("a collective works while the link carries other data") {
  NamedCosts costs;
  costs.link = 4;
  // The second collective has its data at 8 s, when it has worked for 5 s.
  const auto both = [&] {
    return Script().sends(StreamKind::dp_grad, 3).sends(StreamKind::cp, 5).replay(costs).seconds;
  };
  CHECK(both() == Approx(8));
  costs.works_after = true;
  CHECK(both() == Approx(13));
}

TEST_CASE("computations of ranks that work together take longer") {
  NamedCosts costs;
  costs.of_ranks.longer = 0.25;
  const ReplayTimes t = Script()
                            .gemm(4)
                            .wait(StreamKind::tp, StreamKind::compute)
                            .sends(StreamKind::tp, 2)
                            .wait(StreamKind::compute, StreamKind::tp)
                            .replay(costs);
  CHECK(t.compute[size_t(LaunchClass::gemm)] == Approx(5));
  CHECK(t.seconds == Approx(7));
}

TEST_CASE("streams share the one link of a rank") {
  NamedCosts costs;
  costs.link = 3;
  // The reduction waits for 9 s of computing, so the link is free for the gathers before it, though
  // the host has enqueued them later. The second gather finds the first one on the link.
  const ReplayTimes t = Script()
                            .gemm(9)
                            .wait(StreamKind::dp_grad, StreamKind::compute)
                            .sends(StreamKind::dp_grad, 2)
                            .sends(StreamKind::dp_param, 1)
                            .sends(StreamKind::cp, 2)
                            .wait(StreamKind::compute, StreamKind::cp)
                            .gemm(1)
                            .replay(costs);
  CHECK(t.busy[size_t(StreamKind::dp_param)] == Approx(3));
  CHECK(t.busy[size_t(StreamKind::cp)] == Approx(6));
  CHECK(t.seconds == Approx(12));
  expect_adds_up(t);
  costs.link = 0;
  CHECK(Script().sends(StreamKind::dp_param, 4).sends(StreamKind::cp, 3).replay(costs).seconds ==
        Approx(4));
}

TEST_CASE("data take their place on the link in the order of time") {
  NamedCosts costs;
  costs.link = 4;
  // The host enqueues both gathers first. The first one is on the link until 4 s, and its rank
  // works on the second until 6 s; the exchange is ready at 5 s.
  const auto gathers = [&](int64_t gemm) {
    return Script()
        .sends(StreamKind::dp_param, 2)
        .sends(StreamKind::dp_param, 2)
        .gemm(gemm)
        .wait(StreamKind::cp, StreamKind::compute)
        .sends(StreamKind::cp, 1)
        .wait(StreamKind::compute, StreamKind::cp)
        .replay(costs);
  };
  CHECK(gathers(3).busy[size_t(StreamKind::cp)] == Approx(5));
  CHECK(gathers(3).busy[size_t(StreamKind::dp_param)] == Approx(12));
  CHECK(gathers(6).busy[size_t(StreamKind::cp)] == Approx(6));
  CHECK(gathers(6).busy[size_t(StreamKind::dp_param)] == Approx(8));
  // A packet passes the data before it, which no longer delay it.
  costs.packets = 1;
  CHECK(gathers(6).busy[size_t(StreamKind::cp)] == Approx(4));
  expect_adds_up(gathers(6));
  // A message takes its place before its rank works on it: the first one is over at 6 s, and the
  // one that is ready at 3 s comes before the second.
  costs.packets = 0;
  costs.works_after = true;
  CHECK(gathers(3).busy[size_t(StreamKind::cp)] == Approx(6));
  CHECK(gathers(3).busy[size_t(StreamKind::dp_param)] == Approx(14));
}

TEST_CASE("a wait for items that are not replayed is over") {
  const ReplayTimes t = Script()
                            .sends(StreamKind::dp_param, 9)
                            .forget()
                            .wait(StreamKind::compute, StreamKind::dp_param)
                            .gemm(1)
                            .replay();
  CHECK(t.seconds == 1);
}

TEST_CASE("a wait ends after the item that it names, not after later ones") {
  const ReplayTimes t = Script()
                            .sends(StreamKind::dp_param, 1)
                            .wait(StreamKind::compute, StreamKind::dp_param)
                            .gemm(1)
                            .sends(StreamKind::dp_param, 9)
                            .replay({}, ReplayEnd::compute);
  CHECK(t.seconds == 2);
  CHECK(exposed(t, StreamKind::dp_param) == 1);
}

TEST_CASE("communication after the last computation is exposed if the end waits for it") {
  Script script;
  script.gemm(2).wait(StreamKind::dp_grad, StreamKind::compute).sends(StreamKind::dp_grad, 3);
  CHECK(script.replay({}, ReplayEnd::compute).seconds == 2);
  const ReplayTimes t = script.replay();
  CHECK(t.seconds == 5);
  CHECK(exposed(t, StreamKind::dp_grad) == 3);
  expect_adds_up(t);
}

TEST_CASE("a host that enqueues slowly leaves gaps") {
  NamedCosts costs;
  costs.host = 2;
  const ReplayTimes t = Script().gemm(1).gemm(1).gemm(5).gemm(1).replay(costs);
  CHECK(t.seconds == 12);  // the third GEMM begins at 6, and the fourth one when it ends
  CHECK(t.gaps == 4);
  expect_adds_up(t);
}

TEST_CASE("gaps between launches count") {
  NamedCosts costs;
  costs.gap = 0.5;
  const ReplayTimes t = Script().gemm(1).gemm(1).replay(costs);
  CHECK(t.seconds == 3);
  CHECK(t.gaps == 1);
}

TEST_CASE("communication is exposed only while it runs") {
  NamedCosts costs;
  costs.gap = 0.5;
  // The all-reduce begins 0.5 s after the GEMM.
  const ReplayTimes gap = Script()
                              .gemm(3)
                              .wait(StreamKind::tp, StreamKind::compute)
                              .sends(StreamKind::tp, 4)
                              .wait(StreamKind::compute, StreamKind::tp)
                              .replay(costs);
  CHECK(gap.seconds == 8);
  CHECK(exposed(gap, StreamKind::tp) == 4);
  CHECK(gap.gaps == 1);
  expect_adds_up(gap);
  // Compute waits for tp, and tp for parameters.
  const ReplayTimes chain = Script()
                                .sends(StreamKind::dp_param, 5)
                                .wait(StreamKind::tp, StreamKind::dp_param)
                                .sends(StreamKind::tp, 1)
                                .gemm(2)
                                .wait(StreamKind::compute, StreamKind::tp)
                                .replay();
  CHECK(chain.seconds == 6);
  CHECK(exposed(chain, StreamKind::tp) == 1);
  CHECK(exposed(chain, StreamKind::dp_param) == 3);
  expect_adds_up(chain);
}

TEST_CASE("communication slows computations down while it runs") {
  NamedCosts costs;
  costs.slow = 1;
  // For 4 s the GEMM runs at half its speed; the other 4 of its 6 s are not slowed down.
  const ReplayTimes t = Script().sends(StreamKind::dp_grad, 4).gemm(6).replay(costs);
  CHECK(t.seconds == 8);
  CHECK(computed(t, LaunchClass::gemm) == 8);
  expect_adds_up(t);
}

TEST_CASE("times can be added and multiplied") {
  const ReplayTimes once = Script().gemm(3).compute(2).replay();
  ReplayTimes t = once;
  t.add(once, 2);
  CHECK(t.seconds == 15);
  CHECK(computed(t, LaunchClass::gemm) == 9);
  expect_adds_up(t);
}

}  // namespace predict_replay_test
