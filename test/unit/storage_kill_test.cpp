// Kills a save at each of its system calls.
#include <set>

#include "base/file.h"
#include "storage/checkpoint_dir.h"
#include "storage/checkpoint_tensors.h"
#include "storage/state.h"
#include "test/support/temporary_folder.h"
#include "traced_child.h"

namespace storage_kill_test {

using namespace mtrain;
using namespace mtrain::storage;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kCount = 500;

void write_tensor(const fs::path& path, const std::string& name, int64_t step, int64_t count) {
  const std::vector<float> x(static_cast<size_t>(count), float(step));
  SafetensorsWriter file(path, {{name, DType::f32, {count}}}, {}, SafetensorsWriter::Sums::beside);
  file.write(name, {x.data(), count, DType::f32});
  file.commit();
}

// Saves a checkpoint of format 1, or one of format 2 whose tensor is in the files of `shards`
// ranks.
void save(const fs::path& root, int64_t step, int keep, int shards = 0) {
  CheckpointWriter writer(root, step, {keep});
  if (shards == 0) write_tensor(writer.folder() / "model.safetensors", "x", step, kCount);
  CheckpointIndex index;
  for (int rank = 0; rank < shards; ++rank) {
    const StridedRun run{.first = rank * kCount / shards, .count = kCount / shards};
    index.files.push_back(shard_file_name(TensorSet::weights, rank));
    index.weights["x"].shape = {kCount};
    index.weights["x"].pieces.push_back({rank, run});
    write_tensor(writer.folder() / index.files.back(), piece_name("x", run), step, run.count);
  }
  if (shards > 0) writer.set_index(index, {});
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
  open_checkpoint_tensors(found->path, TensorSet::weights)->read("x", 0, kCount, x.data());
  for (const float value : x) REQUIRE(value == float(found->step));
  return found->step;
}

}  // namespace

TEST_CASE(
    "a save that is killed at any system call leaves the newest whole checkpoint to be used") {
  const int shards = GENERATE(0, 2);
  CAPTURE(shards);
  const TemporaryFolder folder;
  const fs::path begin = folder / "begin", root = folder / "root";
  save(begin, 10, 2);
  save(begin, 20, 2, shards);
  int killed = 0, saved = 0;
  for (bool more = true; more;) {
    fs::copy(begin, root, fs::copy_options::recursive);
    int calls = 0;
    more = traced([&] { save(root, 30, 2, shards); },
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
