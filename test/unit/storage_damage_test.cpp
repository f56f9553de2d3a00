// Damages every kind of file of a checkpoint: each damage is found, and the file named.
#include <catch2/catch.hpp>
#include <fstream>
#include <random>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "storage/checkpoint_dir.h"
#include "storage/file_sums.h"
#include "storage/finite_values.h"
#include "storage/manifest.h"
#include "storage/safetensors.h"
#include "storage/state.h"
#include "test/support/damage_testing.h"
#include "test/support/temporary_folder.h"

namespace storage_damage_test {

using namespace mtrain;
using namespace mtrain::storage;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

// Values that depend on `seed` alone: two runs have files of equal sizes.
fs::path save(const fs::path& root, int64_t step, int64_t count = 200, int seed = 1, int keep = 0) {
  CheckpointWriter writer(root, step, {keep});
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(seed) + float(i) * 0.5f;
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    SafetensorsWriter file(writer.folder() / name, {{"x", DType::f32, {count}}}, {},
                           SafetensorsWriter::Sums::beside);
    file.write("x", {x.data(), count, DType::f32});
    file.commit();
  }
  TrainState state;
  state.set("step", step);
  state.save(writer.folder() / "state.json");
  write_file_atomic(writer.folder() / "recipe.yaml", "model: {}\n");
  return writer.commit();
}

void read_all(const fs::path& folder) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const SafetensorsReader file(folder / name);
    std::vector<float> x(size_t(file.info("x").count()));
    file.read("x", 0, int64_t(x.size()), x.data());
  }
}

// Returns the error of a program that reads all of the newest checkpoint; empty if there is none.
std::string complaint(const fs::path& root) {
  try {
    const auto found = find_latest(root);
    if (!found) return "no checkpoint";
    read_all(found->path);
  } catch (const UserError& e) {
    return "exit code 2: " + e.message();
  } catch (const RunError& e) {
    return e.message();
  }
  return "";
}

// A checkpoint as earlier versions saved it.
void make_old(const fs::path& folder, int64_t step) {
  remove_sums(folder);
  fs::remove(folder / kManifest);
  nlohmann::json files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = entry.file_size();
  write_file_atomic(folder / kManifest,
                    nlohmann::json{{"format", 1}, {"step", step}, {"files", files}}.dump(2) + "\n");
}

}  // namespace

TEST_CASE("every flipped bit is found, and its file named") {
  // All of them with MTRAIN_ALL_DAMAGE=1; else an odd part, so that every place of a byte is there.
  const bool all = std::getenv("MTRAIN_ALL_DAMAGE") != nullptr;
  const TemporaryFolder folder;
  const fs::path step = save(folder.path, 30, all ? 8000 : 200);
  REQUIRE(complaint(folder.path).empty());
  std::mt19937 random(7);
  int64_t flips = 0;
  for (const auto& entry : fs::directory_iterator(step)) {
    const std::string name = entry.path().filename().string();
    if (name == kRecipeCopy) continue;
    const bool tensors = name.ends_with(".safetensors");
    const int64_t size = int64_t(entry.file_size());
    const int64_t header = tensors ? SafetensorsReader(entry.path()).info("x").begin : size;
    const auto flip = [&](int64_t byte, int bit) {
      const FlippedBit flipped(entry.path(), byte, bit);
      const std::string found = complaint(folder.path);
      ++flips;
      if (found.find(name) != std::string::npos && found.find("is damaged") != std::string::npos)
        return;
      FAIL("bit " << bit << " of byte " << byte << " of " << name << ": " << found);
    };
    for (int64_t i = 0; i < header * 8; i += all ? 1 : 7) flip(i / 8, int(i % 8));
    for (int64_t i = header; i < size; i += all ? 1 : 7) flip(i, int(random() % 8));
  }
  CHECK(flips > 1000);
  CHECK(complaint(folder.path).empty());
}

