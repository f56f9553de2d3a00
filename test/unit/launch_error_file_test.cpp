// Tests the file by which a rank tells the launcher why it failed.
#include <cstdlib>

#include <catch2/catch.hpp>

#include "launch/error_file.h"
#include "test/support/temporary_folder.h"

namespace launch_error_file_test {

using namespace mtrain;

TEST_CASE("a handler of signals writes the error file that the launcher reads") {
  const TemporaryFolder folder;
  const auto file = folder / "error.json";
  ::setenv("MTRAIN_ERROR_FILE", file.c_str(), 1);
  ::setenv("RANK", "3", 1);
  const launch::WriteErrorText write = launch::error_file_of_handlers();
  ::unsetenv("MTRAIN_ERROR_FILE");
  ::unsetenv("RANK");
  CHECK(launch::error_file_of_handlers() == nullptr);
  REQUIRE(write);
  write("cannot read \"a\\b\n\xff.bin\": it is short\n  hint: copy it");
  const auto error = launch::read_error_file(file);
  REQUIRE(error);
  CHECK(error->rank == 3);
  CHECK(error->kind == launch::ErrorKind::run);
  CHECK(error->message == "cannot read \"a\\b??.bin\": it is short");
  CHECK(error->hint == "copy it");
  write("a later error");
  CHECK(launch::read_error_file(file)->hint == "copy it");
}

TEST_CASE("a crash in a handler keeps its frames") {
  const TemporaryFolder folder;
  const auto file = folder / "error.json";
  ::setenv("MTRAIN_ERROR_FILE", file.c_str(), 1);
  const launch::WriteErrorText write = launch::error_file_of_handlers();
  ::unsetenv("MTRAIN_ERROR_FILE");
  std::string text =
      "crashed by signal 11 (Segmentation fault)\n  at /bin/\"x\"+0x12\n  at libc.so+0x3";
  for (int i = 0; i < 500; ++i) text += "\n  at " + std::string(100, 'm');
  write(text.c_str());
  const auto error = launch::read_error_file(file);
  REQUIRE(error);
  CHECK(error->kind == launch::ErrorKind::crash);
  CHECK(error->message == "crashed by signal 11 (Segmentation fault)");
  CHECK(error->hint.empty());
  REQUIRE(error->frames.size() > 10);
  CHECK(error->frames[0] == "/bin/\"x\"+0x12");
  CHECK(error->frames[1] == "libc.so+0x3");
}

}  // namespace launch_error_file_test
