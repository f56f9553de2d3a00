// Tests which temporary folders of checkpoints are removed: those that nobody writes any more.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "base/disk_space.h"
#include "base/error.h"
#include "base/file.h"
#include "storage/checkpoint_dir.h"
#include "storage/folder_lease.h"
#include "storage/free_space.h"
#include "storage/probe_file.h"
#include "storage/temporary_checkpoint.h"
#include "test/support/temporary_folder.h"

namespace storage_temporary_test {

using namespace mtrain;
using namespace mtrain::storage;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

void make_old(const fs::path& folder, std::chrono::seconds age) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  now.tv_sec -= age.count();
  const timespec times[2] = {now, now};
  REQUIRE(::utimensat(AT_FDCWD, folder.c_str(), times, 0) == 0);
}

std::set<std::string> stale_in(const fs::path& root, const SavingJob& job) {
  std::set<std::string> names;
  for (const fs::path& folder : stale_temporaries(root, job)) names.insert(folder.filename());
  return names;
}

}  // namespace

TEST_CASE("a temporary folder is named by process, host, job and attempt") {
  const std::string owner = fmt::format("{}-{}", ::getpid(), host_name());
  CHECK(temporary_checkpoint("r", 5, {}).string() == "r/step-00000005.tmp-" + owner);
  CHECK(temporary_checkpoint("r", 5, {"a/b c+1", 3}, kReplaced).string() ==
        "r/step-00000005.tmp-" + owner + "+a_b_c_1+3.old");
  for (const char* name : {"step-00000005.tmp-7-host", "step-00000005.tmp-7-host.old",
                           "step-00000005.tmp-7-my-host+job+0", "step-00000005.tmp-7-h+job+2.old"})
    CHECK(is_temporary_checkpoint(name));
  for (const char* name : {"step-00000005", "step-5.tmp-7-host", "step-00000005.tmp-x-host",
                           "step-00000005.damaged", "x.tmp-7-host", "step-00000005.tmp-"})
    CHECK_FALSE(is_temporary_checkpoint(name));
}

TEST_CASE("leftovers go: of dead processes and earlier attempts at once, of others after 10 min") {
  const TemporaryFolder folder;
  const std::string here = host_name();
  const int64_t dead = 999'999'999, alive = ::getppid();
  struct Row {
    std::string owner;
    std::chrono::seconds age;
    bool stale;
  };
  using std::chrono::seconds;
  const std::vector<Row> rows{
      {fmt::format("{}-{}", dead, here), seconds(0), true},
      {fmt::format("{}-{}+mine+1", dead, here), seconds(0), true},
      {fmt::format("{}-{}", alive, here), seconds(0), false},
      {fmt::format("{}-{}", alive, here), seconds(1000), true},  // another process has the id now
      {"7-elsewhere", seconds(0), false},
      {"7-elsewhere", seconds(590), false},
      {"7-elsewhere", seconds(610), true},
      {"7-elsewhere+other+0", seconds(590), false},
      {"7-elsewhere+other+9", seconds(610), true},
      {"7-elsewhere+mine+0", seconds(0), true},  // an earlier attempt of this job
      {"7-elsewhere+mine+1", seconds(0), true},
      {"7-elsewhere+mine+2", seconds(0), false},  // this attempt, or a later one
      {"7-elsewhere+mine+3", seconds(0), false},
      {"7-elsewhere+mine+3", seconds(610), true}};
  for (const Row& row : rows) {
    INFO(row.owner << ", " << row.age.count() << " s old");
    const std::string name = "step-00000050.tmp-" + row.owner;
    fs::create_directory(folder / name);
    make_old(folder / name, row.age);
    CHECK(stale_in(folder.path, {"mine", 2}) ==
          (row.stale ? std::set<std::string>{name} : std::set<std::string>{}));
    fs::remove(folder / name);
  }
  // Nothing else is touched, however old.
  for (const char* name :
       {"step-00000050", "step-00000050.damaged", "notes", "step-00000050.mine"}) {
    fs::create_directory(folder / name);
    make_old(folder / name, seconds(100'000));
  }
  CHECK(stale_in(folder.path, {"mine", 2}).empty());
}

TEST_CASE("a lease renews the time of its folder, and ends with its object") {
  const TemporaryFolder folder;
  const fs::path held = folder / "held";
  fs::create_directory(held);
  {
    const FolderLease lease(held, std::chrono::milliseconds(20));
    make_old(held, std::chrono::seconds(5000));
    for (int i = 0; i < 500 && age_of(held) > std::chrono::seconds(100); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(age_of(held) < std::chrono::seconds(100));
  }
  make_old(held, std::chrono::seconds(5000));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(age_of(held) > std::chrono::seconds(4000));
}

TEST_CASE("space is asked for before a checkpoint is written, and both numbers are named") {
  const TemporaryFolder folder;
  const int64_t free = free_disk_bytes(folder.path);
  REQUIRE(free > 0);
  require_space(folder.path, free / 2);
  CHECK_THROWS_WITH(require_space(folder.path, int64_t{1} << 60),
                    Contains(" of free space, and a checkpoint needs 1034 PiB"));
  CHECK_THROWS_AS(require_space(folder.path, int64_t{1} << 60), RunError);
  CHECK_THROWS_AS(require_space(folder.path, free), RunError);  // the reserve does not fit
  require_space(folder / "nowhere", int64_t{1} << 60);          // unknown: the write will tell
}

TEST_CASE("a probe is seen where its folder is, and removed with its object") {
  const TemporaryFolder folder;
  std::string name, content;
  {
    const ProbeFile probe(folder.path), second(folder.path);
    name = probe.name(), content = probe.content();
    CHECK(name != second.name());
    CHECK(sees_probe(folder.path, name, content, std::chrono::milliseconds(0)));
    CHECK_FALSE(sees_probe(folder.path, name, second.content(), std::chrono::milliseconds(0)));
    CHECK_FALSE(sees_probe(folder / "other", name, content, std::chrono::milliseconds(250)));
  }
  CHECK(fs::is_empty(folder.path));
  // A file that shows late is waited for.
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    write_file_atomic(folder / name, content);
  });
  CHECK(sees_probe(folder.path, name, content, std::chrono::seconds(20)));
  late.join();
  // A killed process leaves its probe; it goes after 10 minutes.
  { const ProbeFile probe(folder.path); }
  CHECK(fs::exists(folder / name));
  make_old(folder / name, std::chrono::seconds(700));
  { const ProbeFile probe(folder.path); }
  CHECK_FALSE(fs::exists(folder / name));
}

}  // namespace storage_temporary_test
