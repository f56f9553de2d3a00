// Tests what `mtrain checkpoint` reads: lists, checks and differences of checkpoints.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "storage/checkpoint_diff.h"
#include "storage/checkpoint_dir.h"
#include "storage/checkpoint_list.h"
#include "storage/damaged_checkpoint.h"
#include "storage/safetensors.h"
#include "storage/state.h"
#include "storage/verify_checkpoint.h"
#include "test/support/damage_testing.h"
#include "test/support/temporary_folder.h"

namespace storage_verify_test {

using namespace mtrain;
using namespace mtrain::storage;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kCount = 3 << 20;  // elements of the first tensor: three blocks of 4 MiB

struct Change {
  const char* tensor = "";
  int64_t element = 0;
  float value = 0;
};

fs::path save(const fs::path& root, int64_t step, const Change& change = {},
              const std::string& loss = "") {
  CheckpointWriter writer(root, step, {.newest = 0, .best = 1});
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string suffix = name[0] == 'm' ? "" : ".m";
    SafetensorsWriter file(
        writer.folder() / name,
        {{"big" + suffix, DType::f32, {kCount}}, {"small" + suffix, DType::f32, {2, 3}}}, {},
        SafetensorsWriter::Sums::beside);
    for (const auto& [tensor, count] : std::vector<std::pair<std::string, int64_t>>{
             {"big" + suffix, kCount}, {"small" + suffix, 6}}) {
      std::vector<float> x(size_t(count), 1);
      if (tensor == change.tensor) x[size_t(change.element)] = change.value;
      file.write(tensor, {x.data(), count, DType::f32});
    }
    file.commit();
  }
  TrainState state;
  state.set("step", step);
  if (!loss.empty()) state.set(kValidationLoss, loss);
  state.save(writer.folder() / "state.json");
  return writer.commit();
}

}  // namespace

TEST_CASE("verify reads every block, and names the file and the tensors of each bad one") {
  const TemporaryFolder folder;
  const fs::path step = save(folder.path, 30);
  int64_t read = 0, total = 0;
  const Verified sound =
      verify_checkpoint(step, [&](int64_t done, int64_t of) { read = done, total = of; });
  CHECK(sound.faults.empty());
  CHECK(sound.step == 30);
  CHECK(sound.files == 3);
  CHECK(sound.blocks == 9);  // each tensor file has 12 MiB and a little, and state.json one block
  CHECK(read == sound.bytes);
  CHECK(read == total);
  {
    const FlippedBit in_big(step / "model.safetensors", 5 << 20, 3),
        in_tail(step / "model.safetensors", int64_t(fs::file_size(step / "model.safetensors")) - 1,
                0),
        in_header(step / "optimizer.safetensors", 20, 1);
    const Verified found = verify_checkpoint(step);
    REQUIRE(found.faults.size() == 3);
    CHECK_THAT(found.faults[0],
               Contains("model.safetensors is damaged: bytes 4194304 to 8388607") &&
                   Contains("(tensor `big`)"));
    CHECK_THAT(found.faults[1], Contains("(tensor `big`, tensor `small`)"));
    CHECK_THAT(found.faults[2], Contains("optimizer.safetensors is damaged"));
  }
  CHECK(verify_checkpoint(step).faults.empty());
  fs::rename(step / "model.safetensors", folder / "aside");
  fs::resize_file(step / "optimizer.safetensors", 100);
  const Verified found = verify_checkpoint(step);
  REQUIRE(found.faults.size() == 2);
  CHECK_THAT(found.faults[0], Contains("model.safetensors") && Contains("it is missing"));
  CHECK_THAT(found.faults[1], Contains("it has 100 bytes"));
  fs::remove(step / "manifest.json");
  CHECK_THAT(verify_checkpoint(step).faults.at(0), Contains("manifest.json"));
  CHECK_THROWS_AS(verify_checkpoint(folder / "none"), UserError);
}

TEST_CASE("differences are sorted, and those that cannot be compared come first") {
  const TemporaryFolder folder;
  const fs::path a = save(folder / "a", 30), same = save(folder / "same", 40);
  for (const TensorDifference& row : checkpoint_differences(a, same)) CHECK_FALSE(row.differs());
  const auto far = checkpoint_differences(a, save(folder / "b", 30, {"small.m", 4, -2}));
  REQUIRE(far.size() == 4);
  CHECK(far[0].name == "small.m");
  CHECK(far[0].largest == 3);
  CHECK(far[0].scale == 2);
  CHECK(far[0].element == 4);
  CHECK_FALSE(far[1].differs());
  const auto beyond = checkpoint_differences(a, save(folder / "c", 30, {"big", kCount - 1, 1.5f}));
  CHECK(beyond[0].name == "big");
  CHECK(beyond[0].element == kCount - 1);
  CHECK(beyond[0].largest == 0.5);
  const auto nan = checkpoint_differences(a, save(folder / "d", 30, {"big", 7, NAN}));
  CHECK(std::isinf(nan[0].largest));
  fs::remove(same / "optimizer.safetensors");
  seal_again(same, 40);
  const auto lacking = checkpoint_differences(a, same);
  CHECK_THAT(lacking[0].reason, Contains("only in " + a.string()));
  CHECK(lacking.size() == 4);
  CHECK_THROWS_AS(checkpoint_differences(a, folder / "none"), UserError);
}

