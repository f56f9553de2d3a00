#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <map>
#include <random>

#include "base/error.h"
#include "device_testing.h"

namespace device_allocator_test {

using namespace mtrain;
using namespace mtrain::device;
using Catch::Contains;

namespace {
constexpr int64_t kMiB = 1 << 20;

Buffer take(Device& device, Stream& home, int64_t bytes,
            MemoryCategory category = MemoryCategory::buffers) {
  return device.allocator().allocate(bytes, category, home);
}
}  // namespace

TEST_CASE("the same stream may reuse a dropped buffer's memory at once") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(StreamKind::compute);
  Gate gate;
  gate.block(compute);
  Buffer b = take(*device, compute, 3 * kMiB);
  void* const memory = b->data;
  const uint64_t serial = b->serial;
  CHECK(reinterpret_cast<uintptr_t>(memory) % 512 == 0);
  compute.launch({.name = "use", .writes = {all_of(b)}}, no_work);
  b.reset();  // safe although the launch has not run: later work of this stream comes after it
  b = take(*device, compute, 3 * kMiB);
  CHECK(b->data == memory);
  CHECK(b->serial != serial);
  // Another stream's work would not come after it, so it gets other memory.
  const Buffer other = take(*device, device->stream(StreamKind::dp_grad), 3 * kMiB);
  b.reset();
  const Buffer another = take(*device, device->stream(StreamKind::dp_grad), 3 * kMiB);
  CHECK(other->data != memory);
  CHECK(another->data != memory);
}

TEST_CASE("adopted memory is counted, serves one buffer, and is kept until the device ends") {
  auto device = Device::cpu(1);
  Stream &compute = device->stream(StreamKind::compute), &dp = device->stream(StreamKind::dp_param);
  bool freed = false;
  std::shared_ptr<void> memory(::operator new(kMiB), [&](void* p) {
    ::operator delete(p);
    freed = true;
  });
  const void* const at = memory.get();
  Buffer b = device->allocator().adopt(std::move(memory), kMiB, MemoryCategory::buffers, compute);
  CHECK(b->data == at);
  CHECK(device->allocator().usage(MemoryCategory::buffers).current == kMiB);
  CHECK(device->allocator().reserved().current == kMiB);
  dp.launch({.name = "gather", .writes = {all_of(b)}}, no_work);
  b.reset();
  CHECK(device->allocator().usage(MemoryCategory::buffers).current == 0);
  CHECK(take(*device, compute, kMiB)->data != at);
  CHECK_FALSE(freed);
  device.reset();
  CHECK(freed);
}

TEST_CASE("memory that another stream may still touch is not handed out") {
  const auto device = Device::cpu(1);
  Stream &compute = device->stream(StreamKind::compute), &dp = device->stream(StreamKind::dp_grad);
  Gate gate;
  Buffer b = take(*device, compute, kMiB);
  void* const memory = b->data;
  gate.block(dp);
  SECTION("as a reader") { dp.launch({.name = "send", .reads = {all_of(b)}}, no_work); }
  SECTION("as a writer") { dp.launch({.name = "receive", .writes = {all_of(b)}}, no_work); }
  SECTION("as a reader of a part") {
    dp.launch({.name = "send", .reads = {part_of(b, 100, 200)}}, no_work);
  }
  SECTION("through a copy") {
    static char host[kMiB];
    dp.upload(all_of(b), nullptr, host);
  }
  b.reset();
  std::vector<Buffer> held;
  for (int i = 0; i < 20; ++i) {
    held.push_back(take(*device, compute, kMiB));
    REQUIRE(held.back()->data != memory);
  }
  gate.open();
  dp.synchronize();
  CHECK(take(*device, compute, kMiB)->data == memory);
}

