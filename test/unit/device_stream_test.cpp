#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <mutex>
#include <new>
#include <stdexcept>

#include "base/error.h"
#include "base/thread_pool.h"
#include "device/flight_recorder.h"
#include "device_testing.h"

namespace device_stream_test {

using namespace mtrain;
using namespace mtrain::device;
using Catch::Contains;

TEST_CASE("a stream runs its work in order while the host continues") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(StreamKind::compute);
  CHECK(&compute == &device->stream(StreamKind::compute));
  CHECK(device->description() == "CPU, 1 thread");
  CHECK_FALSE(device->is_cuda());
  std::vector<int> ran;
  Gate gate;
  gate.block(compute);
  for (int i = 0; i < 1000; ++i)
    compute.launch({.name = "append"}, [&ran, i](const LaunchContext&) { ran.push_back(i); });
  CHECK(compute.enqueued() == 1001);  // the host continues although nothing has run
  CHECK(compute.completed() == 0);
  const Event end = compute.record();
  CHECK_FALSE(end.ready());
  gate.open();
  compute.synchronize(end);
  CHECK(end.ready());
  REQUIRE(ran.size() == 1000);
  for (int i = 0; i < 1000; ++i) REQUIRE(ran[size_t(i)] == i);
  CHECK(compute.completed() == 1001);
}

TEST_CASE("streams run beside each other, and an event orders them") {
  const auto device = Device::cpu(1);
  Stream &compute = device->stream(StreamKind::compute), &dp = device->stream(StreamKind::dp_grad);
  std::atomic<int> both{0};
  for (Stream* s : {&compute, &dp})
    s->launch({.name = "meet"}, [&](const LaunchContext&) {
      ++both;
      while (both < 2) std::this_thread::yield();  // ends only if the other stream also runs
    });
  device->synchronize();

  std::vector<int> order;  // written by both streams, in the order that the events make
  for (int i = 0; i < 200; ++i) {
    compute.launch({.name = "even"}, [&, i](const LaunchContext&) { order.push_back(2 * i); });
    dp.wait(compute.record());
    dp.launch({.name = "odd"}, [&, i](const LaunchContext&) { order.push_back(2 * i + 1); });
    compute.wait(dp.record());
  }
  device->synchronize();
  REQUIRE(order.size() == 400);
  for (int i = 0; i < 400; ++i) REQUIRE(order[size_t(i)] == i);

  const Event never;
  CHECK(never.ready());
  CHECK_FALSE(never);
  dp.wait(never);
  dp.synchronize(never);
}

TEST_CASE("waiting for an event does not wait for later work") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(StreamKind::compute);
  Gate gate;
  int value = 0;
  compute.launch({.name = "set"}, [&](const LaunchContext&) { value = 1; });
  const Event set = compute.record();
  gate.block(compute);
  compute.synchronize(set);
  CHECK(value == 1);
  CHECK(set.ready());
  CHECK(compute.completed() == 1);
}

TEST_CASE("a stream's work reaches the device's thread pool") {
  const auto device = Device::cpu(3);
  CHECK(device->threads() == 3);
  int inside = 0;
  std::atomic<int> chunks{0};
  device->stream(StreamKind::compute).launch({.name = "work"}, [&](const LaunchContext&) {
    inside = current_threads();
    parallel_for(100, 10, [&](int64_t, int64_t) { ++chunks; });
  });
  device->synchronize();
  CHECK(inside == 3);
  CHECK(chunks == 10);
  CHECK(current_threads() == 1);  // the host's own thread has none
}

TEST_CASE("slowed computations take a multiple of their processor time, and others do not") {
  struct Sink : TimingSink {
    void record(const Timing& t) override {
      if (t.stream == StreamKind::compute) ns += t.end_ns - t.begin_ns;
    }
    std::atomic<int64_t> ns{0};
  } sink;
  const auto device = Device::cpu(1, {.compute_slowdown = 5});
  CHECK(device->description().find("slowed 5 x") != std::string::npos);
  device->set_timing_sink(&sink);
  std::atomic<int64_t> used{0};
  const auto burn = [&used](const LaunchContext&) {
    const auto now = [] {
      timespec t{};
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
      return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
    };
    const int64_t begin = now();
    while (now() - begin < 1'000'000) {
    }
    used += now() - begin;
  };
  for (int i = 0; i < 20; ++i) device->stream(StreamKind::compute).launch({.name = "burn"}, burn);
  device->synchronize();
  // A slowdown that is too short for a sleep is carried over.
  CHECK(sink.ns >= 5 * used - 1'000'000);
  device->set_timing_sink(nullptr);
}

