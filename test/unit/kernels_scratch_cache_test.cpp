// Scratch memory that is kept per stream, over a device that counts.
#include <catch2/catch.hpp>

#include <map>
#include <new>

#include "kernels/cuda/device/scratch_cache.h"

using mtrain::kernels::cuda::ScratchCache;

namespace {

constexpr size_t kMiB = 1 << 20;

// Addresses without memory: the cache never looks behind them.
size_t taken = 0, calls = 0;
void* take(size_t bytes) {
  if (bytes > 1000 * kMiB) throw std::bad_alloc();
  ++calls;
  char* const at = reinterpret_cast<char*>(uintptr_t(1) << 40) + taken;
  taken += bytes;
  return at;
}

struct Fresh {
  ScratchCache cache{take};
  int a = 0, b = 0;  // their addresses are the streams
  Fresh() { taken = calls = 0; }
};

}  // namespace

TEST_CASE("scratch memory is taken again on the stream that gave it back, and on no other") {
  Fresh f;
  void* const first = f.cache.take(1000, 0, &f.a);
  CHECK(f.cache.take(1000, 0, &f.a) != first);  // in use
  f.cache.give(first, &f.a);
  CHECK(f.cache.take(1000, 0, &f.b) != first);  // nothing orders the two streams
  CHECK(f.cache.take(900, 0, &f.a) == first);
  CHECK(calls == 3);
  f.cache.give(first, &f.a);
  CHECK(f.cache.take(900, 1, &f.a) != first);  // another GPU under the null stream
}

TEST_CASE("scratch memory does not grow once every size was there") {
  Fresh f;
  const auto step = [&] {
    void* const outer = f.cache.take(100 * kMiB, 0, &f.a);
    for (size_t mib : {32, 4, 7, 31}) {
      void* const workspace = f.cache.take(mib * kMiB, 0, &f.a);
      void* const small = f.cache.take(300, 0, &f.a);
      f.cache.give(small, &f.a);
      f.cache.give(workspace, &f.a);
    }
    f.cache.give(outer, &f.a);
  };
  step();
  const size_t all = 112 * kMiB + 32 * kMiB + 512;
  CHECK(taken == all);
  for (int i = 0; i < 10; ++i) step();
  CHECK(taken == all);
  for (size_t mib : {101, 105, 112}) f.cache.give(f.cache.take(mib * kMiB, 0, &f.a), &f.a);
  CHECK(taken == all);  // sizes that grow a little
}

TEST_CASE("small scratch memory leaves large blocks alone, and the smallest that fits is taken") {
  Fresh f;
  void* const large = f.cache.take(40 * kMiB, 0, &f.a);
  void* const largest = f.cache.take(60 * kMiB, 0, &f.a);
  f.cache.give(largest, &f.a);
  f.cache.give(large, &f.a);
  void* const small = f.cache.take(8, 0, &f.a);
  CHECK(small != large);
  CHECK(f.cache.take(39 * kMiB, 0, &f.a) == large);
  CHECK(f.cache.take(39 * kMiB, 0, &f.a) == largest);
  CHECK_THROWS(f.cache.take(2000 * kMiB, 0, &f.a));
  f.cache.give(small, &f.a);
  CHECK(f.cache.take(8, 0, &f.a) == small);  // as well as ever
}
