#include <catch2/catch.hpp>

#include <deque>
#include <optional>
#include <set>

#include "device/event_pool.h"

namespace device_event_pool_test {

using namespace mtrain::device;

namespace {

// A driver that counts the events of a pool.
struct Driver {
  int64_t made = 0, next = 0;
  std::set<int64_t> alive;
  EventPool<int64_t> pool{[this](bool) {
                            ++made;
                            return *alive.insert(next++).first;
                          },
                          [this](int64_t e) { CHECK(alive.erase(e) == 1); }};
};

}  // namespace

TEST_CASE("a stream that launches and records as before makes no new events") {
  Driver driver;
  // Two timed events a launch, which are known until eight launches later; and an edge to another
  // stream, which is known until the next.
  std::deque<std::pair<int64_t, int64_t>> timings;
  std::optional<int64_t> edge;
  const auto launch = [&] {
    const int64_t begin = driver.pool.take(true);
    const int64_t recorded = driver.pool.take(false);
    if (edge) driver.pool.give_back(*edge, false);
    edge = recorded;
    timings.push_back({begin, driver.pool.take(true)});
    if (timings.size() <= 8) return;
    driver.pool.give_back(timings.front().first, true);
    driver.pool.give_back(timings.front().second, true);
    timings.pop_front();
  };
  for (int i = 0; i < 20; ++i) launch();
  const int64_t steady = driver.made;
  CHECK(steady <= 2 * 9 + 2);
  for (int i = 0; i < 1000; ++i) launch();
  CHECK(driver.made == steady);
}

TEST_CASE("events that are in use are told apart, and kinds are not mixed") {
  Driver driver;
  const int64_t a = driver.pool.take(true), b = driver.pool.take(true), c = driver.pool.take(false);
  CHECK(std::set{a, b, c}.size() == 3);
  driver.pool.give_back(b, true);
  CHECK(driver.pool.take(false) != b);
  CHECK(driver.pool.take(true) == b);
  driver.pool.drop(a);
  CHECK(driver.alive.count(a) == 0);
  CHECK(driver.pool.take(true) != a);
}

TEST_CASE("a pool that ends destroys the events that it keeps") {
  std::set<int> alive;
  int next = 0;
  {
    EventPool<int> pool([&](bool) { return *alive.insert(next++).first; },
                        [&](int e) { alive.erase(e); });
    const int a = pool.take(true), b = pool.take(false);
    pool.give_back(a, true), pool.give_back(b, false);
    CHECK(alive.size() == 2);
  }
  CHECK(alive.empty());
}

}  // namespace device_event_pool_test