TEST_CASE("memory whose stream has waited for the others is handed out while all still run") {
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  Stream &compute = device->stream(StreamKind::compute), &tp = device->stream(StreamKind::tp);
  Gate gate;
  gate.block(tp);
  const auto touch = [](Stream& s, const char* name, const Buffer& b) {
    s.launch({.name = name, .writes = {all_of(b)}}, [](const LaunchContext&) {});
  };
  const auto through_tp = [&](const Buffer& b) {
    touch(compute, "make", b);
    tp.wait(compute.record());
    touch(tp, "gather", b);
  };
  // A step of layers, with the host far ahead: every layer gets the memory of the one before.
  void* memory = nullptr;
  for (int layer = 0; layer < 50; ++layer) {
    const Buffer b = take(*device, compute, kMiB);
    if (layer == 0) memory = b->data;
    REQUIRE(b->data == memory);
    through_tp(b);
    compute.wait(tp.record());
  }
  // Dropped before its home stream waits; and used after the event for which the home stream waits.
  Buffer early = take(*device, compute, kMiB);
  through_tp(early);
  early.reset();
  CHECK(take(*device, compute, kMiB)->data != memory);
  compute.wait(tp.record());
  Buffer late = take(*device, compute, kMiB);
  CHECK(late->data == memory);
  through_tp(late);
  const Event before = tp.record();
  touch(tp, "again", late);
  compute.wait(before);
  late.reset();
  CHECK(take(*device, compute, kMiB)->data != memory);
  gate.open();
  device->synchronize();  // the sanitizer has reported nothing
}

TEST_CASE("a buffer that only a queued closure owns lives until that has run") {
  const auto device = Device::cpu(1);
  Stream &compute = device->stream(StreamKind::compute), &dp = device->stream(StreamKind::dp_grad);
  Gate gate;
  gate.block(dp);
  Buffer b = take(*device, compute, kMiB);
  void* const memory = b->data;
  const std::weak_ptr<Storage> alive = b;
  dp.launch({.name = "send", .reads = {all_of(b)}}, [b](const LaunchContext&) {});
  b.reset();
  CHECK_FALSE(alive.expired());
  CHECK(take(*device, compute, kMiB)->data != memory);
  gate.open();
  dp.synchronize();
  CHECK(alive.expired());
  CHECK(take(*device, compute, kMiB)->data == memory);
}

TEST_CASE("free neighbours merge, and a large free block is split") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(StreamKind::compute);
  std::vector<Buffer> pieces;
  for (int i = 0; i < 16; ++i) pieces.push_back(take(*device, compute, kMiB));
  const int64_t reserved = device->allocator().reserved().current;
  CHECK(reserved == 16 * kMiB);  // one segment holds them all
  void* const first = pieces[0]->data;
  void* const fifth = pieces[4]->data;
  for (int i : {5, 7, 6, 4}) pieces[size_t(i)].reset();  // merges with the next, both, the previous
  const Buffer four = take(*device, compute, 4 * kMiB);
  CHECK(four->data == fifth);
  for (auto& p : pieces) p.reset();
  CHECK(device->allocator().total().current == 4 * kMiB);
  const Buffer left = take(*device, compute, 4 * kMiB);  // the smallest hole that fits
  CHECK(left->data == first);
  CHECK(take(*device, compute, 8 * kMiB) != nullptr);
  CHECK(device->allocator().reserved().current == reserved);
  take(*device, compute, 100 * kMiB);
  CHECK(device->allocator().reserved().current == reserved + 100 * kMiB);
  CHECK(device->allocator().reserved().peak == reserved + 100 * kMiB);
}

TEST_CASE("use and peaks are counted by category") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(StreamKind::compute);
  Allocator& memory = device->allocator();
  const Buffer params = take(*device, compute, 1000, MemoryCategory::params);
  Buffer activations = take(*device, compute, 5000, MemoryCategory::activations);
  CHECK(params->bytes == 1024);  // in granules of 512
  CHECK(memory.usage(MemoryCategory::params).current == 1024);
  CHECK(memory.usage(MemoryCategory::activations).current == 5120);
  CHECK(memory.total().current == 6144);
  activations.reset();
  CHECK(memory.usage(MemoryCategory::activations).current == 0);
  CHECK(memory.usage(MemoryCategory::activations).peak == 5120);
  CHECK(memory.total().current == 1024);
  CHECK(memory.total().peak == 6144);
  {
    const Buffer grads = take(*device, compute, 2048, MemoryCategory::grads);
    CHECK(memory.total().peak == 6144);  // the peak of the sum, not the sum of the peaks
  }
  CHECK(memory.peaks() ==
        "6.00 KiB: params 1.00 KiB, grads 2.00 KiB, optimizer 0 B, activations "
        "5.00 KiB, buffers 0 B");
  const Buffer none = take(*device, compute, 0);
  CHECK(none->data == nullptr);
  CHECK(memory.total().current == 1024);
  CHECK_THROWS_AS(take(*device, compute, -1), BugError);
  CHECK(category_name(MemoryCategory::optimizer) == "optimizer");
}