TEST_CASE("copies run in the stream's order") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(StreamKind::compute);
  const Buffer b = device->allocator().allocate(4096, MemoryCategory::buffers, compute);
  Gate gate;
  gate.block(compute);
  auto host = std::make_shared<std::vector<char>>(4096, 'a');
  const std::weak_ptr<std::vector<char>> alive = host;
  const void* from = host->data();
  compute.upload(all_of(b), std::move(host), from);
  CHECK_FALSE(alive.expired());  // kept until the copy is done
  compute.launch({.name = "change", .writes = {all_of(b)}},
                 [b](const LaunchContext&) { static_cast<char*>(b->data)[7] = 'b'; });
  gate.open();
  std::string back(4096, '?');
  compute.download(back.data(), all_of(b));
  CHECK(alive.expired());
  CHECK(back == std::string(7, 'a') + "b" + std::string(4088, 'a'));
  compute.upload({}, nullptr, nullptr);  // nothing
  compute.download(nullptr, {});
}

TEST_CASE("the exception of a launch reaches the host, and nothing after it runs") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(StreamKind::compute);
  std::atomic<int> after{0};
  Gate gate;
  gate.block(compute);
  compute.launch({.name = "good"}, no_work);
  const Event before = compute.record();
  compute.launch({.name = "bad"}, [](const LaunchContext&) { throw RunError("out of luck"); });
  for (int i = 0; i < 50; ++i)
    compute.launch({.name = "after"}, [&](const LaunchContext&) { ++after; });
  gate.open();
  CHECK_THROWS_WITH(compute.synchronize(), Contains("out of luck"));
  CHECK(after == 0);
  CHECK(compute.completed() == 2);  // the gate and the good one
  CHECK_NOTHROW(compute.synchronize(before));
  CHECK_THROWS_AS(compute.launch({.name = "late"}, no_work), RunError);
  CHECK_THROWS_AS(compute.synchronize(), RunError);
  CHECK_THROWS_AS(device->synchronize(), RunError);
}

TEST_CASE("a failure names its launch, stream and scope, and keeps its class and hint") {
  const auto device = Device::cpu(1);
  const auto failure_of = [&](StreamId id, const std::function<void()>& fail) -> std::string {
    Stream& stream = device->stream(id);
    stream.launch({.name = "good"}, no_work);
    {
      const Device::Scope layer(*device, "layers.3"), part(*device, "attention");
      stream.launch({.name = "bad"}, [=](const LaunchContext&) { fail(); });
    }
    try {
      stream.synchronize();
    } catch (const UserError& e) {
      return "user: " + e.message() + " / " + e.hint();
    } catch (const RunError& e) {
      return "run: " + e.message() + " / " + e.hint();
    } catch (const CommError& e) {
      return "comm: " + e.message() + " / " + e.hint();
    } catch (const BugError& e) {
      return "bug: " + e.message();
    } catch (int) {
      return "int";
    }
    return "nothing";
  };
  const auto place = [](const char* stream) {
    return fmt::format("\n  in `bad`, item 2 of stream {}, in layers.3 > attention", stream);
  };
  CHECK(failure_of(StreamKind::compute, [] { throw UserError("x", "y"); }) ==
        "user: x" + place("compute") + " / y");
  CHECK(failure_of({StreamKind::pp_send, 3}, [] { throw RunError("x", "y"); }) ==
        "run: x" + place("pp_send_3") + " / y");
  CHECK(failure_of(StreamKind::cp, [] { throw CommError("x", "y"); }) ==
        "comm: x" + place("cp") + " / y");
  CHECK(failure_of(StreamKind::dp_grad, [] { throw BugError("x"); }) ==
        "bug: x" + place("dp_grad"));
  CHECK(failure_of(StreamKind::pp, [] { throw std::bad_alloc(); }) ==
        "run: out of memory" + place("pp") + " / ");
  CHECK(failure_of(StreamKind::tp, [] { throw std::logic_error("x"); }) ==
        "run: x" + place("tp") + " / ");
  CHECK(failure_of(StreamKind::control, [] { throw 1; }) == "int");
}

