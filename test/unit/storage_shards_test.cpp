// Checkpoints of format 2: their index, and tensors whose pieces are in several files.
#include <fstream>
#include <random>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/file.h"
#include "storage/checkpoint_diff.h"
#include "storage/checkpoint_dir.h"
#include "storage/checkpoint_tensors.h"
#include "storage/damaged_checkpoint.h"
#include "storage/file_sums.h"
#include "storage/shard_reader.h"
#include "storage/verify_checkpoint.h"
#include "test/support/damage_testing.h"
#include "test/support/temporary_folder.h"

namespace storage_shards_test {

using namespace mtrain;
using namespace mtrain::storage;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

float value_of(int64_t element) { return float(element) + 0.5f; }

int64_t element_of(const StridedRun& r, int64_t i) {
  return r.first + i / r.count * r.stride + i % r.count;
}

// Writes a file with these pieces of the tensor `x`, and lists them in the index. `more` is added
// to its values.
void write_shard(const fs::path& folder, TensorSet set, int rank, DType dtype,
                 const std::vector<StridedRun>& runs, CheckpointIndex& index, float more) {
  const std::string name = shard_file_name(set, rank);
  std::vector<TensorInfo> infos;
  for (const StridedRun& r : runs) infos.push_back({piece_name("x", r), dtype, {r.total()}});
  SafetensorsWriter file(folder / name, infos, {}, SafetensorsWriter::Sums::beside);
  for (const StridedRun& r : runs) {
    std::vector<float> values;
    std::vector<bf16> narrow;
    for (int64_t i = 0; i < r.total(); ++i) values.push_back(value_of(element_of(r, i)) + more);
    for (const float v : values) narrow.push_back(bf16(v));
    if (dtype == DType::f32)
      file.write(piece_name("x", r), {values.data(), r.total(), dtype});
    else
      file.write(piece_name("x", r), {narrow.data(), r.total(), dtype});
    index.of(set)["x"].pieces.push_back({int32_t(index.files.size()), r});
  }
  file.commit();
  index.files.push_back(name);
}

// A tensor (rows, 12) whose columns four ranks have; the first two divide theirs by rows.
fs::path save_columns(const fs::path& root, int64_t step, int64_t rows,
                      const std::vector<TensorSet>& sets = {TensorSet::weights,
                                                            TensorSet::optimizer},
                      float more = 0) {
  CheckpointWriter writer(root, step);
  CheckpointIndex index;
  const int64_t half = rows / 2;
  for (const TensorSet set : sets) {
    const DType dtype = set == TensorSet::weights ? DType::f32 : DType::bf16;
    index.of(set)["x"] = {.dtype = dtype, .shape = {rows, 12}};
    const auto columns = [&](int64_t part, int64_t begin, int64_t n) {
      return StridedRun{.first = begin * 12 + part * 3, .count = 3, .times = n, .stride = 12};
    };
    const std::vector<StridedRun> of_rank[]{{columns(0, 0, half)},
                                            {columns(1, half, rows - half)},
                                            {columns(1, 0, half), columns(0, half, rows - half)},
                                            {columns(2, 0, rows), columns(3, 0, rows)}};
    for (int rank = 0; rank < 4; ++rank)
      write_shard(writer.folder(), set, rank, dtype, of_rank[rank], index, more);
  }
  writer.set_index(index, {});
  return writer.commit();
}

void check_values(const CheckpointTensors& from, int64_t first, int64_t count) {
  std::vector<float> values(size_t(count), -1);
  from.read("x", first, count, values.data());
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) wrong += values[size_t(i)] != value_of(first + i);
  CHECK(wrong == 0);
}

// Changes index.json, and gives it the checksum of the change.
void change_index(const fs::path& folder, const std::function<void(nlohmann::json&)>& change) {
  auto json = nlohmann::json::parse(read_file(folder / kIndexJson));
  change(json);
  const std::string none(32, '0'), key = "\"checksum\": \"";
  json["checksum"] = none;
  std::string text = json.dump(2) + "\n";
  text.replace(text.find(key) + key.size(), none.size(), content_hash(text));
  write_file_atomic(folder / kIndexJson, text);
}