namespace {

struct Row {
  const char* what;
  std::function<void()> damage;
  const char* named;
};

// Damages the checkpoint `step` of a run's folder by each row, expects an error that names the file
// and the checkpoint, and mends it.
void expect_damage_is_named(const std::vector<Row>& rows, const fs::path& root,
                            const fs::path& step) {
  for (const Row& row : rows) {
    INFO(row.what);
    const fs::path sound = root / "sound";
    fs::copy(step, sound);
    row.damage();
    const std::string found = complaint(root);
    CHECK_THAT(found, Contains(row.named) && Contains("step-00000030"));
    CHECK(found.find("exit code 2") == std::string::npos);
    fs::remove_all(step);
    fs::rename(sound, step);
    REQUIRE(complaint(root).empty());
  }
}

}  // namespace

TEST_CASE(
    "a checkpoint whose files are lost, cut, swapped or of another run is named, not passed") {
  const TemporaryFolder folder;
  const fs::path &root = folder.path, other = folder / "other";
  save(root, 20);
  const fs::path step = save(root, 30), theirs = save(other, 30, 200, 2);
  REQUIRE(fs::file_size(step / "model.safetensors") == fs::file_size(theirs / "model.safetensors"));
  const auto replace = [](const fs::path& from, const fs::path& to) {
    fs::copy_file(from, to, fs::copy_options::overwrite_existing);
  };
  const auto cut = [&](const char* name) {
    fs::resize_file(step / name, fs::file_size(step / name) - 1);
  };
  const std::vector<Row> rows{
      {"no manifest", [&] { fs::remove(step / "manifest.json"); }, "manifest.json"},
      {"an empty manifest", [&] { std::ofstream(step / "manifest.json"); }, "manifest.json"},
      {"a manifest of others", [&] { replace(theirs / "manifest.json", step / "manifest.json"); },
       ".sums"},
      {"no checksums in the manifest",
       [&] {
         auto json = nlohmann::json::parse(read_file(step / "manifest.json"));
         for (const char* key : {"sums", "sums_hashes", "checksum"}) json.erase(key);
         write_file_atomic(step / "manifest.json", json.dump(2) + "\n");
       },
       "manifest.json"},
      {"no state", [&] { fs::remove(step / "state.json"); }, "state.json"},
      {"a longer state", [&] { std::ofstream(step / "state.json", std::ios::app) << "\n"; },
       "state.json"},
      {"a folder for a file",
       [&] {
         fs::remove(step / "state.json");
         fs::create_directory(step / "state.json");
       },
       "state.json"},
      {"weights cut short", [&] { cut("model.safetensors"); }, "model.safetensors"},
      {"moments cut short", [&] { cut("optimizer.safetensors"); }, "optimizer.safetensors"},
      {"a lost .sums", [&] { fs::remove(step / "model.safetensors.sums"); },
       "model.safetensors.sums"},
      {"a .sums cut short", [&] { cut("state.json.sums"); }, "state.json.sums"},
      {"a renamed file", [&] { fs::rename(step / "optimizer.safetensors", step / "optimizer"); },
       "optimizer.safetensors"},
      {"weights of another run",
       [&] { replace(theirs / "model.safetensors", step / "model.safetensors"); },
       "model.safetensors"},
      {"weights of another run with their checksums",
       [&] {
         replace(theirs / "model.safetensors", step / "model.safetensors");
         replace(theirs / "model.safetensors.sums", step / "model.safetensors.sums");
       },
       "model.safetensors.sums"},
      {"two files swapped",
       [&] {
         fs::rename(step / "model.safetensors", step / "x");
         fs::rename(step / "state.json", step / "model.safetensors");
         fs::rename(step / "x", step / "state.json");
       },
       "model.safetensors"},
      {"an empty folder",
       [&] {
         fs::remove_all(step);
         fs::create_directory(step);
       },
       "manifest.json"},
      {"an older checkpoint under its name",
       [&] {
         fs::remove_all(step);
         fs::copy(root / "step-00000020", step);
       },
       "manifest.json"}};
  expect_damage_is_named(rows, root, step);
}

