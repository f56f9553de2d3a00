// Tests capture and replay: what a graph repeats, what it keeps, and what it refuses.
#include <algorithm>
#include <optional>
#include <vector>

#include <catch2/catch.hpp>

#include "device/device.h"
#include "device/flight_recorder.h"
#include "device/graph.h"
#include "device_testing.h"
#include "test/support/graph_testing.h"

namespace device_graph_test {

using namespace mtrain;
using namespace mtrain::device;

namespace {

struct Machine {
  explicit Machine(const std::string& refused = "", bool sanitize = true)
      : device(Device::on(std::make_unique<RecordingBackend>(refused),
                          {.stream_sanitizer = sanitize})),
        compute(device->stream(StreamKind::compute)),
        other(device->stream(StreamKind::dp_param)),
        pool(device->allocator().make_pool()) {}

  Buffer numbers(int64_t count, Stream* home = nullptr) {
    return device->allocator().allocate(count * 8, MemoryCategory::buffers, home ? *home : compute);
  }
  int64_t read(const Buffer& b, int64_t at = 0) {
    std::vector<int64_t> host(size_t(b->bytes) / 8);
    compute.download(host.data(), all_of(b));
    return host[size_t(at)];
  }

  std::unique_ptr<Device> device;
  Stream &compute, &other;
  std::shared_ptr<MemoryPool> pool;
};

// to[0] = from[0] * factor + add
void affine(Stream& stream, const Buffer& from, const Buffer& to, int64_t factor, int64_t add,
            const char* name = "affine") {
  auto* x = static_cast<int64_t*>(from->data);
  auto* y = static_cast<int64_t*>(to->data);
  stream.launch({.name = name, .reads = {all_of(from)}, .writes = {all_of(to)}},
                [=](const LaunchContext&) { *y = *x * factor + add; });
}
void set(Stream& stream, const Buffer& to, int64_t value) {
  affine(stream, to, to, 0, value, "set");
}

}  // namespace

TEST_CASE("a captured region runs at each replay, on the present values of its inputs") {
  Machine m;
  const Buffer in = m.numbers(1), out = m.numbers(1);
  set(m.compute, in, 3);
  set(m.compute, out, -1);
  std::optional<Graph> graph;
  {
    Capture capture(m.compute, m.pool);
    const Buffer between = m.numbers(1);
    affine(m.compute, in, between, 10, 1);
    affine(m.compute, between, out, 2, 0);
    graph = capture.finish("region");
  }
  CHECK(graph->launches() == 2);
  CHECK(m.read(out) == -1);  // nothing has run yet
  graph->replay();
  CHECK(m.read(out) == 62);
  set(m.compute, in, 4);
  graph->replay();
  CHECK(m.read(out) == 82);
  const auto lines = m.device->recorder().lines();
  CHECK(std::ranges::count_if(lines, [](const std::string& l) {
          return l.find("region") != std::string::npos;
        }) == 2);  // one launch each
}

TEST_CASE("a graph's streams fork and join, and launches after a replay wait for it") {
  Machine m;
  const Buffer a = m.numbers(1), b = m.numbers(1, &m.other), sum = m.numbers(1);
  set(m.compute, a, 1);
  std::optional<Graph> graph;
  {
    Capture capture(m.compute, m.pool);
    affine(m.compute, a, a, 1, 1);
    m.other.wait(m.compute.record());
    affine(m.other, a, b, 5, 0);
    m.compute.wait(m.other.record());
    affine(m.compute, b, sum, 1, 1);
    graph = capture.finish("region");
  }
  // Under the sanitizer: `other` uses its own buffer before and after the replay without an event.
  for (int64_t n = 1; n <= 3; ++n) {
    set(m.other, b, 1000);
    graph->replay();
    affine(m.other, b, b, 1, 0);
    CHECK(m.read(sum) == 5 * (n + 1) + 1);
  }
}

TEST_CASE("the sanitizer sees what a replay touches") {
  Machine m;
  const Buffer a = m.numbers(1), b = m.numbers(1);
  std::optional<Graph> graph;
  {
    Capture capture(m.compute, m.pool);
    affine(m.compute, a, b, 1, 1);
    graph = capture.finish("region");
  }
  set(m.compute, a, 1);
  m.other.wait(m.compute.record());
  affine(m.other, a, a, 1, 0);
  CHECK_THROWS_WITH(graph->replay(),
                    Catch::Contains("no event orders them") && Catch::Contains("region"));
}

TEST_CASE("memory that a graph touches has no other user while the graph lives") {
  Machine m;
  constexpr int64_t kCount = 100'000;
  const Buffer out = m.numbers(1);
  void* inner = nullptr;
  std::optional<Graph> graph;
  {
    Capture capture(m.compute, m.pool);
    const Buffer between = m.numbers(kCount);
    inner = between->data;
    set(m.compute, between, 7);
    affine(m.compute, between, out, 1, 0);
    graph = capture.finish("region");
  }
  CHECK(m.device->allocator().in_use(*m.pool) == 0);
  const auto overlaps = [&](const Buffer& b) {
    return b->data <= inner && inner < static_cast<char*>(b->data) + b->bytes;
  };
  std::vector<Buffer> others;
  for (int i = 0; i < 40; ++i) {
    others.push_back(m.numbers(kCount));
    CHECK_FALSE(overlaps(others.back()));
  }
  {
    const Allocator::Open open(m.device->allocator(), *m.pool);
    CHECK(overlaps(m.numbers(kCount)));  // the pool reuses its graphs' memory
  }
  CHECK_FALSE(overlaps(m.numbers(kCount)));
  others.clear();
  graph.reset();
  m.pool.reset();
  for (int i = 0; i < 60 && !(others.size() && overlaps(others.back())); ++i)
    others.push_back(m.numbers(kCount));
  CHECK(overlaps(others.back()));
}

TEST_CASE("a graph keeps the memory that it finds outside its pool") {
  Machine m;
  Buffer in = m.numbers(100'000);
  void* const at = in->data;
  const Buffer out = m.numbers(1);
  set(m.compute, in, 5);
  std::optional<Graph> graph;
  {
    Capture capture(m.compute, m.pool);
    affine(m.compute, in, out, 1, 0);
    graph = capture.finish("region");
  }
  in.reset();
  const Buffer another = m.numbers(100'000);
  CHECK(another->data != at);
  set(m.compute, another, 6);
  graph->replay();
  CHECK(m.read(out) == 5);
}

TEST_CASE("buffers of a pool that another stream still reads are waited for before a replay") {
  Machine m;
  Gate gate;
  const Buffer seen = m.numbers(1, &m.other), out = m.numbers(1);
  std::optional<Graph> graph;
  void* inner = nullptr;
  {
    Capture capture(m.compute, m.pool);
    const Buffer between = m.numbers(1);
    inner = between->data;
    set(m.compute, between, 8);
    affine(m.compute, between, out, 1, 0);
    graph = capture.finish("region");
  }
  {
    const Allocator::Open open(m.device->allocator(), *m.pool);
    const Buffer same = m.numbers(1);
    REQUIRE(same->data == inner);
    set(m.compute, same, 9);
    m.other.wait(m.compute.record());
    gate.block(m.other);
    affine(m.other, same, seen, 1, 0);
  }
  graph->replay();
  gate.open();
  m.compute.wait(m.other.record());
  CHECK(m.read(seen) == 9);
  CHECK(m.read(out) == 8);
}

TEST_CASE("a replay comes after the work of streams for which the region waited") {
  Machine m;
  const Buffer a = m.numbers(1, &m.other), b = m.numbers(1), c = m.numbers(1, &m.other);
  set(m.other, a, 5);
  set(m.compute, b, 1);
  const Event others = m.other.record(), own = m.compute.record();
  std::optional<Graph> graph;
  {
    Capture capture(m.compute, m.pool);
    m.compute.wait(others);
    affine(m.compute, a, b, 2, 0);
    graph = capture.finish("region");
  }
  for (const int64_t value : {7, 8}) {  // with a stream that has no part in the graph
    m.other.wait(m.compute.record());
    set(m.other, a, value);
    graph->replay();
    CHECK(m.read(b) == 2 * value);
  }
  {
    Capture capture(m.compute, m.pool);
    m.other.wait(own);  // joins the graph at its start
    affine(m.other, b, c, 10, 1);
    m.compute.wait(m.other.record());
    affine(m.compute, c, b, 1, 0);
    graph = capture.finish("region");
  }
  set(m.compute, b, 3);
  graph->replay();
  CHECK(m.read(b) == 31);
  set(m.compute, b, 4);
  graph->replay();
  CHECK(m.read(b) == 41);
}

TEST_CASE("launches that cannot be captured are refused by name, and have no effect") {
  Machine m("library_call");
  const Buffer a = m.numbers(1), b = m.numbers(1);
  set(m.compute, a, 1);
  set(m.compute, b, 2);
  Event inside;
  {
    Capture capture(m.compute, m.pool);
    affine(m.compute, a, a, 1, 0);
    inside = m.compute.record();
    capture.finish("another region");
  }
  const auto refused = [&](const char* what, const std::function<void()>& region) {
    INFO(what);
    {
      Capture capture(m.compute, m.pool);
      affine(m.compute, a, b, 100, 0);
      CHECK_THROWS_WITH(region(), Catch::Contains(what));
    }
    CHECK(m.read(b) == 2);
    affine(m.compute, a, b, 2, 0);  // runs as usual
    CHECK(m.read(b) == 2);
  };
  int64_t host = 0;
  refused("download", [&] { m.compute.download(&host, all_of(a)); });
  refused("upload", [&] { m.compute.upload(all_of(a), nullptr, &host); });
  refused("waiting for the end", [&] { m.compute.synchronize(); });
  refused("`set` on stream dp_param", [&] { set(m.other, a, 1); });
  refused("wait of stream dp_param for work of compute in another graph",
          [&] { m.other.wait(inside); });
  refused("not permitted", [&] { affine(m.compute, a, b, 1, 0, "library_call"); });

  Capture capture(m.compute, m.pool);
  CHECK_THROWS(affine(m.compute, a, b, 1, 0, "library_call"));
  CHECK_THROWS_WITH(capture.finish("region"), Catch::Contains("invalidated"));
}

TEST_CASE("a device without graphs says so") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(StreamKind::compute);
  const auto pool = device->allocator().make_pool();
  CHECK_THROWS_WITH(Capture(compute, pool), Catch::Contains("records no graphs"));
  CHECK(device->allocator().open_pool() == 0);
}

}  // namespace device_graph_test