TEST_CASE("memory that the system does not have is a RunError") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(StreamKind::compute);
  const int64_t before = device->allocator().total().current;
  CHECK_THROWS_AS(take(*device, compute, int64_t(1) << 60), RunError);
  CHECK(device->allocator().total().current == before);
  CHECK(device->allocator().reserved().current == 0);
  CHECK(take(*device, compute, 100)->data != nullptr);
}

TEST_CASE("where the system refuses, cached memory goes back to it first") {
  const auto control = std::make_shared<LimitedBackend::Control>();
  control->limit = 64 * kMiB;
  const auto device = Device::on(std::make_unique<LimitedBackend>(control));
  Stream &compute = device->stream(StreamKind::compute), &dp = device->stream(StreamKind::dp_grad);
  const Buffer params = take(*device, compute, 20 * kMiB, MemoryCategory::params);
  Buffer first = take(*device, compute, 20 * kMiB), second = take(*device, compute, 20 * kMiB);
  SECTION("also what queued work still uses") {
    // Neither is free as long as these run, although the second is dropped by them.
    compute.launch({.name = "use", .writes = {all_of(first)}}, [data = first->data](const auto&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::memset(data, 1, 20 * kMiB);
    });
    dp.launch({.name = "use", .writes = {all_of(second)}}, [second](const LaunchContext&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::memset(second->data, 1, 20 * kMiB);
    });
    first.reset();
    second.reset();
    const Buffer both = take(*device, compute, 40 * kMiB);
    std::memset(both->data, 2, 40 * kMiB);
    CHECK(control->used == 60 * kMiB);
    CHECK(device->allocator().reserved().current == 60 * kMiB);
    CHECK(device->allocator().reserved().peak == 60 * kMiB);
  }
  SECTION("of another stream too") {
    first.reset();
    CHECK(take(*device, dp, 20 * kMiB)->data != nullptr);
  }
  SECTION("but not where it would not do") {
    first.reset();
    try {
      take(*device, compute, 50 * kMiB);
      FAIL("allocated beyond the limit");
    } catch (const RunError& e) {
      CHECK_THAT(e.message(), Contains("out of memory") && Contains("a limited CPU") &&
                                  Contains("params 20.0 MiB") && Contains("buffers 20.0 MiB"));
      CHECK(e.hint() == "buy some");
    }
    CHECK(device->allocator().total().current == 40 * kMiB);
    CHECK(take(*device, compute, 20 * kMiB)->data != nullptr);
  }
}

TEST_CASE("a small buffer never cuts a large block in two") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(StreamKind::compute);
  Buffer large = take(*device, compute, 100 * kMiB);
  void* const memory = large->data;
  large.reset();
  const Buffer small = take(*device, compute, 1000);
  large = take(*device, compute, 100 * kMiB);
  CHECK(large->data == memory);
  CHECK(device->allocator().reserved().current == 102 * kMiB);
}

TEST_CASE("a buffer that is dropped while its streams refuse events keeps its memory for ever") {
  const auto control = std::make_shared<LimitedBackend::Control>();
  const auto device = Device::on(std::make_unique<LimitedBackend>(control));
  Stream &compute = device->stream(StreamKind::compute), &dp = device->stream(StreamKind::dp_grad);
  Buffer b = take(*device, compute, kMiB);
  const void* const memory = b->data;
  dp.launch({.name = "use", .reads = {all_of(b)}}, no_work);
  control->no_events = true;
  b.reset();  // in a destructor, which must not throw
  control->no_events = false;
  dp.synchronize();
  CHECK(take(*device, compute, kMiB)->data != memory);
  CHECK(device->allocator().total().current == 0);
}

TEST_CASE("a buffer may outlive its device") {
  Buffer alone, touched;
  {
    const auto device = Device::cpu(1);
    alone = take(*device, device->stream(StreamKind::compute), 1000);
    touched = take(*device, device->stream(StreamKind::compute), 1000);
    device->stream(StreamKind::dp_grad)
        .launch({.name = "use", .reads = {all_of(touched)}}, no_work);
  }
  alone.reset();
  touched.reset();  // its memory and its streams are gone, so nothing is given back
  SUCCEED("checked by the sanitizer builds");
}