TEST_CASE("a damaged newest checkpoint is an error that names the sound one before it") {
  const TemporaryFolder folder;
  const fs::path& root = folder.path;
  save(root, 10);
  const fs::path sound = save(root, 20), newest = save(root, 30);
  fs::remove(newest / "state.json");
  try {
    find_latest(root);
    FAIL("the damaged checkpoint was passed over");
  } catch (const RunError& e) {
    CHECK_THAT(e.message(), Contains(newest.string()) && Contains("state.json"));
    CHECK_THAT(e.hint(), Contains("checkpoint.load=" + sound.string()));
  }
  CHECK(complete_checkpoint(sound)->step == 20);
  CHECK_THROWS_AS(complete_checkpoint(newest), RunError);
  // A damaged older checkpoint does not matter.
  fs::remove_all(newest);
  fs::remove(root / "step-00000010/manifest.json");
  CHECK(find_latest(root)->step == 20);
}

TEST_CASE("damaged checkpoints neither count nor are deleted when old ones are") {
  const TemporaryFolder folder;
  const fs::path& root = folder.path;
  for (const int64_t step : {10, 20, 30}) save(root, step);
  fs::remove(root / "step-00000020/state.json");
  fs::resize_file(root / "step-00000030/model.safetensors", 5);
  save(root, 40, 200, 1, 2);
  for (const char* kept : {"step-00000010", "step-00000020", "step-00000030", "step-00000040"})
    CHECK(fs::exists(root / kept));
  save(root, 50, 200, 1, 2);
  CHECK_FALSE(fs::exists(root / "step-00000010"));
  CHECK(fs::exists(root / "step-00000020/model.safetensors"));
  CHECK(fs::exists(root / "step-00000030/state.json"));
}

TEST_CASE("values that no training has are refused, though their checksums are right") {
  const TemporaryFolder folder;
  const fs::path step = save(folder.path, 30);
  for (const int64_t wrong : {int64_t{-5}, int64_t{0}, int64_t{1} << 62, int64_t{29}}) {
    INFO(wrong);
    TrainState state;
    state.set("step", wrong);
    state.save(step / "state.json");
    seal_again(step, 30);
    CHECK_THAT(complaint(folder.path), Contains("state.json") && Contains(std::to_string(wrong)));
    make_old(step, 30);
    CHECK_THAT(complaint(folder.path), Contains("state.json"));
  }
  seal_again(step, int64_t{1} << 62);
  CHECK_THAT(complaint(folder.path), Contains("manifest.json"));
}

TEST_CASE("a checkpoint without checksums loads as before, whatever the size of its recipe.yaml") {
  const TemporaryFolder folder;
  const fs::path step = save(folder.path, 30);
  make_old(step, 30);
  CHECK_FALSE(read_manifest(step).has_sums);
  CHECK(complaint(folder.path).empty());
  std::ofstream(step / "recipe.yaml", std::ios::app) << "# a comment\n";
  CHECK(complaint(folder.path).empty());
  for (const char* name : {"model.safetensors", "state.json", "manifest.json"}) {
    const fs::path file = step / name;
    const std::string before = read_file(file);
    fs::resize_file(file, fs::file_size(file) - 2);
    CHECK_THAT(complaint(folder.path), Contains(name));
    write_file_atomic(file, before);
  }
}

TEST_CASE("another program's manifest.json and .sums leave its folder unchecked") {
  const TemporaryFolder folder;
  const fs::path hf = folder / "hf", file = hf / "model.safetensors";
  fs::create_directory(hf);
  const std::vector<float> x{1, 2};
  SafetensorsWriter writer(file, {{"x", DType::f32, {2}}});
  writer.write("x", {x.data(), 2, DType::f32});
  writer.commit();
  const auto read = [&] {
    std::vector<float> got(2);
    SafetensorsReader(file).read("x", 0, 2, got.data());
    return got;
  };
  write_file_atomic(sums_path(file), "d41d8cd98f00b204e9800998ecf8427e  model.safetensors\n");
  CHECK(read() == x);
  for (const char* manifest :
       {"", "[1]", "not JSON", R"({"files": ["model.safetensors"], "checksum": "1b2f"})",
        R"({"schemaVersion": 2, "layers": [{"digest": "sha256:0", "size": 5}]})"}) {
    INFO(manifest);
    write_file_atomic(hf / kManifest, manifest);
    CHECK_FALSE(is_ours(hf));
    CHECK_FALSE(complete_checkpoint(hf));
    CHECK(read() == x);
  }
  // A checkpoint under another name is still a checkpoint.
  const fs::path renamed = folder / "best";
  fs::rename(save(folder / "root", 30), renamed);
  CHECK(is_ours(renamed));
  const FlippedBit flipped(renamed / kManifest, 0, 0);
  CHECK_THROWS_AS(complete_checkpoint(renamed), RunError);
}

