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

}  // namespace launch_error_file_test
