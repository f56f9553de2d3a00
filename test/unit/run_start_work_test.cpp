// Ranks that are done with the work of a start wait for those that still make progress.
#include <chrono>
#include <thread>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "comm/thread/thread_transport.h"
#include "run/start_work.h"

namespace run_start_work_test {

using namespace mtrain;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST_CASE("ranks that are done wait longer than their timeout for one that makes progress") {
  const auto began = Clock::now();
  comm::run_thread_ranks(3, [&](comm::World& world) {
    const auto pulse = Pulse::make(world.rank());
    pulse->at(PulsePhase::start, 0);
    const uint64_t before = pulse->glance().work;
    run::StartWork work(world, *pulse, 500ms);
    if (world.rank() == 1)
      while (Clock::now() - began < 2s) {
        work.progress();
        std::this_thread::sleep_for(5ms);
      }
    int64_t most = 0;
    work.await_all([&](int64_t working) { most = std::max(most, working); });
    // Catch2's assertions are for one thread.
    if (Clock::now() - began < 2s) throw BugError("a rank did not wait");
    if (world.rank() == 0 && most < 1) throw BugError("nobody was waited for");
    if (pulse->glance().work == before) throw BugError("the launcher sees no progress");
  });
  CHECK(Clock::now() - began >= 2s);
}

TEST_CASE("ranks give up if none of those that still work makes progress") {
  const auto wait = [&](comm::World& world) {
    const auto pulse = Pulse::make(world.rank());
    run::StartWork work(world, *pulse, 300ms);
    if (world.rank() == 1) std::this_thread::sleep_for(1s);
    work.await_all([](int64_t) {});
  };
  CHECK_THROWS_WITH(comm::run_thread_ranks(3, wait),
                    Catch::Contains("1 of 3 ranks") && Catch::Contains("no progress for 0.3 s"));
}

TEST_CASE("a rank that fails in its own work ends the others at once, waiting or not") {
  for (const int failing : {0, 2}) {
    const auto began = Clock::now();
    const auto work_until_failure = [&](comm::World& world) {
      const auto pulse = Pulse::make(world.rank());
      run::StartWork work(world, *pulse, 30s);
      if (world.rank() == failing) throw UserError("row 7 is broken");
      try {
        while (world.rank() == 1) {
          work.progress();
          std::this_thread::sleep_for(5ms);
        }
        work.await_all([](int64_t) {});
      } catch (const CommError& e) {
        if (e.message() != "it has failed") throw;
      }
    };
    CHECK_THROWS_WITH(comm::run_thread_ranks(3, work_until_failure),
                      Catch::Contains("row 7 is broken"));
    CHECK(Clock::now() - began < 20s);
  }
}

TEST_CASE("a rank alone waits for nobody") {
  comm::World world = comm::World::alone();
  const auto pulse = Pulse::make(0);
  run::StartWork work(world, *pulse, 1s);
  work.progress();
  work.await_all([](int64_t) { FAIL("a rank alone waits"); });
}

}  // namespace run_start_work_test
