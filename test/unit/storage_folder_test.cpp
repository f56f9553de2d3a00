// Folders of a model's weights: one file, shards with their index, and what is refused.
#include <fstream>
#include <map>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "sparse_model.h"
#include "storage/fingerprint.h"
#include "storage/safetensors_folder.h"
#include "test/support/temporary_folder.h"

namespace storage_folder_test {

using namespace mtrain;
using namespace mtrain::storage;
using Catch::Contains;

namespace {

namespace fs = std::filesystem;
using FileOf = std::map<std::string, std::string>;

// Every tensor is of shape (2, 3), and holds its name's last letter.
void write_file(const fs::path& path, const std::vector<std::string>& names) {
  std::vector<TensorInfo> infos;
  for (const std::string& name : names) infos.push_back({name, DType::f32, {2, 3}});
  SafetensorsWriter writer(path, infos);
  for (const std::string& name : names) {
    const std::vector<float> values(6, float(name.back()));
    writer.write(name, {values.data(), 6, DType::f32});
  }
  writer.commit();
}

void write_index(const fs::path& folder, const FileOf& file_of) {
  std::string map;
  for (const auto& [tensor, file] : file_of)
    map += fmt::format(R"({}"{}":"{}")", map.empty() ? "" : ",", tensor, file);
  write_file_atomic(folder / kIndexFile,
                    R"({"metadata":{"total_size":96},"weight_map":{)" + map + "}}");
}

constexpr const char *kFirst = "model-00001-of-00002.safetensors",
                     *kSecond = "model-00002-of-00002.safetensors";
const FileOf kIndex{{"layer.a", kFirst}, {"layer.b", kFirst}, {"layer.c", kSecond}};

// A folder of two valid shards.
struct Shards : TemporaryFolder {
  Shards() {
    write_file(path / kFirst, {"layer.a", "layer.b"});
    write_file(path / kSecond, {"layer.c"});
    write_index(path, kIndex);
  }
};

std::string complaint(const fs::path& folder) {
  try {
    SafetensorsFolder(folder).tensors();
  } catch (const UserError& e) {
    return e.what();
  }
  return "(none)";
}

float value_of(const SafetensorsFolder& folder, const char* name) {
  float value = 0;
  folder.read(name, 5, 1, &value);
  return value;
}

}  // namespace

TEST_CASE("one file and shards with an index read alike") {
  const TemporaryFolder single;
  write_file(single / kModelFile, {"layer.a", "layer.b", "layer.c"});
  // Files beside the weights that belong to a model's folder.
  write_file_atomic(single / "config.json", "{}");
  write_file_atomic(single / "training_args.bin", "");
  const Shards shards;
  write_file(shards / "consolidated.safetensors", {"layers.0.a"});
  write_file_atomic(shards / "pytorch_model.bin", "");
  for (const fs::path& path : {single.path, shards.path}) {
    const SafetensorsFolder folder(path);
    CHECK(folder.files().size() == (path == single.path ? 1 : 2));
    REQUIRE(folder.tensors().size() == 3);
    for (const StoredTensor* t : folder.tensors()) {
      CHECK(t->type == "F32");
      CHECK(folder.contains(t->name));
      CHECK(folder.shape(t->name) == Shape{2, 3});
      CHECK(value_of(folder, t->name.c_str()) == float(t->name.back()));
    }
    CHECK(folder.bytes_read() == 3 * 4);
    CHECK_FALSE(folder.contains("layer.d"));
    CHECK_THROWS_WITH(folder.info("layer.cc"),
                      Contains(path.string()) && Contains("did it mean `layer.c`?"));
    CHECK_THROWS_AS(folder.shape("d"), UserError);
    CHECK_THROWS_AS(value_of(folder, "d"), UserError);
  }
  CHECK(SafetensorsFolder(shards.path).origin("layer.c") ==
        (shards / kSecond).string() + ": tensor `layer.c`");
}

TEST_CASE("a shard that is absent, extra or disagrees with the index is named, with its tensor") {
  const Shards shards;
  CHECK(complaint(shards.path) == "(none)");
  SECTION("absent") {
    fs::remove(shards / kSecond);
    CHECK_THAT(complaint(shards.path),
               Contains(kIndexFile) && Contains(std::string(kSecond) + " is absent"));
  }
  SECTION("extra") {
    write_file(shards / "model-00003-of-00002.safetensors", {"layer.d"});
    CHECK_THAT(complaint(shards.path),
               Contains("model-00003-of-00002.safetensors, which " + std::string(kIndexFile)));
  }
  SECTION("one file beside an index") {
    write_file(shards / kModelFile, {"layer.a", "layer.b", "layer.c"});
    CHECK_THAT(complaint(shards.path), Contains("holds model.safetensors, which"));
  }
  SECTION("an extra file beside one file") {
    const TemporaryFolder single;
    write_file(single / kModelFile, {"layer.a"});
    write_file(single / kSecond, {"layer.b"});
    CHECK_THAT(complaint(single.path), Contains(std::string(kSecond) + " beside model.safe"));
  }
  SECTION("shards without an index") {
    fs::remove(shards / kIndexFile);
    CHECK_THAT(complaint(shards.path),
               Contains(kFirst) && Contains("but no " + std::string(kIndexFile)));
  }
  SECTION("a tensor in another file") {
    FileOf index = kIndex;
    index["layer.b"] = kSecond;
    write_index(shards.path, index);
    CHECK_THAT(complaint(shards.path), Contains("tensor `layer.b` is in " + std::string(kFirst) +
                                                ", but the index names " + kSecond));
  }
  SECTION("a tensor twice") {
    write_file(shards / kSecond, {"layer.a", "layer.c"});
    CHECK_THAT(complaint(shards.path),
               Contains("tensor `layer.a` is in both " + std::string(kFirst) + " and " + kSecond));
  }
  SECTION("a tensor that no file has") {
    FileOf index = kIndex;
    index["layer.d"] = kSecond;
    write_index(shards.path, index);
    CHECK_THAT(complaint(shards.path),
               Contains("tensor `layer.d` is not in " + std::string(kSecond)));
  }
  SECTION("a tensor that the index lacks") {
    write_file(shards / kSecond, {"layer.c", "layer.d"});
    CHECK_THAT(complaint(shards.path),
               Contains(std::string("tensor `layer.d` of ") + kSecond + " is not in the index"));
  }
  SECTION("many at once") {
    FileOf index = kIndex;
    for (int i = 0; i < 10; ++i) index["other." + std::to_string(i)] = kSecond;
    write_index(shards.path, index);
    CHECK_THAT(complaint(shards.path), Contains("other.4") && Contains("and 5 more"));
  }
  SECTION("short") {
    fs::resize_file(shards / kSecond, fs::file_size(shards / kSecond) - 1);
    CHECK_THAT(complaint(shards.path), Contains(kSecond) && Contains("tensor `layer.c` ends"));
  }
}

TEST_CASE("an invalid index is refused by name") {
  const Shards shards;
  const auto refuses = [&](const std::string& text, const std::string& reason) {
    write_file_atomic(shards / kIndexFile, text);
    INFO(text);
    CHECK_THAT(complaint(shards.path), Contains(kIndexFile) && Contains(reason));
  };
  refuses("", "not JSON at byte 1");
  refuses("[]", "not a JSON object");
  refuses("{}", "no object `weight_map`");
  refuses(R"({"weight_map":[]})", "no object `weight_map`");
  refuses(R"({"weight_map":{"a":3}})", "the file of tensor `a`");
  refuses(R"({"weight_map":{"a":"pytorch_model.bin"}})", "pytorch_model.bin");
  refuses(R"({"weight_map":{"a":"../x.safetensors"}})", "../x.safetensors");
  refuses(R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})",
          "`weight_map.a` is given twice");
  refuses(R"({"metadata":{"x":[{"n":1,"n":2}]},"weight_map":{}})", "`metadata.x.n` is given twice");
  refuses(R"({"weight_map":{},"weight_map":{}})", "`weight_map` is given twice");
}

