// Tests the memory for copies under way, with events that the test completes.
#include <catch2/catch.hpp>

#include "device/staging.h"

namespace device_staging_test {

using namespace mtrain;
using namespace mtrain::device;

namespace {

struct Copy : EventBackend {
  bool done = false;
  bool ready() const override { return done; }
  void wait() const override { FAIL("the host waits for a copy"); }
};

int64_t allocated = 0;
Staging make() {
  allocated = 0;
  return Staging([](int64_t bytes) {
    allocated += bytes;
    return std::make_shared<std::vector<char>>(size_t(bytes));
  });
}

}  // namespace

TEST_CASE("memory that a copy reads from is not given out again before the copy has passed") {
  Staging staging = make();
  const auto first = std::make_shared<Copy>();
  Staging::Slot* slot = staging.take(100000);
  void* const memory = slot->memory.get();
  slot->passed = first;
  slot = staging.take(100000);
  CHECK(slot->memory.get() != memory);
  slot->passed = std::make_shared<Copy>();
  first->done = true;
  CHECK(staging.take(100000)->memory.get() == memory);
  CHECK(allocated == 2 * 131072);
}

TEST_CASE("staging takes the smallest slot that has room, and no more memory than its limit") {
  Staging staging = make();
  Staging::Slot* large = staging.take(Staging::kMaxEach);
  REQUIRE(large);
  CHECK(large->bytes == Staging::kMaxEach);
  CHECK_FALSE(staging.take(Staging::kMaxEach + 1));
  void* const at = large->memory.get();
  const auto copy = std::make_shared<Copy>();
  large->passed = copy;
  void* const small = staging.take(8)->memory.get();
  CHECK(small != at);
  copy->done = true;
  CHECK(staging.take(8)->memory.get() == small);
  CHECK(staging.take(1000000)->memory.get() == at);
}

TEST_CASE("when all staging memory is being read from, the copy is not staged") {
  Staging staging = make();
  std::vector<std::shared_ptr<Copy>> copies;
  while (Staging::Slot* slot = staging.take(Staging::kMaxEach)) {
    copies.push_back(std::make_shared<Copy>());
    slot->passed = copies.back();
  }
  CHECK(int64_t(copies.size()) == Staging::kMaxInAll / Staging::kMaxEach);
  CHECK(allocated == Staging::kMaxInAll);
  CHECK_FALSE(staging.take(1));
  copies[1]->done = true;  // cannot happen: copies complete in their order
  CHECK_FALSE(staging.take(1));
  copies[0]->done = true;
  CHECK(staging.take(1));
}

}  // namespace device_staging_test
