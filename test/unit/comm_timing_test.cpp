// Tests the timing of a communication: the time before the last rank arrives is idle, data in
// either direction occupies an emulated link, and compute's waits are divided accordingly.
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "observe/exposure.h"
#include "test/support/comm_testing.h"

namespace comm_timing_test {

using namespace mtrain;
using namespace mtrain::comm;
using device::StreamKind;
using device::Timing;

namespace {

constexpr auto kLate = std::chrono::milliseconds(150);
constexpr int64_t kLate_ns = std::chrono::nanoseconds(kLate).count();
// A thread may be interrupted between the reads of two clocks.
constexpr int64_t kSlack_ns = 50'000'000;

struct Sink : device::TimingSink {
  void record(const Timing& t) override {
    const std::lock_guard lock(mutex);
    timings.push_back(t);
  }
  std::mutex mutex;
  std::vector<Timing> timings;
};

void await(const std::function<bool()>& holds) {
  while (!holds()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

// Enqueues work that ends when `goes_on` holds, and is not timed.
void hold(Stream& stream, std::function<bool()> goes_on) {
  stream.launch({.name = "hold"},
                [goes_on = std::move(goes_on)](const device::LaunchContext&) { await(goes_on); });
}

// Runs `call` on every rank. If `late` is not 0, the last rank runs it that long after the streams
// of the others have arrived at it. Returns each rank's timings.
std::vector<std::vector<Timing>> timed(int ranks, const std::string& backend,
                                       const std::function<void(TestRank&, const Group&)>& call,
                                       std::chrono::milliseconds late, Link link = {}) {
  std::vector<Sink> sinks(static_cast<size_t>(ranks));
  std::atomic<int> ready{0};
  run_ranks(ranks, backend,
            [&](TestRank& r) {
              const Group g = r.world.world_group();
              g.barrier(r.stream);
              r.device.synchronize();
              std::atomic<bool> enqueued{false};
              if (late.count() > 0 && r.rank() + 1 == ranks) {
                await([&] { return ready + 1 == ranks; });
                std::this_thread::sleep_for(late);
              } else if (late.count() > 0) {
                hold(r.stream, [&] { return enqueued && ++ready; });
              }
              r.device.set_timing_sink(&sinks[size_t(r.rank())]);
              call(r, g);
              enqueued = true;
              r.device.synchronize();
              r.device.set_timing_sink(nullptr);
            },
            {.link = link});
  std::vector<std::vector<Timing>> all;
  for (Sink& sink : sinks) all.push_back(std::move(sink.timings));
  return all;
}

Tensor room(TestRank& r, int64_t count) { return Tensor::empty(r.stream, {count}, DType::f32); }

}  // namespace

TEST_CASE("the time in which a collective waits for its last rank is idle") {
  struct Collective {
    const char* name;
    std::function<void(TestRank&, const Group&)> call;
  };
  const std::vector<Collective> collectives{
      {"all_reduce",
       [](TestRank& r, const Group& g) { g.all_reduce(room(r, 1001), Reduce::max, r.stream); }},
      {"all_reduce of nothing",
       [](TestRank& r, const Group& g) { g.all_reduce(room(r, 0), Reduce::max, r.stream); }},
      {"reduce_scatter",
       [](TestRank& r, const Group& g) {
         g.reduce_scatter(room(r, 3 * 1001), room(r, 1001), Reduce::max, r.stream);
       }},
      {"all_gather",
       [](TestRank& r, const Group& g) {
         g.all_gather(room(r, 300'001), room(r, 900'003), r.stream);
       }},
      {"all_to_all",
       [](TestRank& r, const Group& g) { g.all_to_all(room(r, 999), room(r, 999), r.stream); }},
      {"broadcast", [](TestRank& r, const Group& g) { g.broadcast(room(r, 1001), 2, r.stream); }},
      {"exchange",
       [](TestRank& r, const Group& g) {
         g.exchange({{Transfer::Kind::send, room(r, 7), (r.rank() + 1) % 3},
                     {Transfer::Kind::receive, room(r, 7), (r.rank() + 2) % 3}},
                    r.stream);
       }},
      {"barrier", [](TestRank& r, const Group& g) { g.barrier(r.stream); }},
  };
  for (const auto& backend : comm_backends())
    for (const Collective& c : collectives) {
      CAPTURE(backend, c.name);
      const bool known = backend != "gloo";
      const auto ranks = timed(3, backend, c.call, known ? kLate : std::chrono::milliseconds(0));
      for (const auto& timings : ranks) REQUIRE(timings.size() == 1);
      if (!known) {
        for (const auto& timings : ranks) CHECK_FALSE(timings[0].idle_ns.has_value());
        continue;
      }
      const Timing& late = ranks[2][0];
      REQUIRE(late.idle_ns.has_value());
      CHECK(*late.idle_ns < kSlack_ns);
      for (const int rank : {0, 1}) {
        const Timing& t = ranks[size_t(rank)][0];
        CAPTURE(rank);
        REQUIRE(t.idle_ns.has_value());
        // Rank 1 of the ring gets its message from rank 0.
        if (std::string_view(c.name) == "exchange" && rank == 1) {
          CHECK(*t.idle_ns < kSlack_ns);
          continue;
        }
        CHECK(*t.idle_ns >= kLate_ns - kSlack_ns);
        // The last rank arrived when its own call ran, whenever the others saw that.
        CHECK(t.begin_ns + *t.idle_ns >= late.begin_ns - kSlack_ns);
        CHECK(t.begin_ns + *t.idle_ns <= late.end_ns);
        CHECK(t.begin_ns + *t.idle_ns <= t.end_ns);
      }
    }
}

TEST_CASE("work that waits for no rank is not idle, over any backend") {
  for (const auto& backend : comm_backends()) {
    CAPTURE(backend);
    const auto ranks = timed(
        2, backend,
        [](TestRank& r, const Group&) {
          r.stream.launch({.name = "alone"}, [](const device::LaunchContext&) {});
        },
        std::chrono::milliseconds(0));
    for (const auto& timings : ranks) CHECK((timings.at(0).idle_ns == 0));
  }
}

TEST_CASE("data that an all_to_all sends or receives occupies an emulated link") {
  // 2 MB at 1 Gbit/s: 16 ms, and 2 ms of latency. Only rank 0 sends.
  const Link link{.latency_us = 2000, .gbps = 1};
  const auto one_way = [](TestRank& r, const Group& g, Stream& stream) {
    const bool sends = r.rank() == 0;
    const Tensor in = Tensor::empty(stream, {sends ? 500'000 : 0}, DType::f32),
                 out = Tensor::empty(stream, {sends ? 0 : 500'000}, DType::f32);
    g.all_to_all(in, {0, sends ? 500'000 : 0}, out, {sends ? 0 : 500'000, 0}, stream);
  };
  for (const auto& backend : comm_backends()) {
    CAPTURE(backend);
    const auto once = timed(
        2, backend, [&](TestRank& r, const Group& g) { one_way(r, g, r.stream); },
        std::chrono::milliseconds(0), link);
    for (const auto& timings : once) {
      const Timing& t = timings.at(0);
      CHECK(t.end_ns - t.begin_ns - t.idle_ns.value_or(0) >= 18'000'000);
    }
    CHECK(once[0][0].wire_bytes == 2'000'000);
    CHECK(once[1][0].wire_bytes == 0);  // bytes are counted where they are sent

    // The link of a rank that only receives carries two groups' data one after the other.
    const auto twice = timed(
        2, backend,
        [&](TestRank& r, const Group& g) {
          const Group other = r.world.group("other", {0, 1});
          one_way(r, g, r.stream);
          one_way(r, other, r.device.stream(StreamKind::ep));
        },
        std::chrono::milliseconds(0), link);
    for (const auto& timings : twice) {
      REQUIRE(timings.size() == 2);
      const auto [first, last] = std::minmax(timings[0].begin_ns, timings[1].begin_ns);
      CHECK(std::max(timings[0].end_ns, timings[1].end_ns) - first >= 34'000'000);
      CHECK(last >= first);
    }
  }
}

TEST_CASE("an emulated link carries the communication of chosen streams") {
  const comm::EmulatedLink all({.latency_us = 1}),
      experts({.latency_us = 1, .streams = {"ep", "ep_counts"}});
  for (const StreamKind kind : {StreamKind::ep, StreamKind::ep_counts}) {
    CHECK(all.carries(kind));
    CHECK(experts.carries(kind));
  }
  CHECK(all.carries(StreamKind::dp_grad));
  CHECK_FALSE(experts.carries(StreamKind::dp_grad));
  CHECK_THROWS_AS(comm::EmulatedLink({.latency_us = 1, .streams = {"experts"}}), BugError);
  // 100 kB at 5 Mbit/s: 160 ms.
  const auto slow =
      timed(2, "thread",
            [&](TestRank& r, const Group& g) {
              Stream& stream = r.device.stream(StreamKind::ep);
              g.all_reduce(Tensor::empty(stream, {25'000}, DType::f32), Reduce::max, stream);
            },
            std::chrono::milliseconds(0), {.gbps = 0.005, .streams = {"ep"}});
  CHECK(slow[0][0].end_ns - slow[0][0].begin_ns >= 160'000'000);
}

TEST_CASE("a packet does not wait for the data that an emulated link is carrying") {
  using std::chrono::milliseconds;
  comm::EmulatedLink link({.latency_us = 1000, .gbps = 0.008});  // 1 kB takes 1 ms
  const comm::EmulatedLink::TimePoint start{};
  CHECK(link.arrival(400'000, 1, start) == start + milliseconds(401));
  CHECK(link.arrival(4'000, 1, start + milliseconds(50)) == start + milliseconds(55));
  CHECK(link.arrival(3'000, 1, start + milliseconds(51)) == start + milliseconds(58));  // after it
  // Data that is sent later is also delayed by the time of the packets.
  CHECK(link.arrival(10'000, 1, start + milliseconds(60)) == start + milliseconds(418));
  // One packet to each of three ranks, and more than one.
  CHECK(link.arrival(12'000, 3, start + milliseconds(100)) == start + milliseconds(113));
  CHECK(link.arrival(12'000, 2, start + milliseconds(100)) == start + milliseconds(442));
}

TEST_CASE("a wait for a late rank is idle time, and exposed time does not change") {
  // 100 kB each way at 50 Mbit/s: 16 ms, and 2 ms of latency.
  const Link link{.latency_us = 2000, .gbps = 0.05};
  const auto on_rank_0 = [&](const std::string& backend, std::chrono::milliseconds late) {
    observe::Exposure exposure;
    std::atomic<bool> waits{false};
    run_ranks(2, backend,
              [&](TestRank& r) {
                const Group g = r.world.world_group();
                Stream &compute = r.device.stream(StreamKind::compute),
                       &ep = r.device.stream(StreamKind::ep);
                const Tensor in = Tensor::empty(ep, {50'000}, DType::f32),
                             out = Tensor::empty(ep, {50'000}, DType::f32);
                g.barrier(ep);
                r.device.synchronize();
                if (r.rank() == 1) {
                  await([&] { return waits.load(); });
                  std::this_thread::sleep_for(late);
                } else {
                  // The exchange begins once the compute stream waits.
                  hold(ep, [&] { return waits.load(); });
                  r.device.set_timing_sink(&exposure);
                }
                g.all_to_all(in, out, ep);
                if (r.rank() == 0)
                  compute.launch({.name = "before"},
                                 [&](const device::LaunchContext&) { waits = true; });
                compute.wait(ep.record());
                compute.launch({.name = "reader"}, [](const device::LaunchContext&) {});
                r.device.synchronize();
                r.device.set_timing_sink(nullptr);
              },
              {.link = link});
    return exposure.take().at(StreamKind::ep);
  };
  for (const auto& backend : comm_backends()) {
    CAPTURE(backend);
    const observe::Communication prompt = on_rank_0(backend, std::chrono::milliseconds(0)),
                                 late = on_rank_0(backend, kLate);
    CHECK(prompt.exposed_ns >= 16'000'000);
    CHECK(late.bytes == 100'000);
    if (backend == "gloo") {  // the ranks do not know how long they waited for each other
      CHECK_FALSE(prompt.idle_ns.has_value());
      CHECK_FALSE(late.idle_ns.has_value());
      CHECK(late.exposed_ns >= kLate_ns - kSlack_ns);
      continue;
    }
    REQUIRE(late.idle_ns.has_value());
    CHECK(*late.idle_ns >= kLate_ns - kSlack_ns);
    CHECK(late.exposed_ns >= 16'000'000);
    CHECK(late.exposed_ns < kLate_ns);
    CHECK(late.busy_ns >= 18'000'000);
    CHECK(late.busy_ns < kLate_ns);
    REQUIRE(prompt.idle_ns.has_value());
    CHECK(*prompt.idle_ns < *late.idle_ns);
  }
}

}  // namespace comm_timing_test
