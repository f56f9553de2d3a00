// Tests the report of a process that crashes.
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include <fcntl.h>

#include <catch2/catch.hpp>

#include "base/bus_errors.h"
#include "base/crashes.h"
#include "base/file.h"
#include "test/support/temporary_folder.h"

namespace base_crashes_test {

using namespace mtrain;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

// The handler of a child writes its text to this descriptor.
int g_report = -1;

// Runs `f` in a child process that reports crashes. Returns the report.
template <class F>
std::string report_of(const F& f, int signal) {
  const TemporaryFolder folder;
  const fs::path file = folder / "report", errors = folder / "errors";
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    if (!std::freopen(errors.c_str(), "w", stderr)) ::_exit(99);
    g_report = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    // Catch has handlers of its own, which would come next.
    for (const int s : {SIGSEGV, SIGBUS, SIGABRT}) std::signal(s, SIG_DFL);
    report_crashes([](const char* text) {
      [[maybe_unused]] const auto n = ::write(g_report, text, std::strlen(text));
    });
    name_bus_errors(nullptr);
    f();
    ::_exit(98);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == signal);
  std::string text = read_file(file);
  CHECK_THAT(read_file(errors), Contains("mtrain: error: " + text));
  CHECK_THAT(text, Contains("\n  at ") && Contains("test_unit_base+0x"));
  return text;
}

[[gnu::noinline]] int deeper(int n) {
  volatile char room[4096];
  room[n % 4096] = char(n);
  return n < 0 ? 0 : deeper(n + 1) + room[0];
}

}  // namespace

TEST_CASE("a crash is reported with its reason and its frames") {
  const std::string fault = report_of(
      [] {
        int* volatile nowhere = reinterpret_cast<int*>(uintptr_t{16});
        *nowhere = 1;
      },
      SIGSEGV);
  CHECK_THAT(fault, Catch::StartsWith("crashed by signal 11") && Contains("at address 0x10"));
  CHECK_THAT(report_of([] { std::abort(); }, SIGABRT), Catch::StartsWith("crashed by signal 6"));
  CHECK_THAT(report_of([] { ::raise(SIGBUS); }, SIGBUS), Contains("signal 7"));
  CHECK_THAT(report_of([] { ::kill(::getpid(), SIGSEGV); }, SIGSEGV), Contains("has sent"));
  CHECK_THAT(report_of([] { (void)deeper(0); }, SIGSEGV), Contains("signal 11"));
}

TEST_CASE("frames of a library that was loaded later have its name, too") {
  using Checksum = unsigned long (*)(unsigned long, const unsigned char*, unsigned);
  const std::string fault = report_of(
      [] {
        void* const library = ::dlopen("libz.so.1", RTLD_NOW);
        const auto checksum = reinterpret_cast<Checksum>(::dlsym(library, "crc32"));
        checksum(0, reinterpret_cast<const unsigned char*>(uintptr_t{16}), 1000);
      },
      SIGSEGV);
  CHECK_THAT(fault, Contains("libz.so") && !Contains("at 0x7"));
}

TEST_CASE("an exception that nothing catches is named") {
  const auto thrown = [](const auto& value) {
    return report_of([&] { std::thread([&] { throw value; }).join(); }, SIGABRT);
  };
  CHECK_THAT(thrown(std::runtime_error("the cable is loose")),
             Contains("std::terminate was called: nothing has caught the cable is loose"));
  CHECK_THAT(thrown(3), Contains("an exception of an unknown type"));
}

}  // namespace base_crashes_test
