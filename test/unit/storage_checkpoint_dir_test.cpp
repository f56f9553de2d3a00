#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "storage/checkpoint_dir.h"
#include "storage/safetensors.h"
#include "storage/state.h"
#include "test/support/temporary_folder.h"

namespace storage_checkpoint_dir_test {

using namespace mtrain;
using namespace mtrain::storage;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

// Saves a checkpoint as a trainer does. Its tensor holds the step, so a mixture of two would show.
void put_files(const CheckpointWriter& writer, int64_t step, int64_t count = 1000) {
  const std::vector<float> x(static_cast<size_t>(count), float(step));
  SafetensorsWriter model(writer.folder() / "model.safetensors", {{"x", DType::f32, {count}}});
  model.write("x", {x.data(), count, DType::f32});
  model.commit();
  TrainState state;
  state.set("step", step);
  state.save(writer.folder() / "state.json");
  fs::create_directories(writer.folder() / "data");
  std::ofstream(writer.folder() / "data" / "position") << step;  // a plain file in a subfolder
}

fs::path save(const fs::path& root, int64_t step, int keep = 0) {
  CheckpointWriter writer(root, step, {keep});
  put_files(writer, step);
  return writer.commit();
}

// Reads all of the checkpoint that a resumed run would load, and returns its step; -1 if there is
// none.
int64_t loaded_step(const fs::path& root) {
  const auto ref = find_latest(root);
  if (!ref) return -1;
  const SafetensorsReader reader(ref->path / "model.safetensors");
  std::vector<float> x(size_t(reader.info("x").count()));
  reader.read("x", 0, int64_t(x.size()), x.data());
  for (const float value : x) REQUIRE(value == float(ref->step));
  REQUIRE(TrainState::load(ref->path / "state.json").integer("step") == ref->step);
  REQUIRE(read_file(ref->path / "data" / "position") == std::to_string(ref->step));
  return ref->step;
}

std::set<std::string> names_in(const fs::path& root) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) names.insert(entry.path().filename());
  return names;
}

// A file system of 1 MiB, if the system lets this process make one.
struct SmallDisk {
  explicit SmallDisk(fs::path at)
      : path(std::move(at)), ok(::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=1m") == 0) {}
  ~SmallDisk() {
    if (ok) ::umount(path.c_str());
  }
  fs::path path;
  bool ok;
};

// Runs `body` in a child process and returns its wait status.
template <class Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      body();
    } catch (...) {
      ::_exit(9);
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

// Saves `step` in a child that is killed at its n-th commit step. Returns false if the commit has
// fewer steps.
bool killed_while_saving(const fs::path& root, int64_t step, int keep, int n) {
  const int status = in_child([&] {
    CheckpointWriter writer(root, step, {keep});
    put_files(writer, step);
    int at = 0;
    writer.set_step_hook([&](std::string_view) {
      if (at++ == n) ::raise(SIGKILL);
    });
    writer.commit();
  });
  if (WIFSIGNALED(status)) REQUIRE(WTERMSIG(status) == SIGKILL);
  return WIFSIGNALED(status);
}

}  // namespace

TEST_CASE("checkpoints are found by `latest`, and the oldest are deleted") {
  const TemporaryFolder folder;
  const fs::path root = folder / "runs/a/checkpoints";
  CHECK_FALSE(find_latest(root));
  CHECK(save(root, 20) == root / "step-00000020");
  CHECK(loaded_step(root) == 20);
  for (const char* foreign : {"step-7", "step-00000001-mine", "notes", "step-x"})
    fs::create_directories(root / foreign);
  save(root, 40, 2);
  save(root, 60, 2);
  save(root, 80, 2);
  CHECK(loaded_step(root) == 80);
  CHECK(names_in(root) == std::set<std::string>{"step-7", "step-00000001-mine", "notes", "step-x",
                                                "step-00000060", "step-00000080", "latest"});
  CHECK(read_file(root / "latest") == "step-00000080\n");

  SECTION("the one just written is never deleted, though its step is the lowest") {
    save(root, 10, 1);
    CHECK(loaded_step(root) == 10);
    CHECK_FALSE(fs::exists(root / "step-00000060"));
    CHECK_FALSE(fs::exists(root / "step-00000080"));
  }
  SECTION("one of the same step is replaced") {
    std::ofstream(root / "step-00000080" / "old") << "x";
    save(root, 80, 2);
    CHECK(loaded_step(root) == 80);
    CHECK_FALSE(fs::exists(root / "step-00000080" / "old"));
    CHECK(names_in(root).size() == 7);
  }
  SECTION("without commit nothing remains") {
    const auto before = names_in(root);
    {
      CheckpointWriter writer(root, 100, {1});
      put_files(writer, 100);
    }
    CHECK(names_in(root) == before);
  }
}

TEST_CASE("the newest checkpoint is used, whatever `latest` names") {
  const TemporaryFolder folder;
  const fs::path& root = folder.path;
  save(root, 10);
  save(root, 20);
  save(root, 30);
  SECTION("a killed run had not written it yet") { set_latest(root, 20); }
  SECTION("it names nothing") { std::ofstream(root / "latest") << "step-00000099"; }
  SECTION("it leads out of the root") { std::ofstream(root / "latest") << "../step-00000020"; }
  SECTION("it is empty") { std::ofstream(root / "latest"); }
  SECTION("it is lost") { fs::remove(root / "latest"); }
  CHECK(loaded_step(root) == 30);
}

