// What a save does in unusual conditions: a large index, damage of what was just written, and
// programs that read meanwhile.
#include <fcntl.h>
#include <sys/stat.h>
#include <atomic>
#include <fstream>
#include <optional>
#include <thread>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/file.h"
#include "storage/checkpoint_diff.h"
#include "storage/checkpoint_dir.h"
#include "storage/checkpoint_list.h"
#include "storage/checkpoint_tensors.h"
#include "storage/file_sums.h"
#include "storage/folder_lease.h"
#include "storage/read_mark.h"
#include "storage/safetensors.h"
#include "storage/state.h"
#include "storage/verify_checkpoint.h"
#include "test/support/temporary_folder.h"

namespace storage_commit_test {

using namespace mtrain;
using namespace mtrain::storage;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kCount = 1000;

// Prepares a checkpoint of format 2 whose tensor holds `value`.
void prepare(CheckpointWriter& writer, int64_t step, float value) {
  const StridedRun run{.first = 0, .count = kCount};
  const std::vector<float> x(size_t(kCount), value);
  const std::string name = shard_file_name(TensorSet::weights, 0);
  SafetensorsWriter file(writer.folder() / name, {{piece_name("x", run), DType::f32, {kCount}}}, {},
                         SafetensorsWriter::Sums::beside);
  file.write(piece_name("x", run), {x.data(), kCount, DType::f32});
  file.commit();
  TrainState state;
  state.set("step", step);
  state.save(writer.folder() / "state.json");
  CheckpointIndex index;
  index.files = {name};
  index.weights["x"] = {.dtype = DType::f32, .shape = {kCount}, .pieces = {{0, run}}};
  writer.set_index(index, {});
}

fs::path save(const fs::path& root, int64_t step, int keep = 0, float value = 1) {
  CheckpointWriter writer(root, step, {keep});
  prepare(writer, step, value);
  return writer.commit();
}

float value_in(const fs::path& checkpoint) {
  float value = 0;
  open_checkpoint_tensors(checkpoint, TensorSet::weights)->read("x", 0, 1, &value);
  return value;
}

std::vector<int64_t> steps_in(const fs::path& root) {
  std::vector<int64_t> steps;
  for (const CheckpointRef& ref : checkpoints_after(root, -1)) steps.push_back(ref.step);
  return steps;
}

}  // namespace

TEST_CASE("an index that could not be read again is refused when it is saved") {
  const TemporaryFolder root;
  save(root.path, 10);
  CheckpointWriter writer(root.path, 20);
  prepare(writer, 20, 2);
  CheckpointIndex large;
  large.files = {shard_file_name(TensorSet::weights, 0)};
  // Two names of tensors that have more than 128 MiB together.
  for (const char c : {'a', 'b'})
    large.weights[std::string(size_t(kLargestText / 2), c)] = {
        .dtype = DType::f32, .shape = {kCount}, .pieces = {{0, {.first = 0, .count = kCount}}}};
  writer.set_index(large, {});
  CHECK_THROWS_WITH(writer.commit(), Contains("index.json would have") &&
                                         Contains("at most 134217728 can be read again"));
  CHECK(steps_in(root.path) == std::vector<int64_t>{10});
  CHECK(find_latest(root.path)->step == 10);
}

TEST_CASE("old checkpoints stay if the new one cannot be read back") {
  const TemporaryFolder root;
  save(root.path, 10, 1);
  CHECK(steps_in(root.path) == std::vector<int64_t>{10});
  {
    CheckpointWriter writer(root.path, 20, {1});
    prepare(writer, 20, 2);
    writer.set_step_hook([&](std::string_view step) {
      if (step == "delete old")
        fs::resize_file(root / "step-00000020" / shard_file_name(TensorSet::weights, 0), 100);
    });
    CHECK(writer.commit() == root / "step-00000020");
  }
  CHECK(steps_in(root.path) == std::vector<int64_t>{10, 20});
  CHECK(newest_sound(root.path)->step == 10);
  // The next save that can be read counts again. The damaged one stays.
  save(root.path, 30, 1);
  CHECK(steps_in(root.path) == std::vector<int64_t>{20, 30});
}

TEST_CASE("a save whose file `latest` cannot be written is complete") {
  const TemporaryFolder root;
  save(root.path, 10);
  fs::remove(root / "latest");
  fs::create_directories(root / "latest" / "in the way");
  CHECK(save(root.path, 20, 1) == root / "step-00000020");
  CHECK(steps_in(root.path) == std::vector<int64_t>{20});
  CHECK(find_latest(root.path)->step == 20);
}

TEST_CASE(
    "verify names a shard with a wrong length of its header, and reads no more than the file") {
  const TemporaryFolder root;
  const fs::path step = save(root.path, 10), file = step / shard_file_name(TensorSet::weights, 0);
  const std::string sound = read_file(file);
  for (const uint64_t length : {uint64_t{0}, uint64_t{7}, uint64_t(sound.size()),
                                uint64_t{100} << 20, uint64_t{1} << 40, ~uint64_t{0}}) {
    CAPTURE(length);
    {
      std::fstream change(file, std::ios::in | std::ios::out | std::ios::binary);
      change.write(reinterpret_cast<const char*>(&length), sizeof length);
    }
    const Verified found = verify_checkpoint(step);
    REQUIRE(found.faults.size() == 1);
    CHECK_THAT(found.faults[0], Contains(file.string() + " is damaged: bytes 0 to") &&
                                    Contains("(its header cannot be read)"));
  }
  write_file_atomic(file, sound);
  CHECK(verify_checkpoint(step).faults.empty());
}