TEST_CASE("folders in other formats are refused with the command that converts them") {
  struct Row {
    std::vector<std::string> files;
    const char *what, *hint;
    bool beside_weights = false;
  };
  for (const Row& row : std::vector<Row>{
           {{"pytorch_model.bin"}, "pickle", "save_pretrained"},
           {{"pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"},
            "pickle",
            "save_"},
           {{".metadata", "__0_0.distcp"}, "(DCP)", "dcp_to_torch"},
           {{"tiny.Q4_K_M.gguf"}, "GGUF", "gguf_file"},
           {{"consolidated.00.pth", "params.json"}, "publisher", "convert_<family>"},
           {{"model.pt"}, "pickle", "save_pretrained"},
           {{"tf_model.h5"}, "TensorFlow", "from_tf"},
           {{"flax_model.msgpack"}, "Flax", "from_flax"},
           {{"adapter_config.json", "adapter_model.bin"}, "adapter", "merge_and_unload", true},
           {{"adapter_model.safetensors"}, "adapter", "merge_and_unload", true},
           {{"quantize_config.json"}, "quantized", "dequantize", true},
           {{"hf_quant_config.json"}, "quantized", "dequantize", true}}) {
    CAPTURE(row.files);
    const TemporaryFolder folder;
    for (const std::string& file : row.files) write_file_atomic(folder / file, "");
    CHECK_THAT(complaint(folder.path),
               Contains(folder.path.string()) && Contains(row.what) && Contains(row.hint));
    write_file(folder / kModelFile, {"layer.a"});
    CHECK((complaint(folder.path) == "(none)") != row.beside_weights);
  }
  const TemporaryFolder empty;
  CHECK_THAT(complaint(empty.path), Contains("holds no model.safetensors"));
  CHECK_THAT(complaint(empty / "absent"), Contains("absent is not a folder"));
}

