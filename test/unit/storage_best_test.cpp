// Tests which checkpoints stay if some are kept for their validation loss.
#include <cmath>
#include <filesystem>
#include <set>

#include "base/file.h"
#include "storage/checkpoint_dir.h"
#include "storage/safetensors.h"
#include "storage/state.h"
#include "test/support/temporary_folder.h"
#include "traced_child.h"

namespace storage_best_test {

using namespace mtrain;
using namespace mtrain::storage;
namespace fs = std::filesystem;

namespace {

void save(const fs::path& root, int64_t step, const std::string& loss, KeepRule keep) {
  CheckpointWriter writer(root, step, keep);
  const std::vector<float> x(100, float(step));
  SafetensorsWriter model(writer.folder() / "model.safetensors", {{"x", DType::f32, {100}}}, {},
                          SafetensorsWriter::Sums::beside);
  model.write("x", {x.data(), 100, DType::f32});
  model.commit();
  TrainState state;
  state.set("step", step);
  if (!loss.empty()) state.set(kValidationLoss, loss);
  state.save(writer.folder() / "state.json");
  writer.commit();
}

std::set<int64_t> steps_in(const fs::path& root) {
  std::set<int64_t> steps;
  for (const CheckpointRef& ref : checkpoints_after(root, 0)) steps.insert(ref.step);
  return steps;
}

// Returns the step of the complete checkpoint to which `best` leads; 0 without the link.
int64_t best_step(const fs::path& root) {
  if (!has_best(root)) return 0;
  const auto found = complete_checkpoint(root / "best");
  REQUIRE(found);
  return found->step;
}

}  // namespace

TEST_CASE("the checkpoints of the lowest validation losses stay besides the newest") {
  const TemporaryFolder folder;
  const fs::path root = folder / "checkpoints";
  struct Row {
    int64_t step;
    const char* loss;
    std::set<int64_t> stay;
    int64_t best;
  };
  for (const Row& row : std::vector<Row>{{10, "3.5", {10}, 10},
                                         {20, "2.5", {10, 20}, 20},
                                         {30, "", {10, 20, 30}, 20},
                                         {40, "2.5", {20, 30, 40}, 20},  // equal: the earlier one
                                         {50, "nan", {20, 40, 50}, 20},
                                         {60, "3", {20, 40, 50, 60}, 20},
                                         {70, "2.25", {20, 60, 70}, 70},
                                         {80, "9", {20, 70, 80}, 70},
                                         {90, "", {20, 70, 80, 90}, 70}}) {
    save(root, row.step, row.loss, {.newest = 2, .best = 2});
    INFO("step " << row.step);
    CHECK(steps_in(root) == row.stay);
    CHECK(best_step(root) == row.best);
    CHECK(find_latest(root)->step == row.step);
  }
  CHECK(best_checkpoints(root).front().loss == 2.25);
}

TEST_CASE("a run that no longer keeps the best does not delete the checkpoint of the link") {
  const TemporaryFolder folder;
  save(folder.path, 1, "1", {.newest = 1, .best = 1});
  for (const int64_t step : {2, 3}) save(folder.path, step, "0.5", {.newest = 1});
  CHECK(steps_in(folder.path) == std::set<int64_t>{1, 3});
  CHECK(best_step(folder.path) == 1);
}

TEST_CASE("the link leads to its checkpoint from any folder, and survives a renamed run") {
  const TemporaryFolder folder;
  save(folder / "a/checkpoints", 7, "1", {.best = 1});
  CHECK(fs::read_symlink(folder / "a/checkpoints/best") == "step-00000007");
  fs::rename(folder / "a", folder / "b");
  CHECK(complete_checkpoint(folder / "b/checkpoints/best")->path ==
        folder / "b/checkpoints/step-00000007");
  CHECK(complete_checkpoint(folder / "b/checkpoints/best/")->path ==
        folder / "b/checkpoints/step-00000007");
}

TEST_CASE("steps that are given up give up the link, too") {
  const TemporaryFolder folder;
  for (const auto& [step, loss] : {std::pair{1, "3"}, {2, "2"}, {3, "1"}})
    save(folder.path, step, loss, {.best = 1});
  CHECK(best_step(folder.path) == 3);
  link_best(folder.path, 2);
  CHECK(best_step(folder.path) == 2);
  link_best(folder.path, 0);
  CHECK_FALSE(fs::exists(fs::symlink_status(folder / "best")));
}

TEST_CASE("a file named best that is not a link of mtrain stays") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "best", "notes");
  save(folder.path, 1, "1", {.newest = 1, .best = 1});
  save(folder.path, 2, "2", {.newest = 1, .best = 1});
  CHECK(read_file(folder / "best") == "notes");
  CHECK(steps_in(folder.path) == std::set<int64_t>{1, 2});
}

// Before the new folder has its name, nothing else is touched (storage_kill_test.cpp).
TEST_CASE(
    "a save that is killed once its folder is in place loses neither the best nor the newest") {
  const TemporaryFolder folder;
  const fs::path begin = folder / "begin", root = folder / "root", own = root / "step-00000030";
  const KeepRule keep{.newest = 1, .best = 1};
  save(begin, 10, "2", keep);
  save(begin, 20, "3", keep);
  int killed = 0, moved = 0;
  for (bool more = true; more; ++killed) {
    fs::copy(begin, root, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    int calls = 0;
    more = traced([&] { save(root, 30, "1", keep); },
                  [&](const SystemCall& c) {
                    return !c.changes_files() || !fs::exists(own) || calls++ < killed;
                  });
    INFO("killed at call " << killed);
    const int64_t best = best_step(root);
    REQUIRE(find_latest(root)->step == 30);
    REQUIRE((best == 10 || best == 30));
    moved += more && best == 30;
    // The checkpoints give the ranking, whatever the link names.
    REQUIRE(best_checkpoints(root).front().checkpoint.step == 30);
    link_best(root);
    REQUIRE(best_step(root) == 30);
    fs::remove_all(root);
  }
  CHECK(killed > 20);
  CHECK(moved > 3);
}

}  // namespace storage_best_test