TEST_CASE("a checkpoint that is verified or compared is marked as read, and not deleted") {
  const TemporaryFolder root;
  const fs::path a = save(root.path, 10), b = save(root.path, 20);
  int verified = 0, compared = 0;
  verify_checkpoint(a, [&](int64_t, int64_t) {
    ++verified;
    CHECK(is_being_read(a));
    CHECK_FALSE(is_being_read(b));
    save(root.path, 30, 1);  // keeps one, and the one that is read
  });
  CHECK(verified > 0);
  CHECK(steps_in(root.path) == std::vector<int64_t>{10, 30});
  checkpoint_differences(a, root / "step-00000030", [&](int64_t, int64_t) {
    ++compared;
    CHECK(is_being_read(a));
    CHECK(is_being_read(root / "step-00000030"));
  });
  CHECK(compared > 0);
  CHECK_FALSE(is_being_read(a));
  CHECK(listed_checkpoints(root.path).size() == 2);
  CHECK_FALSE(is_being_read(a));
}

TEST_CASE("a step that is saved again waits for a program that reads its earlier checkpoint") {
  const TemporaryFolder root;
  const fs::path step = save(root.path, 10, 0, 1);
  std::optional<ReadMark> reading(step);
  float read = 0;
  std::thread reader([&] {
    const auto from = open_checkpoint_tensors(step, TensorSet::weights);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    from->read("x", 0, 1, &read);
    reading.reset();
  });
  save(root.path, 10, 0, 2);
  reader.join();
  CHECK(read == 1);
  CHECK(value_in(step) == 2);
  // A program that reads for long does not stop the training.
  reading.emplace(step);
  CheckpointWriter writer(root.path, 10);
  prepare(writer, 10, 3);
  writer.set_patience(std::chrono::milliseconds(100));
  writer.commit();
  CHECK(value_in(step) == 3);
  CHECK(steps_in(root.path) == std::vector<int64_t>{10});
}

TEST_CASE("the caller's check before the rename comes after the wait for readers") {
  const TemporaryFolder root;
  const fs::path step = save(root.path, 10, 0, 1);
  CheckpointWriter writer(root.path, 10);
  prepare(writer, 10, 2);
  std::optional<ReadMark> reading(step);
  std::atomic<bool> taken = false;  // another run has taken the folder meanwhile
  writer.set_step_hook([&](std::string_view moment) {
    if (moment == "rename" && taken) throw RunError("another run has the folder");
  });
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    taken = true;
    reading.reset();
  });
  CHECK_THROWS_WITH(writer.commit(), Contains("another run has the folder"));
  other.join();
  CHECK(value_in(step) == 1);
}

TEST_CASE("files outside the folder of a checkpoint are not read: links and paths") {
  const TemporaryFolder root;
  const fs::path step = save(root.path, 10), other = root / "other";
  fs::create_directories(other);
  const auto refused = [&](const std::string& gist) {
    CHECK_THROWS_WITH(complete_checkpoint(step), Contains(gist));
    CHECK_THROWS_WITH(find_latest(root.path), Contains(gist));
    REQUIRE(verify_checkpoint(step).faults.size() == 1);
    CHECK_THAT(verify_checkpoint(step).faults[0], Contains(gist));
  };
  for (const std::string name : {"state.json", "weights-00000.safetensors"}) {
    fs::rename(step / name, other / name);
    fs::create_symlink(other / name, step / name);
    refused((step / name).string() + " is a link");
    fs::remove(step / name);
    fs::rename(other / name, step / name);
  }
  CHECK(complete_checkpoint(step)->step == 10);
  // A link to the checkpoint itself is one of its names.
  fs::create_symlink(step, root / "best");
  CHECK(complete_checkpoint(root / "best")->step == 10);
  // The index lists files of the folder alone.
  const std::string sound = read_file(step / kIndexJson);
  for (const std::string name : {"/etc/hostname", "../other/x", "a/../../x", "..", ""}) {
    CAPTURE(name);
    nlohmann::json index = nlohmann::json::parse(sound);
    index["files"][name] = 1;
    index["checksum"] = std::string(32, '0');
    std::string text = index.dump(2) + "\n";
    text.replace(text.find(std::string(32, '0')), 32, content_hash(text));
    write_file_atomic(step / kIndexJson, text);
    refused("`" + name + "` is not a file of the folder with its size");
  }
  write_file_atomic(step / kIndexJson, sound);
  CHECK(verify_checkpoint(step).faults.empty());
}

TEST_CASE("the age of a file is unknown where the file system shows no clock") {
  const TemporaryFolder root;
  CHECK(file_system_now(root / "clock"));
  CHECK_FALSE(file_system_now(root / "absent" / "clock"));
  CHECK_FALSE(file_system_now("/proc/self/clock"));
  std::ofstream(root / "x") << 1;
  const timespec old[2] = {{1000, 0}, {1000, 0}};
  REQUIRE(::utimensat(AT_FDCWD, (root / "x").c_str(), old, 0) == 0);
  CHECK(age_of(root / "x") > kLeaseStale);
  CHECK(age_of("/proc/version") == std::chrono::nanoseconds(0));
}

}  // namespace storage_commit_test
