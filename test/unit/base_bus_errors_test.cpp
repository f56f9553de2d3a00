// Tests that the error names a mapped file that becomes shorter.
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <catch2/catch.hpp>

#include "base/bus_errors.h"
#include "base/file.h"
#include "test/support/temporary_folder.h"

namespace base_bus_errors_test {

using namespace mtrain;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

// Runs `f` in a child process, whose stderr goes to a file. Returns how the child ended.
template <class F>
int in_child(const fs::path& errors, const F& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!std::freopen(errors.c_str(), "w", stderr)) ::_exit(99);
    f();
    ::_exit(98);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

int sum(std::span<const std::byte> bytes) {
  int all = 0;
  for (const std::byte b : bytes) all += int(b);
  return all;
}

}  // namespace

TEST_CASE("a mapped file that becomes shorter ends the process with its name") {
  const TemporaryFolder folder;
  const fs::path errors = folder / "errors";
  write_file_atomic(folder / "first", std::string(100000, 'x'));
  write_file_atomic(folder / "second", std::string(100000, 'y'));
  int status = in_child(errors, [&] {
    name_bus_errors(nullptr);
    { const MappedFile closed(folder / "first"); }  // its entry is used again
    const MappedFile first(folder / "first");
    const MappedFile second(folder / "second");
    fs::resize_file(folder / "second", 10);
    volatile const int before = sum(first.bytes());
    volatile const int after = before + sum(second.bytes());
    (void)after;
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 1);
  CHECK_THAT(read_file(errors), Contains("cannot read " + (folder / "second").string() +
                                         ": the file has become shorter"));
  // Other faults are not hidden.
  status = in_child(errors, [&] {
    name_bus_errors(nullptr);
    const MappedFile first(folder / "first");
    ::raise(SIGBUS);
    ::raise(SIGBUS);
  });
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGBUS);
}

}  // namespace base_bus_errors_test