TEST_CASE("a failure stops the streams that depend on it, and only those") {
  const auto device = Device::cpu(1);
  Stream &compute = device->stream(StreamKind::compute), &dp = device->stream(StreamKind::dp_grad),
         &tp = device->stream(StreamKind::tp);
  std::atomic<int> used{0}, unrelated{0};
  Gate gate;
  gate.block(compute);
  compute.launch({.name = "bad"}, [](const LaunchContext&) { throw RunError("out of luck"); });
  const Event ready = compute.record();
  dp.wait(ready);
  dp.launch({.name = "use"}, [&](const LaunchContext&) { ++used; });
  tp.wait(dp.record());
  tp.launch({.name = "use"}, [&](const LaunchContext&) { ++used; });
  Stream& copy = device->stream(StreamKind::copy);
  copy.launch({.name = "other"}, [&](const LaunchContext&) { ++unrelated; });
  gate.open();
  for (Stream* s : {&tp, &dp, &compute})  // waiting streams do not add their own names
    CHECK_THROWS_WITH(s->synchronize(), "out of luck\n  in `bad`, item 2 of stream compute");
  CHECK_THROWS_WITH(compute.synchronize(ready), Contains("out of luck"));
  CHECK_NOTHROW(copy.synchronize());
  // All streams of the device are drained before its first failure is thrown.
  Gate slow;
  slow.block(copy);
  copy.launch({.name = "other"}, [&](const LaunchContext&) { ++unrelated; });
  slow.open();
  CHECK_THROWS_WITH(device->synchronize(), Contains("out of luck"));
  CHECK(unrelated == 2);
  CHECK(used == 0);
}

TEST_CASE("a device that is destroyed finishes its queues first") {
  int ran = 0;
  {
    const auto device = Device::cpu(2);
    Stream &compute = device->stream(StreamKind::compute),
           &dp = device->stream(StreamKind::dp_grad);
    for (int i = 0; i < 300; ++i) {
      const Buffer b = device->allocator().allocate(1000, MemoryCategory::activations, compute);
      compute.launch({.name = "count", .writes = {all_of(b)}}, [&ran, b](const LaunchContext&) {
        static_cast<char*>(b->data)[999] = 1;
        ++ran;
      });
      dp.wait(compute.record());
      dp.launch({.name = "read", .reads = {all_of(b)}}, [b](const LaunchContext&) {
        if (static_cast<char*>(b->data)[999] != 1) throw RunError("unordered");
      });
    }
    compute.wait(dp.record());
  }
  CHECK(ran == 300);
  {
    const auto device = Device::cpu(1);
    device->stream(StreamKind::compute).launch({.name = "bad"}, [](const LaunchContext&) {
      throw RunError("x");
    });
  }  // a failure that nobody asks for does not end the process
}