std::string complaint(const fs::path& folder) {
  try {
    const auto found = complete_checkpoint(folder);
    REQUIRE(found);
    for (const TensorSet set : {TensorSet::weights, TensorSet::optimizer}) {
      const auto from = open_checkpoint_tensors(folder, set);
      std::vector<float> values(size_t(from->shape("x").count()));
      from->read("x", 0, int64_t(values.size()), values.data());
    }
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("any run of elements is read from the pieces that have them, and from no others") {
  const TemporaryFolder root;
  const fs::path folder = save_columns(root.path, 7, 11);
  REQUIRE(complete_checkpoint(folder)->step == 7);
  REQUIRE(find_latest(root.path)->path == folder);
  const auto from = open_checkpoint_tensors(folder, TensorSet::weights);
  CHECK(from->contains("x"));
  CHECK_FALSE(from->contains("y"));
  CHECK(from->shape("x") == Shape{11, 12});
  CHECK(from->entries().size() == 1);
  for (int64_t first = 0; first < 132; ++first)
    for (int64_t count = 0; first + count <= 132; count += 7) check_values(*from, first, count);
  check_values(*open_checkpoint_tensors(folder, TensorSet::optimizer), 3, 100);
  CHECK_THROWS_WITH(from->shape("xx"), Contains("index.json") && Contains("did it mean `x`"));

  // A reader of large files reads only the blocks that meet the elements.
  const fs::path large = save_columns(root.path, 8, 1'600'000,
                                      {TensorSet::weights});  // 9.6 MB in each of the first files
  const auto reader = open_checkpoint_tensors(large, TensorSet::weights);
  CHECK(reader->fingerprint() != from->fingerprint());
  const FlippedBit flipped(large / "weights-00000.safetensors", 3 * kSumsBlock / 2, 0);
  check_values(*reader, 0, 600);             // in its first block
  check_values(*reader, 12 * 780'000, 600);  // in its last one
  CHECK_THROWS_WITH(check_values(*reader, 12 * 500'000, 600),
                    Contains("weights-00000.safetensors is damaged: bytes 4194304 to"));
  check_values(*reader, 12 * 900'000, 600);  // in the other files
}

TEST_CASE("pieces are written in few bytes, and any other text is refused") {
  const std::vector<Piece> pieces{
      {0, {0, 4096}}, {16383, {405'000'000'000, 7}}, {123, {1'000'000'000, 6656, 16384, 53248}}};
  const std::string text = pieces_text(pieces);
  CHECK(text == "0:0+4096 16383:405000000000+7 123:1000000000+6656x16384/53248");
  CHECK(text.size() / pieces.size() <= 64);
  const auto again = parse_pieces(text);
  REQUIRE(again.size() == pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    CHECK(again[i].file == pieces[i].file);
    CHECK(again[i].run == pieces[i].run);
  }
  CHECK(parse_pieces("").empty());
  for (const char* wrong : {" ", "0", "0:", "0:1", "0:1+", "0:1+2 ", "0:1+2,1:2+3", "0:1+2x",
                            "0:1+2x3", "0:1+2x3/", "-1:0+1", "0:-1+1", "0:0+-1", "0:1+2x3/4/5", "x",
                            "0 1 2", "99999999999:0+1", "0:99999999999999999999+1"})
    CHECK_THROWS_AS(parse_pieces(wrong), UserError);
  // Texts of the same signs either have a meaning or are refused.
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    std::string fuzzed = text;
    for (int n = 0; n < 3; ++n)
      fuzzed[random() % fuzzed.size()] = "0123456789:+x/ -"[random() % 16];
    try {
      const auto parsed = parse_pieces(fuzzed);
      CHECK(!parsed.empty());
    } catch (const UserError&) {
    }
  }
}

TEST_CASE("a damaged index or shard is named, and nothing of it is loaded") {
  constexpr int64_t kLengths = 20;
  const TemporaryFolder root;
  const fs::path folder = save_columns(root.path, 7, 11);
  CHECK(complaint(folder).empty());
  std::mt19937_64 random(5);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const auto size = int64_t(entry.file_size());
    CAPTURE(name, size);
    for (int64_t byte = 0; byte < size; ++byte) {
      const FlippedBit flipped(entry.path(), byte, int(random() % 8));
      CAPTURE(byte);
      const std::string file = name.substr(0, name.find(".sums"));
      CHECK_THAT(complaint(folder), Contains(file));
    }
    const std::string sound = read_file(entry.path());
    for (int64_t i = 1; i <= kLengths; ++i) {
      const int64_t length = size - (size * i + kLengths - 1) / kLengths;
      CAPTURE(length);
      write_file_atomic(entry.path(), sound.substr(0, size_t(length)));
      CHECK_THAT(complaint(folder), Contains(name));
    }
    fs::remove(entry.path());
    CHECK_THAT(complaint(folder), Contains(name));
    write_file_atomic(entry.path(), sound);
  }
  CHECK(complaint(folder).empty());
  // Two files of a set have the same size, and are exchanged.
  fs::rename(folder / "weights-00000.safetensors", folder / "a");
  fs::rename(folder / "optimizer-00000.safetensors", folder / "weights-00000.safetensors");
  fs::rename(folder / "a", folder / "optimizer-00000.safetensors");
  CHECK_THAT(complaint(folder),
             Contains("weights-00000.safetensors") || Contains("optimizer-00000.safetensors"));
}

TEST_CASE("a file of another step is named, with and without its checksums") {
  const TemporaryFolder root;
  const fs::path folder = save_columns(root.path, 7, 11);
  const fs::path other =
      save_columns(root.path, 8, 11, {TensorSet::weights, TensorSet::optimizer}, 1);
  int files = 0;
  for (const auto& entry : fs::directory_iterator(other)) {
    const std::string name = entry.path().filename().string(), sums = name + ".sums";
    if (!name.ends_with(".safetensors")) continue;
    CAPTURE(name);
    ++files;
    REQUIRE(entry.file_size() == fs::file_size(folder / name));
    const std::string sound = read_file(folder / name), sound_sums = read_file(folder / sums);
    write_file_atomic(folder / name, read_file(other / name));
    CHECK_THAT(complaint(folder), Contains(name) && Contains("is damaged"));
    write_file_atomic(folder / sums, read_file(other / sums));
    CHECK_THAT(complaint(folder), Contains(sums) && Contains("is damaged"));
    write_file_atomic(folder / name, sound);
    write_file_atomic(folder / sums, sound_sums);
  }
  CHECK(files == 8);
  CHECK(complaint(folder).empty());
  write_file_atomic(folder / kIndexJson, read_file(other / kIndexJson));
  CHECK_THAT(complaint(folder), Contains("index.json") && Contains("is damaged"));
}

TEST_CASE("an index that does not describe each element once is refused") {
  const TemporaryFolder root;
  using nlohmann::json;
  struct Row {
    const char* pieces;
    const char* named;
  };
  const fs::path folder = save_columns(root.path, 7, 4);  // 48 elements
  const std::string sound = read_file(folder / kIndexJson);
  for (const Row& row : std::vector<Row>{{"0:0+47", "do not cover it once"},
                                         {"0:0+49", "is not in its tensor"},
                                         {"0:0+24 1:23+24", "`x` is in two pieces"},
                                         {"0:0+24 1:25+23 1:0+1", "`x` is in two pieces"},
                                         {"0:0+48 1:0+0", "is not in its tensor"},
                                         {"9:0+48", "is not in its tensor"},
                                         {"0:0+3x16/2", "is not in its tensor"},
                                         {"0:0+12x4/9223372036854775807", "is not in its tensor"},
                                         {"0:9223372036854775807+48", "is not in its tensor"},
                                         {"0:0+48/3", "list of pieces"},
                                         {"0:0+48", "has no tensor `x@0` of 48 elements"}}) {
    INFO(row.pieces);
    change_index(folder, [&](json& index) { index["weights"]["x"]["pieces"] = row.pieces; });
    CHECK_THAT(complaint(folder), Contains(row.named));
    write_file_atomic(folder / kIndexJson, sound);
  }
  const std::vector<std::pair<const char*, std::function<void(json&)>>> changes{
      {"no files of tensors", [](json& j) { j.erase("tensor_files"); }},
      {"a foreign file", [](json& j) { j["tensor_files"][0] = "../x"; }},
      {"no weights", [](json& j) { j.erase("weights"); }},
      {"no shape", [](json& j) { j["weights"]["x"].erase("shape"); }},
      {"a negative shape",
       [](json& j) {
         j["weights"]["x"]["shape"] = {-4, 12};
       }},
      {"a large shape",
       [](json& j) {
         j["weights"]["x"]["shape"] = {1ll << 40, 1ll << 40};
       }},
      {"another type", [](json& j) { j["weights"]["x"]["dtype"] = "F99"; }},
      {"a file outside", [](json& j) { j["files"]["/etc/passwd"] = 1; }},
      {"an absolute name", [](json& j) { j["tensor_files"] = {"/etc/passwd"}; }}};
  for (const auto& [what, change] : changes) {
    INFO(what);
    change_index(folder, change);
    CHECK_THAT(complaint(folder), Contains("index.json is damaged"));
    write_file_atomic(folder / kIndexJson, sound);
  }
}

TEST_CASE("a checkpoint of a newer format names the version that reads it") {
  const TemporaryFolder root;
  const fs::path folder = save_columns(root.path, 7, 4);
  change_index(folder, [](nlohmann::json& index) {
    index["format"] = 3;
    index["needs"] = "7.1.0";
  });
  try {
    read_manifest(folder);
    FAIL("it was read");
  } catch (const UserError& e) {
    CHECK_THAT(e.what(), Contains("format 3") && Contains("reads formats 1 and 2") &&
                             Contains("use mtrain 7.1.0 or newer"));
  }
}

TEST_CASE("verify names the file and the piece of a bad block, and a wrong index") {
  const TemporaryFolder folder;
  const fs::path step = save_columns(folder.path, 7, 40);
  const Verified sound = verify_checkpoint(step);
  CHECK(sound.faults.empty());
  CHECK(sound.step == 7);
  CHECK(sound.files == 8);
  const fs::path file = step / shard_file_name(TensorSet::weights, 3);
  {
    const FlippedBit flipped(file, int64_t(fs::file_size(file)) - 1, 3);
    const Verified found = verify_checkpoint(step);
    REQUIRE(found.faults.size() == 1);
    CHECK_THAT(found.faults[0], Contains(file.string() + " is damaged") && Contains("x@6"));
    CHECK(is_damaged_again(file, 0));
  }
  CHECK_FALSE(is_damaged_again(file, 0));
  CHECK_FALSE(is_damaged_again(step / kIndexJson, -1));
  change_index(step, [](auto& json) { json["weights"]["x"]["shape"] = {40, 13}; });
  CHECK_THAT(verify_checkpoint(step).faults.at(0), Contains("index.json"));
  CHECK(is_damaged_again(step / kIndexJson, -1));
  fs::remove(step / kIndexJson);
  CHECK_THAT(verify_checkpoint(step).faults.at(0), Contains("index.json"));
}

TEST_CASE("differences of checkpoints of both formats are those of their tensors") {
  const TemporaryFolder folder;
  const std::vector<TensorSet> weights{TensorSet::weights};
  const fs::path a = save_columns(folder / "a", 7, 40, weights),
                 longer = save_columns(folder / "b", 7, 44, weights);
  CheckpointWriter writer(folder / "c", 7);
  std::vector<float> values;
  for (int64_t i = 0; i < 480; ++i) values.push_back(value_of(i));
  values[77] += 2;
  SafetensorsWriter file(writer.folder() / "model.safetensors", {{"x", DType::f32, {40, 12}}}, {},
                         SafetensorsWriter::Sums::beside);
  file.write("x", {values.data(), 480, DType::f32});
  file.commit();
  const fs::path single = writer.commit();
  const auto equal = checkpoint_differences(a, a);
  REQUIRE(equal.size() == 1);
  CHECK_FALSE(equal[0].differs());
  for (const auto& rows : {checkpoint_differences(a, single), checkpoint_differences(single, a)}) {
    REQUIRE(rows.size() == 1);
    CHECK(rows[0].largest == 2);
    CHECK(rows[0].element == 77);
  }
  CHECK(checkpoint_differences(a, longer)[0].reason == "40 x 12 and 44 x 12");
  CHECK(open_all_checkpoint_tensors(a).size() == 1);
  CHECK(open_all_checkpoint_tensors(single).size() == 1);
  CHECK(open_all_checkpoint_tensors(save_columns(folder / "d", 7, 40)).size() == 2);
}

TEST_CASE("a checkpoint whose index cannot be read is not a damaged one") {
  const TemporaryFolder folder;
  save_columns(folder.path, 7, 40);
  const fs::path step = save_columns(folder.path, 8, 40);
  CHECK(identity_of(step).size() == 32);
  CHECK(identity_of(step) != identity_of(folder / "step-00000007"));
  {
    const FlippedBit flipped(step / kIndexJson, 20, 0);
    CHECK_THROWS_AS(find_latest(folder.path), DamagedCheckpoint);
  }
  fs::rename(step / kIndexJson, folder / "aside");
  CHECK(identity_of(step).empty());
  bool damaged = false;
  try {
    find_latest(folder.path);
  } catch (const DamagedCheckpoint&) {
    damaged = true;
  } catch (const RunError& e) {
    CHECK_THAT(e.what(), Contains("index.json"));
  }
  CHECK_FALSE(damaged);
  fs::create_directory(step / kIndexJson);
  CHECK_THROWS_AS(find_latest(folder.path), RunError);
}

}  // namespace storage_shards_test