TEST_CASE("a path names a checkpoint, or the latest of a folder of them") {
  const TemporaryFolder folder;
  const fs::path root = folder / "there";
  save(root, 10);
  save(root, 20);
  CHECK(checkpoint_at(root / "step-00000010").step == 10);
  CHECK(checkpoint_at(root).step == 20);
  CHECK(checkpoints_after(root, 10).size() == 1);
  CHECK_THROWS_WITH(checkpoint_at(root / "step-00000030"),
                    Contains("no folder") && Contains("step-00000030"));
  fs::remove(root / "step-00000010" / "state.json");
  CHECK_THROWS_WITH(checkpoint_at(root / "step-00000010"), Contains("state.json is damaged"));
  CHECK_THROWS_WITH(checkpoint_at(folder.path), Contains("no complete checkpoint"));
}

TEST_CASE("killed between any two steps of commit, a whole checkpoint is found") {
  const TemporaryFolder folder;
  int steps = 0;
  for (bool more = true; more; ++steps) {
    const fs::path root = folder / std::to_string(steps);
    save(root, 10);
    save(root, 20);
    more = killed_while_saving(root, 30, 2, steps);
    INFO("killed at " << steps);
    const int64_t found = loaded_step(root);
    CHECK((found == 20 || found == 30));
    if (!more) CHECK(found == 30);
    // The next run removes the killed one's leftovers, and continues.
    save(root, 40, 2);
    CHECK(loaded_step(root) == 40);
    const auto names = names_in(root);
    CHECK(names.size() == 3);  // two checkpoints and `latest`
    for (const auto& name : names) CHECK(name.find("tmp") == std::string::npos);
  }
  CHECK(steps >= 8);  // manifest, sync, rename, sync root, latest, delete old, delete one, done
}

TEST_CASE("killed while replacing a checkpoint of the same step, a whole one is found") {
  const TemporaryFolder folder;
  const fs::path& root = folder.path;
  save(root, 10);
  save(root, 20);
  for (int n = 0; killed_while_saving(root, 20, 0, n); ++n) CHECK(loaded_step(root) == 20);
  CHECK(loaded_step(root) == 20);
}

TEST_CASE("a full disk while saving is one clear error, and the earlier checkpoint stays") {
  const TemporaryFolder folder;
  const fs::path& root = folder.path;
  save(root, 10);
  const int status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);  // the write then fails with EFBIG
    for (const rlim_t bytes : {0, 7, 100, 4000, 4200}) {
      const rlimit limit{bytes, RLIM_INFINITY};
      if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
      bool clear = false;
      try {
        CheckpointWriter writer(root, 20);
        put_files(writer, 20, 2000);
        writer.commit();
      } catch (const RunError& e) {
        clear = std::string(e.what()).find("cannot write") != std::string::npos &&
                e.hint().find("free some space") != std::string::npos;
      }
      if (!clear) ::_exit(3);
    }
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(loaded_step(root) == 10);
  CHECK(names_in(root) == std::set<std::string>{"step-00000010", "latest"});
}

TEST_CASE("a file system that fills up while saving, at many sizes of its rest") {
  const TemporaryFolder folder;
  const fs::path disk = folder / "disk";
  fs::create_directories(disk);
  const SmallDisk mounted(disk);
  if (!mounted.ok) {
    WARN("cannot mount a tmpfs here; the same errors are tested with RLIMIT_FSIZE");
    return;
  }
  const fs::path root = disk / "checkpoints";
  save(root, 10);
  int failed = 0, saved = 0;
  for (int64_t free_kib = 0; free_kib <= 80; free_kib += 4) {
    const auto space = fs::space(disk).available;
    {
      std::ofstream filler(disk / "filler", std::ios::binary);
      filler << std::string(size_t(space) - size_t(free_kib) * 1024, 'x');
    }
    const int64_t step = 20 + free_kib;
    try {
      CheckpointWriter writer(root, step);
      put_files(writer, step);
      writer.commit();
      ++saved;
      CHECK(loaded_step(root) == step);
      fs::remove_all(root / fmt::format("step-{:08}", step));
    } catch (const RunError& e) {
      ++failed;
      CHECK_THAT(e.what(), Contains("No space left") && Contains("hint"));
      // When the folder is in place, only `latest` may be missing, and the checkpoint is complete.
      const fs::path folder_of_step = root / fmt::format("step-{:08}", step);
      CHECK(loaded_step(root) == (fs::exists(folder_of_step) ? step : 10));
      fs::remove_all(folder_of_step);
    }
    fs::remove(disk / "filler");
    std::ofstream(root / "latest") << "step-00000010\n";
  }
  CHECK(failed >= 3);
  CHECK(saved >= 3);
}

TEST_CASE("only leftovers of dead processes of this host are removed") {
  const TemporaryFolder folder;
  const fs::path& root = folder.path;
  const int64_t dead = 999'999'999;  // above any kernel's limit
  const std::string ours = fmt::format("step-00000050.tmp-{}-{}", dead, host_name());
  const std::string theirs = fmt::format("step-00000050.tmp-{}-{}x", dead, host_name());
  const std::string alive = fmt::format("step-00000050.tmp-{}-{}", ::getppid(), host_name());
  for (const auto& name : {ours, ours + ".old", theirs, alive}) fs::create_directory(root / name);
  const std::string latest = fmt::format("latest.tmp.{}.0.{}", dead, host_name());
  std::ofstream(root / latest) << "x";
  std::ofstream(root / (latest + "x")) << "x";
  save(root, 60);
  CHECK(names_in(root) ==
        std::set<std::string>{theirs, alive, latest + "x", "step-00000060", "latest"});
}

TEST_CASE("a folder that cannot be made is one clear error") {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  CHECK_THROWS_AS(CheckpointWriter(folder / "file", 1), RunError);
  CHECK_THROWS_WITH(CheckpointWriter(folder / "file" / "sub", 1), Contains("cannot create"));
}

}  // namespace storage_checkpoint_dir_test