TEST_CASE("the timing sink gets every launch") {
  struct Sink : TimingSink {
    void record(const Timing& t) override {
      std::lock_guard lock(mutex);
      seen.push_back({t.name, t.stream, t.begin_ns, t.end_ns, std::string(t.scope)});
    }
    void waited(const Waiting& w) override {
      std::lock_guard lock(mutex);
      waits.push_back(w);
    }
    struct Seen {
      std::string name;
      StreamId stream;
      int64_t begin_ns, end_ns;
      std::string scope;
    };
    std::mutex mutex;
    std::vector<Seen> seen;
    std::vector<Waiting> waits;
  } sink;
  const auto device = Device::cpu(1);
  Stream &compute = device->stream(StreamKind::compute), &dp = device->stream(StreamKind::dp_grad);
  compute.launch({.name = "before"}, no_work);
  device->set_timing_sink(&sink);
  const auto begin = std::chrono::steady_clock::now();
  compute.launch({.name = "slow"}, [](const LaunchContext&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  dp.wait(compute.record());
  {
    const Device::Scope scope(*device, "3F12");
    dp.launch({.name = "next"}, no_work);
  }
  device->synchronize();
  const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - begin;
  device->set_timing_sink(nullptr);
  compute.launch({.name = "after"}, no_work);
  device->synchronize();
  REQUIRE(sink.seen.size() == 2);
  CHECK(sink.seen[0].name == "slow");
  CHECK((sink.seen[0].stream == StreamKind::compute));
  CHECK(sink.seen[0].end_ns - sink.seen[0].begin_ns >= 5'000'000);
  CHECK(sink.seen[0].end_ns - sink.seen[0].begin_ns <= passed.count());
  CHECK((sink.seen[1].stream == StreamKind::dp_grad));
  CHECK(sink.seen[1].begin_ns >= sink.seen[0].end_ns);
  CHECK(sink.seen[0].scope.empty());
  CHECK(sink.seen[1].scope == "3F12");
  REQUIRE(sink.waits.size() == 1);
  CHECK((sink.waits[0].waits_for == StreamKind::compute));
  CHECK((sink.waits[0].stream == StreamKind::dp_grad));
  CHECK(sink.waits[0].end_ns >= sink.seen[0].end_ns);
}

TEST_CASE("timings and waits say whether they were enqueued as part of a pair") {
  struct Sink : TimingSink {
    void record(const Timing& t) override {
      const std::lock_guard lock(mutex);
      launches.push_back({t.name, t.paired});
    }
    void waited(const Waiting& w) override {
      const std::lock_guard lock(mutex);
      launches.push_back({"wait", w.paired});
    }
    std::mutex mutex;
    std::vector<std::pair<std::string, bool>> launches;
  } sink;
  const auto device = Device::cpu(1);
  Stream &compute = device->stream(StreamKind::compute), &ep = device->stream(StreamKind::ep);
  device->set_timing_sink(&sink);
  compute.launch({.name = "before"}, no_work);
  {
    const Device::PairScope outer(*device);
    {
      const Device::PairScope inner(*device);
      compute.launch({.name = "inner"}, no_work);
    }
    compute.wait(ep.record());
    compute.launch({.name = "outer"}, no_work);
    CHECK(device->pairs());
  }
  CHECK_FALSE(device->pairs());
  compute.wait(ep.record());
  compute.launch({.name = "after"}, no_work);
  device->set_timing_sink(nullptr);
  CHECK(sink.launches == std::vector<std::pair<std::string, bool>>{{"before", false},
                                                                   {"inner", true},
                                                                   {"wait", true},
                                                                   {"outer", true},
                                                                   {"wait", false},
                                                                   {"after", false}});
}

TEST_CASE("a GEMM's own margin replaces the device's while it is computed") {
  const auto device = Device::cpu(1, {.gemm_sm_margin = 8});
  CHECK(device->gemm_sm_margin() == 8);
  {
    const Device::GemmMargin own(*device, 3);
    CHECK(device->gemm_sm_margin() == 3);
    const Device::GemmMargin none(*device, 0);
    CHECK(device->gemm_sm_margin() == 3);
  }
  CHECK(device->gemm_sm_margin() == 8);
}

TEST_CASE("a timing sink may go once another, or none, has taken its place") {
  struct Sink : TimingSink {
    explicit Sink(std::atomic<int>& count) : records(count) {}
    void record(const Timing&) override { ++records; }
    std::atomic<int>& records;
  };
  const auto device = Device::cpu(1);
  Stream &compute = device->stream(StreamKind::compute), &dp = device->stream(StreamKind::dp_grad);
  const bool fails = GENERATE(false, true);
  std::atomic<int> launches = 0;
  {
    Sink sink(launches);
    device->set_timing_sink(&sink);
    for (Stream* s : {&compute, &dp})
      s->launch({.name = "slow"}, [](const LaunchContext&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
      });
    dp.launch({.name = "next"}, no_work);
    compute.launch({.name = "bad"}, [=](const LaunchContext&) {
      if (fails) throw RunError("x");
    });
    device->set_timing_sink(nullptr);  // as after an exception in a step
    CHECK(launches == (fails ? 3 : 4));
  }
  if (fails)
    CHECK_THROWS_AS(device->synchronize(), RunError);
  else
    CHECK_NOTHROW(device->synchronize());
}

TEST_CASE("the launch check sees every launch with its accesses, after it was enqueued") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(StreamKind::compute);
  const Buffer b = device->allocator().allocate(64, MemoryCategory::buffers, compute);
  std::vector<std::string> seen;
  device->set_launch_check([&](Stream& stream, const LaunchInfo& info) {
    stream.synchronize();  // may read the values
    seen.push_back(stream.name() + "/" + info.name + "/" + std::to_string(info.writes.size()) +
                   "/" + std::to_string(static_cast<char*>(b->data)[0]));
  });
  for (int i = 1; i <= 2; ++i)
    compute.launch({.name = "set", .writes = {all_of(b)}},
                   [b, i](const LaunchContext&) { static_cast<char*>(b->data)[0] = char(i); });
  device->set_launch_check({});
  compute.launch({.name = "unseen"}, no_work);
  CHECK(seen == std::vector<std::string>{"compute/set/1/1", "compute/set/1/2"});
}

TEST_CASE("the flight recorder has the last launches, and which are done") {
  const auto device = Device::cpu(1);
  Stream &compute = device->stream(StreamKind::compute), &dp = device->stream(StreamKind::dp_grad);
  compute.launch({.name = "embedding"}, no_work);
  compute.synchronize();
  Gate gate;
  gate.block(dp);
  dp.launch({.name = "all_reduce"}, no_work);
  const auto lines = device->recorder().lines();
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[0], Contains("compute #1") && Contains("embedding") && Contains("done"));
  CHECK_THAT(lines[1], Contains("dp_grad #1") && Contains("gate") && Contains("pending"));
  CHECK_THAT(lines[2], Contains("dp_grad #2") && Contains("all_reduce") && Contains("pending"));
  CHECK(device->recorder().lines(1) == std::vector<std::string>{lines[2]});
  for (int i = 0; i < 400; ++i) compute.launch({.name = "many"}, no_work);
  CHECK(device->recorder().lines().size() == FlightRecorder::kEntries);
  CHECK_THAT(device->recorder().lines(1)[0], Contains("compute #401"));
  gate.open();
  device->synchronize();
  CHECK_THAT(device->recorder().lines(1)[0], Contains("done"));
}

