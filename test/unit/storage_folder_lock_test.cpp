// Tests that a folder has one owner at a time, with locks and with leases.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "storage/folder_lock.h"
#include "test/support/temporary_folder.h"

namespace storage_folder_lock_test {

using namespace mtrain;
using namespace std::chrono_literals;
using Catch::Contains;
using storage::FolderLock;
using storage::FolderLockOptions;
namespace fs = std::filesystem;

namespace {

std::string refusal(const fs::path& folder, const FolderLockOptions& options) {
  try {
    const FolderLock lock(folder, options);
  } catch (const UserError& e) {
    return e.what();
  }
  return "none";
}

void set_age(const fs::path& file, std::chrono::seconds age) {
  fs::last_write_time(file, fs::file_time_type::clock::now() - age);
}

// Writes the file of a lease that a process of another host holds.
void write_lease(const fs::path& folder, const std::string& job, int attempt) {
  std::ofstream(folder / ".lock") << "kind lease\nhost elsewhere\npid 77\npids pid:[1]\nstarted "
                                     "2026-01-02T03:04:05Z\njob "
                                  << job << "\nattempt " << attempt << "\n";
}

}  // namespace

TEST_CASE("a second owner of a folder is refused with the name of the first") {
  const TemporaryFolder folder;
  for (const bool first : {false, true})
    for (const bool second : {false, true}) {
      CAPTURE(first, second);
      {
        const FolderLock lock(folder / "run", {.job = "j17", .attempt = 2, .lease = first});
        CHECK(lock.is_lease() == first);
        CHECK_THAT(
            refusal(folder / "run", {.job = "other", .setting = "the.setting", .lease = second}),
            Contains((folder / "run").string() + " is in use by process " +
                     std::to_string(::getpid()) + " on " + host_name() + " since 20") &&
                Contains("(job j17, attempt 2)") && Contains("with the.setting=<folder>"));
        CHECK(fs::exists(folder / "run" / ".lock"));
      }
      CHECK_FALSE(fs::exists(folder / "run"));  // made for the lock, and empty
      CHECK(refusal(folder / "run", {.lease = second}) == "none");
    }
}

TEST_CASE("whether a folder is held can be asked without taking it") {
  const TemporaryFolder folder;
  CHECK_FALSE(storage::is_folder_held(folder / "nowhere"));
  for (const bool lease : {false, true}) {
    {
      FolderLock lock(folder / "run", {.lease = lease});
      CHECK(storage::is_folder_held(folder / "run"));
      lock.require_held();
      CHECK(refusal(folder / "run", {}) != "none");
    }
    CHECK_FALSE(storage::is_folder_held(folder / "run"));
  }
  // The files that killed runs leave.
  std::ofstream(folder / ".lock") << "kind lock\nhost elsewhere\npid 77\n";
  CHECK_FALSE(storage::is_folder_held(folder.path));
  write_lease(folder.path, "j", 0);
  CHECK(storage::is_folder_held(folder.path));
  set_age(folder / ".lock", 61s);
  CHECK_FALSE(storage::is_folder_held(folder.path));
}

TEST_CASE("an owner that is just starting is named once it has said who it is") {
  const TemporaryFolder folder;
  std::ofstream(folder / ".lock").close();
  std::thread owner([&] {
    std::this_thread::sleep_for(100ms);
    write_lease(folder.path, "j", 0);
  });
  CHECK_THAT(refusal(folder.path, {.lease = true}), Contains("process 77 on elsewhere"));
  owner.join();
}

TEST_CASE("of many starts at once one gets the folder") {
  const TemporaryFolder folder;
  for (const bool lease : {false, true}) {
    std::atomic<int> owners = 0, refused = 0;
    std::vector<std::thread> starts;
    for (int i = 0; i < 16; ++i)
      starts.emplace_back([&] {
        try {
          const FolderLock lock(folder / "run", {.lease = lease});
          ++owners;
          while (owners + refused < 16) std::this_thread::sleep_for(1ms);
        } catch (const UserError&) {
          ++refused;
        }
      });
    for (std::thread& start : starts) start.join();
    CHECK(owners == 1);
  }
}

TEST_CASE("a folder that has files keeps them, and only loses the lock's file") {
  const TemporaryFolder folder;
  {
    const FolderLock lock(folder / "run", {});
    std::ofstream(folder / "run" / "metrics.jsonl") << "{}\n";
  }
  CHECK(fs::exists(folder / "run" / "metrics.jsonl"));
  CHECK_FALSE(fs::exists(folder / "run" / ".lock"));
}

TEST_CASE("the next attempt of a job waits until the earlier one has ended") {
  const TemporaryFolder folder;
  for (const bool lease : {false, true}) {
    auto first = std::make_unique<FolderLock>(
        folder.path, FolderLockOptions{.job = "j", .lease = lease, .renew = 10ms});
    CHECK_THAT(refusal(folder.path,
                       {.job = "j", .attempt = 1, .lease = lease, .renew = 10ms, .wait = 150ms}),
               Contains("(job j, attempt 0)"));
    std::thread end([&] {
      std::this_thread::sleep_for(150ms);
      first.reset();
    });
    std::string message;
    const auto waiting = [&](const std::string& text) { message = text; };
    CHECK(refusal(folder.path, {.job = "j", .attempt = 1, .lease = lease, .waiting = waiting}) ==
          "none");
    CHECK_THAT(message, Contains("waiting for " + folder.path.string() + ", which is in use by"));
    end.join();
  }
}

TEST_CASE("a lease is taken over when its owner is gone, and not before") {
  const TemporaryFolder folder;
  const fs::path file = folder / ".lock";
  const FolderLockOptions lease{.job = "j", .attempt = 1, .lease = true, .wait = 1s};
  write_lease(folder.path, "other", 0);
  CHECK_THAT(refusal(folder.path, lease), Contains("process 77 on elsewhere since 2026-01-02"));
  CHECK_THAT(refusal(folder.path, {}), Contains("process 77 on elsewhere"));  // one with locks
  set_age(file, 599s);
  CHECK_THAT(refusal(folder.path, lease),
             Contains("becomes stale 600 s after") && Contains("if elsewhere is gone, remove"));
  set_age(file, 601s);
  CHECK(refusal(folder.path, lease) == "none");
  write_lease(folder.path, "other", 0);
  set_age(file, 601s);
  CHECK(refusal(folder.path, {}) == "none");
  // An earlier attempt of the same job was ended by its launcher: it only has to stop renewing.
  write_lease(folder.path, "j", 0);
  set_age(file, 2s);
  CHECK(refusal(folder.path, lease) == "none");
  // A file without text belongs to a run that is just starting.
  std::ofstream(file).close();
  CHECK_THAT(refusal(folder.path, lease), Contains("a run that is just starting"));
  set_age(file, 601s);
  CHECK(refusal(folder.path, lease) == "none");
}

TEST_CASE("an owner renews its lease, and sees that it has lost it") {
  const TemporaryFolder folder;
  const fs::path file = folder / ".lock";
  FolderLock lock(folder.path, {.lease = true, .renew = 20ms});
  set_age(file, 3600s);
  for (int i = 0; i < 200 && fs::file_time_type::clock::now() - fs::last_write_time(file) > 60s;
       ++i)
    std::this_thread::sleep_for(10ms);
  CHECK(fs::file_time_type::clock::now() - fs::last_write_time(file) < 60s);
  CHECK_NOTHROW(lock.require_held());
  write_lease(folder.path, "other", 3);
  CHECK_THROWS_WITH(lock.require_held(),
                    Contains("has been taken by process 77 on elsewhere") && Contains("job other"));
  CHECK_THROWS_AS(lock.require_held_lately(), RunError);
}

TEST_CASE("a lock whose file was removed is taken again, unless another run has it") {
  const TemporaryFolder folder;
  FolderLock lock(folder.path, {});
  fs::remove(folder / ".lock");
  CHECK_NOTHROW(lock.require_held());
  CHECK_THAT(refusal(folder.path, {}), Contains("is in use"));
  fs::remove(folder / ".lock");
  {
    const FolderLock other(folder.path, {.job = "thief"});
    CHECK_THROWS_WITH(lock.require_held(), Contains("has been taken") && Contains("job thief"));
  }
}

TEST_CASE("a folder that cannot be made is named with its setting") {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "text";
  CHECK_THAT(refusal(folder / "file" / "run", {.setting = "train.run_dir"}),
             Contains("train.run_dir: cannot") && Contains((folder / "file").string()) &&
                 Contains("give a folder that can be written with train.run_dir=<folder>"));
  CHECK_THAT(refusal(folder / "file", {.setting = "train.run_dir"}), Contains("train.run_dir: "));
}

TEST_CASE("something that is not a file cannot be a lock, and hostile text is shown as text") {
  const TemporaryFolder folder;
  const fs::path file = folder / ".lock";
  fs::create_directory(file);
  CHECK_THAT(refusal(folder.path, {}), Contains(file.string()));
  fs::remove(file);
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  CHECK_THAT(refusal(folder.path, {}), Contains("is not a regular file"));
  fs::remove(file);
  std::ofstream(folder / "precious") << "text";
  fs::create_symlink(folder / "precious", file);
  CHECK_THAT(refusal(folder.path, {}), Contains(file.string()));
  CHECK(read_file(folder / "precious") == "text");
  fs::remove(file);
  std::ofstream(file) << "kind lease\nhost \033[2Jx\npid 1\n" << std::string(1 << 20, 'y');
  const std::string text = refusal(folder.path, {});
  CHECK_THAT(text, Contains("?[2Jx"));
  CHECK(text.size() < 8192);
}

TEST_CASE("a program that the owner starts does not keep the folder") {
  const TemporaryFolder folder;
  pid_t child = 0;
  {
    const FolderLock lock(folder.path, {});
    child = ::fork();
    if (child == 0) {
      ::execlp("sleep", "sleep", "30", nullptr);
      ::_exit(1);
    }
    // The lock goes when the child has become the other program.
    for (int i = 0; i < 200; ++i) {
      std::error_code error;
      if (fs::read_symlink(fmt::format("/proc/{}/exe", child), error) !=
          fs::read_symlink("/proc/self/exe"))
        break;
      std::this_thread::sleep_for(10ms);
    }
  }
  CHECK(refusal(folder.path, {}) == "none");
  ::kill(child, SIGKILL);
}

}  // namespace storage_folder_lock_test