TEST_CASE("a list has every folder with its state, and what `latest` and `best` name") {
  using State = ListedCheckpoint::State;
  const TemporaryFolder folder;
  save(folder.path, 10, {}, "2.5");
  save(folder.path, 20, {}, "2.25");
  const fs::path damaged = save(folder.path, 30), missing = save(folder.path, 40);
  save(folder.path, 50, {}, "3");
  fs::resize_file(damaged / "model.safetensors", 10);
  fs::remove(missing / "state.json");
  fs::create_directory(folder / "step-00000050.tmp-7-elsewhere");
  fs::create_directory(folder / "step-00000020.damaged");
  fs::create_directory(folder / "notes");
  const std::vector<ListedCheckpoint> all = listed_checkpoints(folder.path);
  struct Row {
    const char* name;
    State state;
  };
  const std::vector<Row> expected{{"step-00000010", State::complete},
                                  {"step-00000020", State::complete},
                                  {"step-00000020.damaged", State::set_aside},
                                  {"step-00000030", State::damaged},
                                  {"step-00000040", State::unreadable},
                                  {"step-00000050", State::complete},
                                  {"step-00000050.tmp-7-elsewhere", State::temporary}};
  REQUIRE(all.size() == expected.size());
  for (size_t i = 0; i < all.size(); ++i) {
    INFO(expected[i].name);
    CHECK(all[i].path.filename() == expected[i].name);
    CHECK(all[i].state == expected[i].state);
    CHECK(all[i].best == (i == 1));
    CHECK(all[i].latest == (i == 5));
    CHECK(all[i].fault.empty() == (i != 3 && i != 4));
  }
  CHECK(all[1].validation_loss == 2.25);
  CHECK(all[1].bytes > 8 * kCount);
  CHECK(all[1].saved_at > 1'600'000'000);
  CHECK_THROWS_AS(listed_checkpoints(folder / "none"), RunError);
}

TEST_CASE("damage is confirmed from newly opened files, and only then set aside") {
  const TemporaryFolder folder;
  const fs::path step = save(folder.path, 30), file = step / "model.safetensors";
  CHECK_FALSE(is_damaged_again(file, 1));
  CHECK_FALSE(is_damaged_again(file, -1));
  CHECK_FALSE(is_damaged_again(file, 99));
  {
    const FlippedBit flipped(file, 5 << 20, 0);
    CHECK(is_damaged_again(file, 1));
    CHECK_FALSE(is_damaged_again(file, 0));
    CHECK_FALSE(is_damaged_again(file, -1));  // small files and sizes alone
  }
  {
    const FlippedBit flipped(step / "state.json", 30, 0);
    CHECK(is_damaged_again(step / "state.json", -1));
    CHECK(is_damaged_again(step / "state.json", 0));
  }
  // A missing file does not show that its content is wrong.
  fs::rename(file, folder / "aside");
  CHECK_THROWS_AS(is_damaged_again(file, 1), RunError);
  CHECK_THROWS_AS(is_damaged_again(file, -1), RunError);
  CHECK_FALSE(has_damaged(folder.path));
  CHECK(set_aside_damaged(step).filename() == "step-00000030.damaged");
  save(folder.path, 30);
  CHECK(set_aside_damaged(step).filename() == "step-00000030.damaged-2");
  CHECK(has_damaged(folder.path));
  CHECK(fs::exists(folder / "step-00000030.damaged/state.json"));
  // A folder of damaged checkpoints alone is not an empty one.
  fs::remove(folder / "latest");
  CHECK_THROWS_WITH(find_latest(folder.path), Contains("every checkpoint") && Contains("damaged"));
}

TEST_CASE("the newest checkpoint is called damaged only if the content of a file is wrong") {
  const TemporaryFolder folder;
  save(folder.path, 20);
  const fs::path step = save(folder.path, 30);
  const auto damaged = [&] {
    try {
      find_latest(folder.path);
    } catch (const DamagedCheckpoint& e) {
      CHECK(e.checkpoint() == step);
      return e.file().filename().string();
    } catch (const RunError&) {
      return std::string("another error");
    }
    return std::string("none");
  };
  CHECK(damaged() == "none");
  for (const char* name : {"manifest.json", "state.json", "model.safetensors.sums"}) {
    INFO(name);
    const FlippedBit flipped(step / name, 20, 0);
    CHECK(damaged() == name);
  }
  for (const char* name : {"manifest.json", "state.json", "model.safetensors", "state.json.sums"}) {
    INFO(name);
    fs::rename(step / name, folder / "aside");
    CHECK(damaged() == "another error");
    fs::create_directory(step / name);  // it cannot be read
    if (std::string(name) != "model.safetensors" && std::string(name) != "state.json")
      CHECK(damaged() == "another error");
    fs::remove(step / name);
    fs::rename(folder / "aside", step / name);
  }
  const auto size = fs::file_size(step / "optimizer.safetensors");
  fs::resize_file(step / "optimizer.safetensors", size - 1);
  CHECK(damaged() == "optimizer.safetensors");
}

}  // namespace storage_verify_test
