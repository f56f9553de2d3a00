#include <atomic>
#include <catch2/catch.hpp>
#include <set>
#include <thread>

#include "base/error.h"
#include "device_testing.h"

namespace device_sanitizer_test {

using namespace mtrain;
using namespace mtrain::device;
using Catch::Contains;

namespace {

struct Rig {
  std::unique_ptr<Device> device = Device::cpu(1, {.stream_sanitizer = true});
  Stream &compute = device->stream(StreamKind::compute), &dp = device->stream(StreamKind::dp_grad),
         &tp = device->stream(StreamKind::tp);
  Buffer x = take(), y = take();

  Buffer take(int64_t bytes = 4096) {
    return device->allocator().allocate(bytes, MemoryCategory::buffers, compute);
  }
  static void read(Stream& stream, const char* name, const Access& what) {
    stream.launch({.name = name, .reads = {what}}, no_work);
  }
  static void write(Stream& stream, const char* name, const Access& what) {
    stream.launch({.name = name, .writes = {what}}, no_work);
  }
};

}  // namespace

TEST_CASE("a missing event is reported with both launches and streams") {
  Rig r;
  SECTION("read after write") {
    Rig::write(r.compute, "wgrad", all_of(r.x));
    CHECK_THROWS_AS(Rig::read(r.dp, "reduce", all_of(r.x)), BugError);
    CHECK_THROWS_WITH(Rig::read(r.dp, "reduce", all_of(r.x)),
                      Contains("`reduce` on stream dp_grad reads") &&
                          Contains("`wgrad` on stream compute wrote"));
  }
  SECTION("write after read") {
    Rig::read(r.compute, "matmul", all_of(r.x));
    CHECK_THROWS_WITH(Rig::write(r.dp, "gather", all_of(r.x)),
                      Contains("`gather` on stream dp_grad writes") &&
                          Contains("`matmul` on stream compute reads"));
  }
  SECTION("write after write") {
    Rig::write(r.compute, "zero", all_of(r.x));
    CHECK_THROWS_WITH(Rig::write(r.dp, "receive", all_of(r.x)),
                      Contains("`receive`") && Contains("`zero`"));
  }
  SECTION("an event recorded too early") {
    const Event early = r.compute.record();
    Rig::write(r.compute, "wgrad", all_of(r.x));
    r.dp.wait(early);
    CHECK_THROWS_WITH(Rig::read(r.dp, "reduce", all_of(r.x)),
                      Contains("`reduce`") && Contains("`wgrad`"));
  }
  SECTION("an event that another stream waited for") {
    Rig::write(r.compute, "wgrad", all_of(r.x));
    r.tp.wait(r.compute.record());
    CHECK_THROWS_WITH(Rig::read(r.dp, "reduce", all_of(r.x)),
                      Contains("`reduce`") && Contains("`wgrad`"));
  }
  SECTION("a second write after an ordered first") {
    Rig::write(r.compute, "first", all_of(r.x));
    r.dp.wait(r.compute.record());
    Rig::read(r.dp, "reduce", all_of(r.x));
    CHECK_THROWS_WITH(Rig::write(r.compute, "second", all_of(r.x)),
                      Contains("`second`") && Contains("`reduce`"));
  }
  SECTION("one of several readers is not waited for") {
    Rig::read(r.dp, "reader_dp", all_of(r.x));
    Rig::read(r.tp, "reader_tp", all_of(r.x));
    r.compute.wait(r.dp.record());
    CHECK_THROWS_WITH(Rig::write(r.compute, "step", all_of(r.x)),
                      Contains("`step`") && Contains("`reader_tp`"));
  }
  SECTION("a host that waited for another stream") {
    Rig::write(r.compute, "wgrad", all_of(r.x));
    r.tp.synchronize();
    CHECK_THROWS_AS(Rig::read(r.dp, "reduce", all_of(r.x)), BugError);
  }
  SECTION("a copy") {
    Rig::write(r.dp, "gather", all_of(r.x));
    char host[4096];
    CHECK_THROWS_WITH(r.compute.download(host, all_of(r.x)),
                      Contains("`download`") && Contains("`gather`"));
  }
}

TEST_CASE("right programs are not reported") {
  Rig r;
  SECTION("an event between every two") {
    for (int i = 0; i < 10; ++i) {
      Rig::write(r.compute, "wgrad", all_of(r.x));
      r.dp.wait(r.compute.record());
      Rig::read(r.dp, "reduce", all_of(r.x));
      Rig::write(r.dp, "reduce", all_of(r.x));
      r.compute.wait(r.dp.record());
    }
  }
  SECTION("a chain of events over a third stream") {
    Rig::write(r.compute, "wgrad", all_of(r.x));
    r.tp.wait(r.compute.record());
    Rig::read(r.tp, "other", all_of(r.y));
    r.dp.wait(r.tp.record());
    Rig::write(r.dp, "reduce", all_of(r.x));
  }
  SECTION("an event that is older than the wait") {
    Rig::write(r.compute, "wgrad", all_of(r.x));
    const Event done = r.compute.record();
    Rig::write(r.compute, "other", all_of(r.y));
    r.dp.wait(done);
    Rig::write(r.dp, "reduce", all_of(r.x));
  }
  SECTION("readers of one buffer") {
    Rig::write(r.compute, "wgrad", all_of(r.x));
    const Event done = r.compute.record();
    for (Stream* s : {&r.dp, &r.tp}) {
      s->wait(done);
      Rig::read(*s, "reader", all_of(r.x));
      Rig::read(r.compute, "reader", all_of(r.x));
    }
  }
  SECTION("the host waited for the stream") {
    Rig::write(r.compute, "wgrad", all_of(r.x));
    r.compute.synchronize();
    Rig::write(r.dp, "reduce", all_of(r.x));
    r.device->synchronize();
    Rig::write(r.compute, "zero", all_of(r.x));
  }
  SECTION("the host waited for the event") {
    Rig::write(r.compute, "wgrad", all_of(r.x));
    r.compute.synchronize(r.compute.record());
    Rig::write(r.dp, "reduce", all_of(r.x));
  }
  SECTION("a download is a wait of the host") {
    Rig::write(r.compute, "wgrad", all_of(r.x));
    char host[4096];
    r.compute.download(host, all_of(r.x));
    Rig::write(r.dp, "reduce", all_of(r.x));
  }
  SECTION("a launch that reads and writes the same memory") {
    r.compute.launch({.name = "in_place", .reads = {all_of(r.x)}, .writes = {all_of(r.x)}},
                     no_work);
    Rig::write(r.compute, "again", all_of(r.x));
  }
  SECTION("absent tensors") {
    Rig::write(r.compute, "bias", {});
    Rig::write(r.dp, "bias", {});
  }
}

TEST_CASE("ranges are compared, not buffers") {
  Rig r;
  Rig::write(r.compute, "front", part_of(r.x, 0, 2000));
  CHECK_NOTHROW(Rig::write(r.dp, "back", part_of(r.x, 2000, 4096)));
  CHECK_THROWS_WITH(Rig::read(r.tp, "border", part_of(r.x, 1999, 2000)), Contains("`front`"));
  CHECK_THROWS_WITH(Rig::read(r.tp, "border", part_of(r.x, 2000, 2001)), Contains("`back`"));
  CHECK_THROWS_AS(Rig::read(r.tp, "whole", all_of(r.x)), BugError);
  CHECK_NOTHROW(Rig::write(r.tp, "other", all_of(r.y)));
  r.tp.wait(r.compute.record());
  CHECK_NOTHROW(Rig::write(r.tp, "inside", part_of(r.x, 500, 600)));
  // The bytes around `inside` still belong to `front`.
  CHECK_THROWS_WITH(Rig::read(r.dp, "left", part_of(r.x, 400, 500)), Contains("`front`"));
  CHECK_THROWS_WITH(Rig::read(r.dp, "middle", part_of(r.x, 599, 600)), Contains("`inside`"));
  CHECK_THROWS_WITH(Rig::read(r.dp, "right", part_of(r.x, 600, 700)), Contains("`front`"));
  CHECK_NOTHROW(Rig::read(r.compute, "own", part_of(r.x, 0, 500)));
  // A gap between two known ranges is unknown, and any stream may use it.
  Rig::write(r.compute, "a", part_of(r.y, 0, 0));
  const Buffer z = r.take();
  Rig::write(r.compute, "low", part_of(z, 0, 100));
  Rig::write(r.compute, "high", part_of(z, 200, 300));
  CHECK_NOTHROW(Rig::write(r.dp, "gap", part_of(z, 100, 200)));
  CHECK_THROWS_WITH(Rig::write(r.tp, "all", all_of(z)), Contains("`all`"));
}

TEST_CASE("memory that is reused too early is reported with both launches") {
  Rig r;
  Rig::write(r.compute, "fill_x", all_of(r.x));
  r.dp.wait(r.compute.record());
  const Access bare{r.x->data, r.x->bytes};  // no owner, so nothing keeps the memory
  SECTION("launched while the owner lived") {
    Rig::read(r.dp, "send_x", bare);
    r.x.reset();
  }
  SECTION("launched after the owner was dropped") {
    r.x.reset();
    Rig::read(r.dp, "send_x", bare);
  }
  const Buffer z = r.take();
  REQUIRE(z->data == bare.data);
  CHECK_THROWS_WITH(Rig::write(r.compute, "fill_z", all_of(z)),
                    Contains("`fill_z` on stream compute writes") &&
                        Contains("`send_x` on stream dp_grad reads") &&
                        Contains("reused too early"));
}

TEST_CASE("the allocator's own protection is not reported") {
  Rig r;
  std::set<void*> sent;
  int reused = 0;
  for (int i = 0; i < 50; ++i) {
    Buffer b = r.take(1 << 20);
    Rig::write(r.compute, "fill", all_of(b));
    r.dp.wait(r.compute.record());
    Rig::read(r.dp, "send", all_of(b));
    sent.insert(b->data);
    b.reset();
    // Only the host waits for dp, from time to time; otherwise only the allocator finds it done.
    if (i % 7 == 0) r.dp.synchronize();
    const Buffer next = r.take(1 << 20);
    reused += sent.contains(next->data);
    CHECK_NOTHROW(Rig::write(r.compute, "fill_next", all_of(next)));
  }
  CHECK(reused > 0);
}

TEST_CASE("fresh memory belongs to its home stream until an event says otherwise") {
  Rig r;
  Buffer b = r.take(1 << 20);
  void* const memory = b->data;
  Rig::write(r.compute, "fill", all_of(b));
  b.reset();
  b = r.take(1 << 20);  // `fill` may still run: dp must wait for compute before it touches this
  REQUIRE(b->data == memory);
  CHECK_THROWS_WITH(Rig::write(r.dp, "receive", all_of(b)),
                    Contains("`fill`") && Contains("`receive`") && Contains("reused too early"));
  r.dp.wait(r.compute.record());
  CHECK_NOTHROW(Rig::write(r.dp, "receive", all_of(b)));
}

TEST_CASE("an event that another thread records holds every launch that its clock promises") {
  // A worker may drop a buffer while the host launches.
  const auto control = std::make_shared<LimitedBackend::Control>();
  const auto device =
      Device::on(std::make_unique<LimitedBackend>(control), {.stream_sanitizer = true});
  Stream &compute = device->stream(StreamKind::compute), &tp = device->stream(StreamKind::tp);
  const Buffer x = device->allocator().allocate(4096, MemoryCategory::buffers, compute);
  std::atomic<bool> ran = false;
  bool held = false;
  std::thread worker;
  control->before_enqueue = [&] {  // the clock counts the launch, which is not yet in the queue
    if (worker.joinable()) return;
    worker = std::thread([&] {
      const Event e = compute.record();
      tp.wait(e);
      while (!e.ready()) std::this_thread::yield();
      held = ran;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  compute.launch({.name = "write", .writes = {all_of(x)}},
                 [&](const LaunchContext&) { ran = true; });
  worker.join();
  control->before_enqueue = nullptr;
  bool promised = true;
  try {
    Rig::read(tp, "read", all_of(x));
  } catch (const BugError&) {
    promised = false;
  }
  CHECK((held || !promised));
}

TEST_CASE("without the option nothing is checked") {
  const auto device = Device::cpu(1);
  Stream &compute = device->stream(StreamKind::compute), &dp = device->stream(StreamKind::dp_grad);
  const Buffer b = device->allocator().allocate(64, MemoryCategory::buffers, compute);
  CHECK(device->sanitizer() == nullptr);
  Rig::write(compute, "a", all_of(b));
  CHECK_NOTHROW(Rig::write(dp, "b", all_of(b)));
}

}  // namespace device_sanitizer_test
