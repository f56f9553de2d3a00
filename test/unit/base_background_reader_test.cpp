// Tests that nobody waits for a read that never ends.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "base/background_reader.h"

namespace base_background_reader_test {

using namespace mtrain;
using namespace std::chrono_literals;

TEST_CASE("a value is read when somebody asks, and the last one is kept while a read hangs") {
  struct Source {
    std::atomic<int> reads = 0;
    std::atomic<bool> hangs = false;
  };
  const auto source = std::make_shared<Source>();
  const auto began = std::chrono::steady_clock::now();
  {
    BackgroundReader<int> reader([source] {
      while (source->hangs) std::this_thread::sleep_for(5ms);
      return ++source->reads;
    });
    CHECK(source->reads == 0);
    CHECK(reader.get(10s)->value == 1);
    const auto second = reader.get(10s);
    CHECK(second->value == 2);
    CHECK(second->age < 1s);
    source->hangs = true;
    std::vector<std::thread> askers;
    std::atomic<int> right = 0;
    for (int i = 0; i < 8; ++i)
      askers.emplace_back([&] {
        const auto kept = reader.get(100ms);
        right += kept && kept->value == 2 && kept->age >= 100ms;
      });
    for (std::thread& asker : askers) asker.join();
    CHECK(right == 8);
  }
  CHECK(std::chrono::steady_clock::now() - began < 5s);  // the read still hangs
  source->hangs = false;
}

TEST_CASE("there is no value before the first read has ended") {
  const auto hangs = std::make_shared<std::atomic<bool>>(true);
  {
    BackgroundReader<int> reader([hangs] {
      while (*hangs) std::this_thread::sleep_for(5ms);
      return 1;
    });
    CHECK_FALSE(reader.get(20ms));
    *hangs = false;
    CHECK(reader.get(10s)->value == 1);
  }
  BackgroundReader<int> unused([] { return 1; });
}

}  // namespace base_background_reader_test
