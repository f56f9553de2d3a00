// Tests the page in which a rank shows what it does.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <utility>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "base/pulse.h"
#include "test/support/temporary_folder.h"

namespace base_pulse_test {

using namespace mtrain;
using Catch::Contains;

namespace {

std::string path_of(const Pulse& pulse) {
  return "/proc/self/fd/" + std::to_string(pulse.descriptor());
}

}  // namespace

TEST_CASE("a rank whose page cannot be shared has a private one, and knows why") {
  rlimit before{}, none{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  none = before;
  none.rlim_cur = 0;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto pulse = Pulse::make(3);
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(pulse->descriptor() == -1);
  CHECK(pulse->error() == EMFILE);
  pulse->at(PulsePhase::step, 12);
  CHECK(pulse->state().step == 12);
  CHECK(Pulse::make(3)->error() == 0);
}

TEST_CASE("another process reads what a rank shows, also after the rank was killed") {
  const auto pulse = Pulse::make(3);
  REQUIRE(pulse->descriptor() >= 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(Pulse::kVariable, std::to_string(pulse->descriptor()).c_str(), 1);
    const auto own = Pulse::of_process(3);
    own->set_last_step(100);
    own->name_stream(0, "compute", false);
    own->name_stream(1, "dp_grad", true);
    own->at(PulsePhase::step, 12);
    own->step_done(0.5);
    own->set_memory(10, 20);
    own->launch(0, 1, "embedding");
    own->launch(1, 1, "a_name_that_is_longer_than_the_page_has_room_for");
    own->set_done(0, 1);
    ::raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  const PulseState s = pulse->state();
  CHECK(s.rank == 3);
  CHECK(s.pid == child);
  CHECK(s.phase == PulsePhase::step);
  CHECK(phase_text(s) == "step 12 of 100");
  CHECK(s.updates == 1);
  CHECK(s.median_step_s == 0.5);
  CHECK(s.memory_peak == 20);
  CHECK(s.launches == 2);
  REQUIRE(s.last.size() == 2);
  CHECK(s.last[0].name == "embedding");
  CHECK(s.last[0].done);
  REQUIRE(s.current());
  CHECK(s.current() == &s.last[1]);
  CHECK(s.stream_of(s.last[1]).communicates);
  CHECK(s.current()->name.starts_with("a_name_that_is_longer"));
  CHECK_THAT(launch_lines(s, 1).at(0), Contains("dp_grad #1") && Contains("pending"));
  CHECK_THAT(current_text(s), Contains("item 1 of stream dp_grad, pending"));
}

TEST_CASE("a step that has begun is not the last one that is done") {
  Pulse pulse;
  const auto done = [&] { return pulse.glance().done_step; };
  pulse.at(PulsePhase::start, 0);
  CHECK(done() == 0);
  pulse.at(PulsePhase::step, 8);  // the run continues after step 7
  CHECK(done() == 7);
  pulse.step_done(0.1);
  CHECK(done() == 8);
  for (const PulsePhase phase : {PulsePhase::step, PulsePhase::evaluation, PulsePhase::save}) {
    pulse.at(phase, 8);
    CHECK(done() == 8);
  }
  pulse.at(PulsePhase::step, 9);
  CHECK(done() == 8);
  CHECK(pulse.state().done_step == 8);
}

TEST_CASE("a page keeps the last launches") {
  Pulse pulse;
  pulse.name_stream(0, "compute", false);
  for (uint64_t i = 1; i <= 1000; ++i) pulse.launch(0, i, "many");
  const PulseState s = pulse.state();
  REQUIRE(s.last.size() == size_t(Pulse::kLaunches));
  CHECK(s.last.front().number == 1001 - uint64_t(Pulse::kLaunches));
  CHECK(s.last.back().number == 1000);
  CHECK(s.launches == 1000);
  CHECK(launch_lines(s, 3).size() == 3);
  CHECK(launch_lines(s, 0).empty());
}

TEST_CASE("a reader never sees a launch that is half written") {
  Pulse pulse;
  pulse.name_stream(0, "compute", false);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    // The name shows the parity of the number.
    for (uint64_t i = 1; !stop; ++i)
      pulse.launch(0, i, i % 2 ? "odd_odd_odd_odd" : "even_even_even");
  });
  int64_t seen = 0, wrong = 0;
  for (int i = 0; i < 300 || seen < 300; ++i)
    for (const PulseState::Launch& l : pulse.state().last) {
      ++seen;
      wrong += l.name != (l.number % 2 ? "odd_odd_odd_odd" : "even_even_even");
    }
  stop = true;
  writer.join();
  CHECK(wrong == 0);
}

TEST_CASE("each phase has its limit, and the one of a step follows the median") {
  Pulse pulse;
  const auto limit = [&](PulsePhase phase) {
    const uint64_t before = pulse.state().progress;
    pulse.at(phase, 1);
    CHECK(pulse.state().progress != before);
    return pulse.state().limit_s;
  };
  CHECK(limit(PulsePhase::step) == 0);  // without limits
  pulse.set_limits({.start_s = 1800, .save_s = 600, .step_s = std::nullopt});
  CHECK(limit(PulsePhase::start) == 1800);
  CHECK(limit(PulsePhase::step) == 1800);  // the first steps are slow
  for (int i = 0; i < 2; ++i) pulse.step_done(0.1);
  CHECK(limit(PulsePhase::step) == 30);
  for (int i = 0; i < 5; ++i) pulse.step_done(7);
  pulse.step_done(1000);  // one slow step changes nothing
  CHECK(limit(PulsePhase::step) == 70);
  CHECK(limit(PulsePhase::evaluation) == 70);
  CHECK(limit(PulsePhase::save) == 600);
  CHECK(limit(PulsePhase::end) == 600);
  CHECK(limit(PulsePhase::none) == 0);
  pulse.set_limits({.start_s = 0, .save_s = 0, .step_s = 2});
  CHECK(limit(PulsePhase::step) == 2);
  CHECK(limit(PulsePhase::save) == 0);
}

TEST_CASE("work is what a rank enqueues, finishes and writes, but not what it does to wait") {
  Pulse pulse;
  pulse.name_stream(0, "compute", false);
  pulse.name_stream(1, "control", true);
  uint64_t before = pulse.glance().work;
  const auto works = [&] { return std::exchange(before, pulse.glance().work) != before; };
  pulse.launch(0, 1, "gemm");
  CHECK(works());
  pulse.set_done(0, 1);
  CHECK(works());
  pulse.wrote();
  CHECK(works());
  pulse.launch(1, 1, "all_reduce");
  pulse.set_done(1, 1);
  CHECK_FALSE(works());
  pulse.at(PulsePhase::step, 1);
  CHECK(pulse.glance().in_slow_step);
  pulse.step_done(0.1);
  pulse.step_done(0.1);
  CHECK_FALSE(pulse.glance().in_slow_step);
}

TEST_CASE("what is no page of this rank is not read, and not written") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "file", std::string(100000, 'x'));
  CHECK_FALSE(Pulse::read(folder / "file"));
  CHECK_FALSE(Pulse::read(folder / "nothing"));
  CHECK_FALSE(Pulse::read("/dev/zero"));
  const auto pulse = Pulse::make(1);
  REQUIRE(Pulse::read(path_of(*pulse)));
  CHECK(Pulse::read(path_of(*pulse))->rank == 1);
  CHECK(::ftruncate(pulse->descriptor(), 1) != 0);
  for (const std::string& text : {std::string("x"), std::string("0"), std::string("-1"),
                                  std::string("99999"), std::to_string(pulse->descriptor())}) {
    CAPTURE(text);
    ::setenv(Pulse::kVariable, text.c_str(), 1);
    const auto own = Pulse::of_process(2);  // the page is that of rank 1
    CHECK(own->descriptor() != pulse->descriptor());
    CHECK(own->state().rank == 2);
  }
  ::unsetenv(Pulse::kVariable);
  CHECK(pulse->state().pid == 0);
}

}  // namespace base_pulse_test
