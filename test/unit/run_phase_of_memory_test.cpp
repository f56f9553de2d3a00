// A rank that gets no memory says in which phase, and how much it has asked for.
#include <string>

#include <catch2/catch.hpp>

#include "run/phase_of_memory.h"

namespace run_phase_of_memory_test {

using namespace mtrain;
using namespace mtrain::run;

namespace {

struct Refused : std::bad_alloc {
  const char* what() const noexcept override { return "4096 bytes were refused"; }
};

template <class E>
std::string message_of(const Pulse& pulse, const E& error) {
  try {
    with_phase_of_memory(pulse, [&] { throw error; });
  } catch (const RunError& e) {
    return e.message();
  }
  return "no RunError";
}

}  // namespace

TEST_CASE("std::bad_alloc becomes an error that names the phase and the bytes") {
  Pulse pulse;
  pulse.set_last_step(100);
  pulse.at(PulsePhase::step, 12);
  CHECK(message_of(pulse, Refused()) == "out of memory in step 12 of 100: 4096 bytes were refused");
  CHECK(message_of(pulse, std::bad_alloc()) == "out of memory in step 12 of 100");
  pulse.at(PulsePhase::save, 12);
  CHECK(message_of(pulse, std::bad_alloc()) == "out of memory in save of step 12 of 100");
  const auto refused = std::make_error_code(std::errc::resource_unavailable_try_again);
  CHECK(message_of(pulse, std::system_error(refused)) ==
        "out of memory or threads in save of step 12 of 100: a thread was refused");
  CHECK_THROWS_AS(
      with_phase_of_memory(
          pulse, [] { throw std::system_error(std::make_error_code(std::errc::io_error)); }),
      std::system_error);
  CHECK_THROWS_AS(with_phase_of_memory(pulse, [] { throw UserError("x", "y"); }), UserError);
  int done = 0;
  with_phase_of_memory(pulse, [&] { ++done; });
  CHECK(done == 1);
}

}  // namespace run_phase_of_memory_test