TEST_CASE("earlier versions read a new checkpoint: they know sizes alone, and ignore the rest") {
  const TemporaryFolder folder;
  const fs::path step = save(folder.path, 30);
  const auto json = nlohmann::json::parse(read_file(step / "manifest.json"));
  CHECK(json.at("step") == 30);
  CHECK(json.at("sums") == true);
  CHECK(json.at("files").size() == 4);
  for (const auto& [name, bytes] : json.at("files").items())
    CHECK(bytes == fs::file_size(step / name));
  CHECK(nlohmann::json::parse(read_file(step / "state.json")).at("format") == 1);
}

TEST_CASE("a file of several blocks is checked block by block, and the block is named") {
  const TemporaryFolder folder;
  const int64_t count = (3 * kSumsBlock + 1000) / 4;
  const fs::path file = save(folder.path, 30, count) / "model.safetensors";
  CHECK(read_file(sums_path(file)) == make_sums(file));  // as written, and as read
  const auto read = [&](int64_t first, int64_t elements) {
    const SafetensorsReader reader(file);
    std::vector<float> x(static_cast<size_t>(elements));
    FiniteValues(reader).read("x", first, elements, x.data());
    for (int64_t i = 0; i < elements; ++i) REQUIRE(x[size_t(i)] == 1 + float(first + i) * 0.5f);
  };
  read(0, count);
  read(kSumsBlock / 4 - 3, 7);
  const FlippedBit flipped(file, 2 * kSumsBlock + 5, 3);
  read(0, kSumsBlock / 4);  // other blocks are sound
  CHECK_THROWS_WITH(read(0, count), Contains("model.safetensors is damaged") &&
                                        Contains("bytes 8388608 to 12582911"));
}

TEST_CASE("a folder that cannot be listed or has lost its checkpoints is not an empty one") {
  const TemporaryFolder folder;
  CHECK_FALSE(find_latest(folder / "none"));
  const fs::path step = save(folder / "root", 30);
  fs::remove_all(step);
  CHECK_THROWS_WITH(find_latest(folder / "root"), Contains("latest names step-00000030"));
}

TEST_CASE("a folder in which nothing can be saved is an error before the first save") {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  for (const fs::path& root : {folder / "file", folder / "file/sub", fs::path("/proc/none")}) {
    CHECK_THROWS_WITH(require_writable(root, "checkpoint.dir"), Contains("checkpoint.dir"));
    CHECK_THROWS_AS(require_writable(root, "checkpoint.dir"), UserError);
  }
  require_writable(folder / "a/b", "checkpoint.dir");
  CHECK(fs::is_empty(folder / "a/b"));
}

TEST_CASE("the error of a damaged file names the checkpoint before it") {
  const TemporaryFolder folder;
  for (const char* name : {"step-00000010", "step-00000020.abandoned", "step-00000030"})
    fs::create_directory(folder / name);
  const auto hint = [&](const char* step) {
    return damaged_file(folder / step / "model.safetensors", "it is short").hint();
  };
  CHECK_THAT(hint("step-00000030"),
             Contains("checkpoint.load=" + (folder / "step-00000010").string()));
  CHECK_THAT(hint("step-00000010"), !Contains("checkpoint.load"));
}

}  // namespace storage_damage_test
