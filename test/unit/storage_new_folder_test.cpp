#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <set>
#include <string>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "storage/new_folder.h"
#include "test/support/temporary_folder.h"

namespace storage_new_folder_test {

using namespace mtrain;
using namespace mtrain::storage;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

std::set<fs::path>* synced = nullptr;  // the paths of fsync() calls; null: not recorded

}  // namespace

// Replaces the C library's function.
extern "C" int fsync(int fd) {
  std::error_code ignored;
  if (synced) synced->insert(fs::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored));
  return int(::syscall(SYS_fsync, fd));
}

namespace {

std::string* kept = nullptr;  // the name of a file that cannot be removed; null: there is none

}  // namespace

// Replaces the C library's function, by which the C++ library removes folders.
extern "C" int unlinkat(int folder, const char* name, int flags) noexcept {
  if (kept && *kept == name) {
    errno = EBUSY;
    return -1;
  }
  return int(::syscall(SYS_unlinkat, folder, name, flags));
}

namespace {

size_t entries_of(const fs::path& folder) {
  return size_t(std::distance(fs::directory_iterator(folder), {}));
}

}  // namespace

TEST_CASE("a new folder appears whole, with its parents, or leaves nothing") {
  const TemporaryFolder temporary;
  const fs::path out = temporary / "a" / "out";
  {
    NewFolder folder(out);
    write_file_atomic(folder.path() / "file", "text");
    CHECK_FALSE(fs::exists(out));
  }
  CHECK(entries_of(temporary / "a") == 0);
  NewFolder folder(out / "");  // with the slash of a completing shell
  fs::create_directory(folder.path() / "inner");
  std::ofstream(folder.path() / "inner" / "file") << "text";
  folder.commit();
  CHECK(read_file(out / "inner" / "file") == "text");
  CHECK(entries_of(temporary / "a") == 1);
}

TEST_CASE("the names of the folders above a new one are durable, too") {
  const TemporaryFolder temporary;
  const fs::path root = fs::canonical(temporary.path);
  fs::create_directory(root / "old");
  std::set<fs::path> paths;
  synced = &paths;
  NewFolder folder(root / "old" / "a" / "b" / "out");
  folder.commit();
  synced = nullptr;
  for (const fs::path& holder : {root / "old", root / "old" / "a", root / "old" / "a" / "b"}) {
    INFO(holder);
    CHECK(paths.contains(holder));
  }
  CHECK_FALSE(paths.contains(root));  // no folder was made there
}

TEST_CASE("an existing folder stays, even if it appears while the new one is written") {
  const TemporaryFolder temporary;
  const fs::path out = temporary / "out";
  fs::create_directory(out);
  {
    NewFolder over_empty(out);
    std::ofstream(out / "theirs") << "x";
    CHECK_THROWS_AS(over_empty.commit(), RunError);
  }
  CHECK(read_file(out / "theirs") == "x");
  CHECK_THROWS_WITH(NewFolder(out), Contains("exists already") && Contains("new folder"));
  CHECK_THROWS_WITH(NewFolder(out / "theirs"), Contains("exists already"));
  fs::create_directory(temporary / "empty");
  fs::create_directory_symlink(temporary / "empty", temporary / "link");
  CHECK_THROWS_WITH(NewFolder(temporary / "link"), Contains("exists already"));
  fs::create_symlink(temporary / "nowhere", temporary / "broken");
  CHECK_THROWS_WITH(NewFolder(temporary / "broken"), Contains("exists already"));
  NewFolder over_empty(temporary / "empty");
  over_empty.commit();
  CHECK(entries_of(temporary.path) == 4);
}

TEST_CASE("leftovers of a killed process of this host are removed, and nothing else") {
  const TemporaryFolder temporary;
  const fs::path out = temporary / "out";
  const pid_t child = ::fork();
  if (child == 0) {
    const NewFolder folder(out);
    std::ofstream(folder.path() / "file") << "half";
    ::raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK_FALSE(fs::exists(out));
  CHECK(entries_of(temporary.path) == 1);
  const std::string alive = fmt::format("out.tmp-{}-{}", ::getppid(), host_name()),
                    elsewhere = fmt::format("out.tmp-{}-{}x", 999'999'999, host_name());
  fs::create_directory(temporary / alive);
  fs::create_directory(temporary / elsewhere);
  NewFolder folder(out);
  folder.commit();
  CHECK(entries_of(temporary.path) == 3);
  CHECK((fs::exists(temporary / alive) && fs::exists(temporary / elsewhere)));
}

TEST_CASE("what cannot be removed does not get the name of a new folder") {
  const TemporaryFolder temporary;
  const fs::path out = temporary / "out";
  std::string busy = "busy";
  fs::path left;
  {
    NewFolder folder(out);
    left = folder.path();
    std::ofstream(left / busy) << "a part";
    kept = &busy;
  }
  CHECK(fs::exists(left / busy));
  CHECK_THROWS_WITH(NewFolder(out), Contains("cannot create") && Contains(left.string()));
  CHECK_FALSE(fs::exists(out));
  kept = nullptr;
  NewFolder folder(out);
  folder.commit();
  CHECK(fs::is_empty(out));
  CHECK(entries_of(temporary.path) == 1);
}

}  // namespace storage_new_folder_test