TEST_CASE("70B in 30 files is read through a small part of its memory") {
  const TemporaryFolder folder;
  write_sparse_model(folder.path, llama_tensors(kLlama70b), 30);
  const int64_t before = anonymous_memory();
  int64_t most = before;
  const SafetensorsFolder model(folder.path);
  CHECK(model.files().size() == 30);
  CHECK(model.tensors().size() == 80 * 9 + 3);
  constexpr int64_t kPiece = 16 << 20;  // elements: 64 MiB in fp32
  std::vector<float> values(kPiece);
  int64_t elements = 0;
  const auto read = [&](const StoredTensor& t, int64_t first, int64_t count) {
    values[size_t(count - 1)] = 1;
    model.read(t.name, first, count, values.data());
    REQUIRE(values[size_t(count - 1)] == 0);
    most = std::max(most, anonymous_memory());
    elements += count;
  };
  // One of the largest tensors in full, and both ends of the others; all of it would take minutes.
  for (const StoredTensor* t : model.tensors()) {
    if (t->name == "lm_head.weight") {
      for (int64_t first = 0; first < t->count(); first += kPiece)
        read(*t, first, std::min(kPiece, t->count() - first));
    } else {
      const int64_t end = std::min<int64_t>(t->count(), 5000);
      read(*t, 0, end);
      read(*t, t->count() - end, end);
    }
  }
  CHECK(model.bytes_read() == 2 * elements);
#if !defined(__SANITIZE_THREAD__)    // which has memory of its own for each byte
  CHECK(most - before < 128 << 20);  // the buffer, and the parsed headers
#endif
}

TEST_CASE("a fingerprint distinguishes files by the ends of each tensor") {
  const TemporaryFolder temporary;
  const fs::path file = temporary / kModelFile;
  std::vector<TensorInfo> infos;
  for (const char* name : {"a", "b", "c"}) infos.push_back({name, DType::f32, {40, 40}});
  infos.push_back({"small", DType::f32, {3}});
  SafetensorsWriter writer(file, infos);
  std::vector<float> values(1600);
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(i);
  for (const TensorInfo& t : infos)
    writer.write(t.name, {values.data(), t.shape.count(), DType::f32});
  writer.commit();
  const auto fingerprint = [&] {
    const SafetensorsReader reader(file);
    return weights_fingerprint({&reader});
  };
  const std::string text = read_file(file), whole = fingerprint();
  const auto same_without = [&](int64_t at) {
    std::string changed = text;
    changed[size_t(at)] ^= 1;
    write_file_atomic(file, changed);
    return fingerprint() == whole;
  };
  const SafetensorsReader reader(file);
  for (const TensorInfo& t : infos) {
    INFO(t.name);
    const StoredTensor& stored = reader.info(t.name);
    CHECK_FALSE(same_without(stored.begin));
    CHECK_FALSE(same_without(stored.begin + stored.bytes - 1));
    if (t.name == "small") continue;
    CHECK_FALSE(same_without(stored.begin + 255));
    CHECK_FALSE(same_without(stored.begin + stored.bytes - 256));
    CHECK(same_without(stored.begin + 256));
    CHECK(same_without(stored.begin + stored.bytes - 257));
  }
  write_file_atomic(file, text);
  CHECK(fingerprint() == whole);
  const SafetensorsReader again(file);
  weights_fingerprint({&again});
  CHECK(again.bytes_read() == 3 * 512 + 12);
}

}  // namespace storage_folder_test
