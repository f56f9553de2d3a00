// Kills a save at each of its system calls.
#include <set>

#include "base/file.h"
#include "storage/checkpoint_dir.h"
#include "storage/safetensors.h"
#include "storage/state.h"
#include "test/support/temporary_folder.h"
#include "traced_child.h"

namespace storage_kill_test {

using namespace mtrain;
using namespace mtrain::storage;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kCount = 500;

void save(const fs::path& root, int64_t step, int keep) {
  CheckpointWriter writer(root, step, {keep});
  const std::vector<float> x(static_cast<size_t>(kCount), float(step));
  SafetensorsWriter model(writer.folder() / "model.safetensors", {{"x", DType::f32, {kCount}}}, {},
                          SafetensorsWriter::Sums::beside);
  model.write("x", {x.data(), kCount, DType::f32});
  model.commit();
  TrainState state;
  state.set("step", step);
  state.save(writer.folder() / "state.json");
  write_file_atomic(writer.folder() / "recipe.yaml", "model: {}\n");
  writer.commit();
}

// Returns the step of the newest checkpoint, and reads all of it.
int64_t newest(const fs::path& root) {
  const auto found = find_latest(root);
  REQUIRE(found);
  std::vector<float> x(static_cast<size_t>(kCount));
  SafetensorsReader(found->path / "model.safetensors").read("x", 0, kCount, x.data());
  for (const float value : x) REQUIRE(value == float(found->step));
  return found->step;
}

}  // namespace

TEST_CASE(
    "a save that is killed at any system call leaves the newest whole checkpoint to be used") {
  const TemporaryFolder folder;
  const fs::path begin = folder / "begin", root = folder / "root";
  save(begin, 10, 2);
  save(begin, 20, 2);
  int killed = 0, saved = 0;
  for (bool more = true; more;) {
    fs::copy(begin, root, fs::copy_options::recursive);
    int calls = 0;
    more = traced([&] { save(root, 30, 2); },
                  [&](const SystemCall& c) { return !c.changes_files() || calls++ < killed; });
    INFO("killed at call " << killed);
    // The folder gets its name when it is complete, whatever `latest` names.
    const bool renamed = fs::exists(root / "step-00000030");
    REQUIRE(newest(root) == (renamed ? 30 : 20));
    saved += more && renamed;
    if (!more) CHECK(renamed);
    if (killed % 4 == 0) {  // the next run removes the killed one's leftovers
      save(root, 40, 2);
      REQUIRE(newest(root) == 40);
      for (const auto& entry : fs::directory_iterator(root))
        REQUIRE(entry.path().filename().string().find("tmp") == std::string::npos);
    }
    fs::remove_all(root);
    ++killed;
  }
  CHECK(killed > 50);
  CHECK(saved > 5);  // after the renaming: `latest`, and deletions
}

TEST_CASE("new folders for checkpoints are synced into their parents") {
  const TemporaryFolder folder;
  std::set<std::string> synced;
  traced([&] { save(folder / "runs/a/checkpoints", 1, 0); },
         [&](const SystemCall& c) {
           if (c.number == SYS_fsync) synced.insert(c.file());
           return true;
         });
  for (const fs::path& parent : {folder.path, folder / "runs", folder / "runs/a"}) {
    INFO(parent);
    CHECK(synced.contains(fs::canonical(parent).string()));
  }
}

}  // namespace storage_kill_test