TEST_CASE("after a failure the flight recorder shows where it stopped") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(StreamKind::compute);
  Gate gate;
  gate.block(compute);
  compute.launch({.name = "good"}, no_work);
  compute.launch({.name = "bad"}, [](const LaunchContext&) { throw RunError("x"); });
  compute.launch({.name = "skipped"}, no_work);
  gate.open();
  CHECK_THROWS_AS(compute.synchronize(), RunError);
  const auto lines = device->recorder().lines(3);
  CHECK_THAT(lines[0], Contains("good") && Contains("done"));
  CHECK_THAT(lines[1], Contains("bad") && Contains("pending"));
  CHECK_THAT(lines[2], Contains("skipped") && Contains("pending"));
}

TEST_CASE("scopes name the work of the rank") {
  const auto device = Device::cpu(1);
  CHECK(device->scope().empty());
  {
    const Device::Scope layer(*device, "layers.3");
    const Device::Scope part(*device, "attention");
    CHECK(device->scope() == "layers.3 > attention");
  }
  CHECK(device->scope().empty());
}

// A CPU whose profiler writes down the ranges.
class RangesBackend : public LimitedBackend {
 public:
  explicit RangesBackend(std::vector<std::string>& log)
      : LimitedBackend(std::make_shared<Control>()), log_(log) {}
  void push_range(const char* name) override { log_.emplace_back(name); }
  void pop_range() override { log_.emplace_back("end"); }

 private:
  std::vector<std::string>& log_;
};

TEST_CASE("a profiler sees scopes and launches as nested ranges, if the options ask for it") {
  for (const bool on : {true, false}) {
    CAPTURE(on);
    std::vector<std::string> log;
    const auto device = Device::on(std::make_unique<RangesBackend>(log), {.nvtx = on});
    CHECK(device->ranges() == on);
    Stream& compute = device->stream(StreamKind::compute);
    {
      const Device::Scope layer(*device, "layers.3");
      const Device::Scope part(*device, "attention");
      compute.launch({.name = "rope"}, no_work);
      CHECK_THROWS_AS(
          [&] {
            const Device::Scope failing(*device, "mlp");
            throw RunError("x");
          }(),
          RunError);
    }
    compute.launch({.name = "adamw"}, no_work);
    compute.synchronize();
    const std::vector<std::string> ranges{"layers.3", "attention", "rope", "end",   "mlp",
                                          "end",      "end",       "end",  "adamw", "end"};
    CHECK(log == (on ? ranges : std::vector<std::string>{}));
  }
}

TEST_CASE("a GPU is there, or the error speaks of CUDA") {
  try {
    const auto device = Device::cuda(0);
    CHECK(device->is_cuda());
  } catch (const Error& e) {
    INFO(e.what());
    CHECK((e.message().find("CUDA") != std::string::npos ||
           e.message().find("cuda") != std::string::npos));
  }
}

}  // namespace device_stream_test