TEST_CASE("many random operations agree with a model") {
  const auto device = Device::cpu(1);
  Stream* homes[] = {&device->stream(StreamKind::compute), &device->stream(StreamKind::dp_grad)};
  Stream& other = device->stream(StreamKind::tp);
  std::mt19937 random(GENERATE(1u, 2u, 3u));
  const auto below = [&](int n) { return int(random() % unsigned(n)); };

  struct Held {
    Buffer buffer;
    MemoryCategory category;
    char fill;
  };
  std::vector<Held> live;
  std::map<char*, char*> taken;    // [begin, end) of live buffers
  std::map<char*, char*> waiting;  // dropped buffers that the blocked `other` may still touch
  int64_t current[kMemoryCategories] = {};
  int64_t peak[kMemoryCategories] = {};
  auto gate = std::make_unique<Gate>();
  gate->block(other);
  const auto overlaps = [](const std::map<char*, char*>& ranges, char* begin, char* end) {
    const auto it = ranges.lower_bound(end);
    return it != ranges.begin() && std::prev(it)->second > begin;
  };

  for (int step = 0; step < 4000; ++step) {
    if (live.empty() || (live.size() < 200 && below(100) < 55)) {
      const int64_t bytes = below(3) ? 1 + below(20'000) : 1 + below(6 * int(kMiB));
      const auto category = MemoryCategory(below(kMemoryCategories));
      const Buffer b = take(*device, *homes[below(2)], bytes, category);
      auto* begin = static_cast<char*>(b->data);
      REQUIRE(b->bytes >= bytes);
      REQUIRE(b->bytes < bytes + 512);
      REQUIRE_FALSE(overlaps(taken, begin, begin + b->bytes));
      REQUIRE_FALSE(overlaps(waiting, begin, begin + b->bytes));
      taken[begin] = begin + b->bytes;
      const char fill = char(step);
      begin[0] = begin[bytes - 1] = begin[b->bytes - 1] = fill;
      live.push_back({b, category, fill});
      current[int(category)] += b->bytes;
      peak[int(category)] = std::max(peak[int(category)], current[int(category)]);
    } else if (below(100) < 90) {
      const size_t which = size_t(below(int(live.size())));
      Held h = std::move(live[which]);
      live.erase(live.begin() + long(which));
      auto* begin = static_cast<char*>(h.buffer->data);
      REQUIRE(begin[0] == h.fill);  // no other buffer wrote to this memory
      REQUIRE(begin[h.buffer->bytes - 1] == h.fill);
      taken.erase(begin);
      current[int(h.category)] -= h.buffer->bytes;
      if (below(3) == 0) {
        other.launch({.name = "touch", .reads = {all_of(h.buffer)}}, no_work);
        waiting[begin] = begin + h.buffer->bytes;
      }
    } else if (below(10) == 0) {  // `other` passes everything, and is held up again
      gate->open();
      other.synchronize();
      waiting.clear();
      gate = std::make_unique<Gate>();
      gate->block(other);
    }
    const int category = below(kMemoryCategories);
    REQUIRE(device->allocator().usage(MemoryCategory(category)).current == current[category]);
    REQUIRE(device->allocator().usage(MemoryCategory(category)).peak == peak[category]);
  }
  live.clear();
  gate->open();
  device->synchronize();
  CHECK(device->allocator().total().current == 0);
  // All free memory merges again: one buffer can have all that was ever reserved for large buffers.
  const int64_t reserved = device->allocator().reserved().current;
  const Buffer again = take(*device, *homes[0], 5 * kMiB);
  CHECK(device->allocator().reserved().current == reserved);
}

TEST_CASE("buffers are dropped by hosts' and streams' threads at once") {
  const auto device = Device::cpu(2, {.stream_sanitizer = true});
  Stream &compute = device->stream(StreamKind::compute), &dp = device->stream(StreamKind::dp_grad);
  for (int i = 0; i < 2000; ++i) {
    const Buffer b = take(*device, compute, 1000 + i, MemoryCategory::activations);
    compute.launch({.name = "write", .writes = {all_of(b)}},
                   [b, i](const LaunchContext&) { std::memset(b->data, i, size_t(b->bytes)); });
    dp.wait(compute.record());
    dp.launch({.name = "read", .reads = {all_of(b)}}, [b, i](const LaunchContext&) {
      const char* bytes = static_cast<char*>(b->data);
      if (bytes[0] != char(i) || bytes[b->bytes - 1] != char(i)) throw RunError("overwritten");
    });
  }
  CHECK_NOTHROW(device->synchronize());
  CHECK(device->allocator().total().current == 0);
}

}  // namespace device_allocator_test
