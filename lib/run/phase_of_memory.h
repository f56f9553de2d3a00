// Names what a rank did when the host had no memory for it.
#pragma once
#include <new>
#include <string_view>
#include <system_error>

#include <fmt/core.h>

#include "base/error.h"
#include "base/pulse.h"

namespace mtrain::run {

// Does `work`. If that throws std::bad_alloc, or cannot begin a thread, throws a RunError with the
// phase of the pulse instead: "out of memory in step 12 of 100: 4096 bytes were refused".
template <class F>
void with_phase_of_memory(const Pulse& pulse, const F& work) {
  try {
    work();
  } catch (const std::bad_alloc& e) {
    // The program's own operator new says how much was asked for (apps/mtrain/host_memory.cpp).
    const std::string_view what = e.what();
    throw RunError(
        fmt::format("out of memory in {}{}{}", phase_text(pulse.state()),
                    what == "std::bad_alloc" ? "" : ": ", what == "std::bad_alloc" ? "" : what),
        "end other processes on this host, or start fewer ranks there");
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::resource_unavailable_try_again) throw;
    throw RunError(fmt::format("out of memory or threads in {}: a thread was refused",
                               phase_text(pulse.state())),
                   "end other processes on this host, or raise the limits of this user (ulimit -u, "
                   "-v)");
  }
}

}  // namespace mtrain::run
