// Tests when a launcher reports that its ranks hang.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include <catch2/catch.hpp>

#include "base/pulse.h"
#include "launch/rank_pulses.h"

namespace launch_rank_pulses_test {

using namespace mtrain;
using namespace mtrain::launch;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;

namespace {

// A rank that has begun to start and makes no progress. `uninterruptible`: it waits as for a disk.
pid_t start_rank(RankPulses& pulses, bool uninterruptible) {
  const int page = pulses.add(0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setenv(Pulse::kVariable, std::to_string(page).c_str(), 1);
    const auto pulse = Pulse::of_process(0);
    pulse->set_limits({.start_s = 5});
    pulse->at(PulsePhase::start, 0);
    // The parent of a vfork() is not interruptible until the child ends.
    if (uninterruptible && ::vfork() == 0) {  // NOLINT: what a disk does cannot be had otherwise
      ::pause();
      ::_exit(0);
    }
    ::pause();
    ::_exit(0);
  }
  pulses.started(0, pid);
  while (pulses.state(0).phase != PulsePhase::start) std::this_thread::sleep_for(1ms);
  return pid;
}

char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name = line.rfind(')');
  return name == std::string::npos ? '?' : line[name + 2];
}

// Kills the rank, and the child that keeps it in its state.
void end_rank(pid_t pid) {
  std::ifstream children("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) +
                         "/children");
  for (pid_t child; children >> child;) ::kill(child, SIGKILL);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

// Looks once for each second of a simulated time, and returns when something hangs.
int seconds_until_hang(RankPulses& pulses, int most, Hang& hang) {
  auto now = RankPulses::Clock::now();
  for (int s = 0; s <= most; ++s, now += 1s)
    if (auto found = pulses.look(now)) {
      hang = std::move(*found);
      return s;
    }
  return -1;
}

}  // namespace

TEST_CASE("a step that was skipped as a spike is reported once") {
  RankPulses pulses;
  CHECK_FALSE(pulses.new_spike());
  const int page = ::dup(pulses.add(0));
  ::setenv(Pulse::kVariable, std::to_string(page).c_str(), 1);
  const auto pulse = Pulse::of_process(0);
  ::unsetenv(Pulse::kVariable);
  CHECK_FALSE(pulses.new_spike());
  for (const int64_t step : {30, 31}) {
    pulse->set_spike(step);
    CHECK(pulses.state(0).spike_step == step);
    CHECK(pulses.new_spike() == step);
    CHECK_FALSE(pulses.new_spike());
  }
}

TEST_CASE("a rank that is too slow is reported once, and again if it is named again") {
  RankPulses pulses;
  CHECK_FALSE(pulses.new_straggler());
  const int page = ::dup(pulses.add(0));
  ::setenv(Pulse::kVariable, std::to_string(page).c_str(), 1);
  const auto pulse = Pulse::of_process(0);
  ::unsetenv(Pulse::kVariable);
  CHECK_FALSE(pulses.new_straggler());
  struct Row {
    int rank;
    int64_t step;
  };
  for (const auto& [rank, step] :
       {Row{0, 100}, Row{0, 300}, Row{5, 350}, Row{(1 << 24) - 1, int64_t{1} << 38}}) {
    pulse->set_straggler(rank, step);
    CHECK(pulses.new_straggler() == rank);
    CHECK_FALSE(pulses.new_straggler());
  }
}

TEST_CASE("a rank hangs after its limit, but one that waits for files after ten minutes") {
  for (const bool files : {false, true}) {
    CAPTURE(files);
    RankPulses pulses;
    const pid_t pid = start_rank(pulses, files);
    for (int i = 0; i < 2000 && state_of(pid) != (files ? 'D' : 'S'); ++i)
      std::this_thread::sleep_for(1ms);
    REQUIRE(state_of(pid) == (files ? 'D' : 'S'));
    Hang hang;
    const int seconds = seconds_until_hang(pulses, 700, hang);
    end_rank(pid);
    if (files) {
      CHECK((seconds > 600 && seconds < 610));
      CHECK_THAT(hang.hint, Contains("waits for a disk or a file server"));
      CHECK_THAT(hang.message, Contains("without progress for 60"));
    } else {
      CHECK(seconds == 6);
      CHECK_THAT(hang.message, Contains("rank 0 on") && Contains("hangs: start"));
    }
    CHECK(hang.culprit == 0);
  }
}

}  // namespace launch_rank_pulses_test
