#include <cstdio>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "interchange/export.h"
#include "interchange/hf_folder.h"
#include "interchange/import.h"
#include "storage/checkpoint_dir.h"
#include "storage/safetensors.h"
#include "test/support/interchange_testing.h"
#include "test/support/temporary_folder.h"

namespace interchange_tensors_test {

using namespace mtrain;
using Catch::Matchers::Contains;

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRouterBias = ".e_score_correction_bias";

// A tensor of a folder that a test changes and writes.
struct HostTensor {
  Shape shape;
  DType dtype = DType::f32;
  std::vector<float> values;
};
using Tensors = std::map<std::string, HostTensor>;

std::vector<float> read_all(const storage::ValueSource& source, const std::string& name) {
  std::vector<float> values(size_t(source.shape(name).count()));
  source.read(name, 0, int64_t(values.size()), values.data());
  return values;
}

Tensors tensors_of(const fs::path& folder) {
  const storage::SafetensorsFolder file(folder);
  Tensors all;
  for (const storage::StoredTensor* t : file.tensors())
    all[t->name] = {file.shape(t->name), DType::f32, read_all(file, t->name)};
  return all;
}

// Writes a folder of one file with these tensors and the configuration of a golden folder.
void write_folder(const fs::path& folder, const std::string& golden, const Tensors& tensors) {
  fs::create_directories(folder);
  fs::copy_file(golden_hf() / golden / "config.json", folder / "config.json",
                fs::copy_options::overwrite_existing);
  std::vector<storage::TensorInfo> infos;
  for (const auto& [name, t] : tensors) infos.push_back({name, t.dtype, t.shape});
  storage::SafetensorsWriter writer(folder / "model.safetensors", infos);
  for (const auto& [name, t] : tensors) {
    const std::vector<int32_t> whole(t.values.begin(), t.values.end());
    writer.write(name, t.dtype == DType::i32
                           ? ConstSpan{whole.data(), int64_t(whole.size()), DType::i32}
                           : ConstSpan{t.values.data(), int64_t(t.values.size()), DType::f32});
  }
  writer.commit();
}

std::string error_of(const std::string& golden, const Tensors& tensors) {
  const TemporaryFolder temporary;
  write_folder(temporary.path, golden, tensors);
  try {
    interchange::open_hf_folder(temporary.path);
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = read_file(entry.path());
  return files;
}

}  // namespace

TEST_CASE("any run of a tensor is that part of the whole") {
  for (const std::string& name : golden_hf_cases()) {
    INFO(name);
    const auto folder = interchange::open_hf_folder(golden_hf() / name);
    const auto source = folder.source();
    for (const interchange::MappedTensor& t : folder.map.tensors()) {
      const std::vector<float> whole = read_all(*source, t.name);
      const int64_t n = t.shape.count();
      for (const auto& [first, end] :
           {std::pair{int64_t{0}, int64_t{1}}, {n - 1, n}, {n / 3, n - n / 5}, {n / 2, n / 2}}) {
        std::vector<float> run(size_t(end - first));
        source->read(t.name, first, end - first, run.data());
        CHECK(std::equal(run.begin(), run.end(), whole.begin() + first));
      }
    }
  }
}

TEST_CASE("their tensors from mtrain's are the tensors of the folder") {
  for (const std::string& name : golden_hf_cases()) {
    INFO(name);
    const auto folder = interchange::open_hf_folder(golden_hf() / name);
    const auto source = folder.source();
    const interchange::HfView view(*source, folder.map);
    size_t compared = 0;
    for (const storage::StoredTensor* t : folder.tensors->tensors()) {
      if (t->name == folder.map.tied_copy()) continue;
      ++compared;
      CHECK(read_all(view, t->name) == read_all(*folder.tensors, t->name));
      std::vector<float> one(1);
      view.read(t->name, 5, 1, one.data());
      CHECK(one[0] == read_all(*folder.tensors, t->name)[5]);
    }
    CHECK(compared == folder.map.pieces().size());
  }
}

TEST_CASE("a run of rows reads no more than these rows") {
  const auto folder = interchange::open_hf_folder(golden_hf() / "llama");
  const auto source = folder.source();
  const int64_t before = folder.tensors->bytes_read();
  std::vector<float> rows(8 * 32);
  source->read("layers.1.attention.qkv.weight", 28 * 32, 8 * 32, rows.data());  // from q and k
  CHECK(folder.tensors->bytes_read() - before == 8 * 32 * 2);
}

TEST_CASE("every mistake of a folder's tensors is reported by name") {
  Tensors t = tensors_of(golden_hf() / "qwen2_tied");
  auto moved = t.extract("model.layers.0.self_attn.k_proj.bias");
  moved.key() = "model.layers.0.self_attn.k_proj.bais";
  t.insert(std::move(moved));
  t.erase("model.norm.weight");
  t["model.layers.1.mlp.up_proj.weight"].shape = {32, 40};
  t["model.embed_tokens.weight"].dtype = DType::i32;
  t["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{4}, DType::f32, {1, 2, 3, 4}};
  const std::string error = error_of("qwen2_tied", t);
  CHECK_THAT(error, Contains("missing: model.layers.0.self_attn.k_proj.bias (16)") &&
                        Contains("there is model.layers.0.self_attn.k_proj.bais"));
  CHECK_THAT(error,
             Contains("missing: model.norm.weight (32), which is mtrain's final_norm.weight"));
  CHECK_THAT(error, Contains("up_proj.weight") && Contains("its shape is (32, 40)") &&
                        Contains("asks for (40, 32)"));
  CHECK_THAT(error, Contains("cannot read weights of type I32"));
  CHECK_THAT(error, Contains("unmapped: model.layers.0.self_attn.k_proj.bais"));
  CHECK_THAT(error, !Contains("inv_freq"));  // a known buffer
}

TEST_CASE("a folder of tied embeddings may hold the table twice, if both are equal") {
  Tensors t = tensors_of(golden_hf() / "qwen2_tied");
  t["lm_head.weight"] = t["model.embed_tokens.weight"];
  CHECK(error_of("qwen2_tied", t) == "no error");
  t["lm_head.weight"].values[77] += 0.5f;
  CHECK_THAT(error_of("qwen2_tied", t),
             Contains("lm_head.weight differs from model.embed_tokens.weight"));
  Tensors untied = tensors_of(golden_hf() / "qwen2");
  untied.erase("lm_head.weight");
  CHECK_THAT(error_of("qwen2", untied), Contains("missing: lm_head.weight"));
}

TEST_CASE("GPT-2's folders may lack the prefix and hold masks") {
  Tensors t;
  for (auto& [name, tensor] : tensors_of(golden_hf() / "gpt2"))
    t[name.substr(std::string("transformer.").size())] = tensor;
  t["h.0.attn.bias"] = {{1, 1, 4, 4}, DType::f32, std::vector<float>(16)};
  t["h.0.attn.masked_bias"] = {{1}, DType::f32, {-1e4f}};
  const TemporaryFolder temporary;
  write_folder(temporary.path, "gpt2", t);
  const auto bare = interchange::open_hf_folder(temporary.path);
  const auto whole = interchange::open_hf_folder(golden_hf() / "gpt2");
  for (const interchange::MappedTensor& m : whole.map.tensors())
    CHECK(read_all(*bare.source(), m.name) == read_all(*whole.source(), m.name));
}

TEST_CASE("the experts of a layer may be one tensor") {
  for (const std::string name : {"mixtral", "qwen2_moe", "qwen3_moe", "dots1", "glm4_moe"}) {
    INFO(name);
    const auto separate = interchange::open_hf_folder(golden_hf() / name);
    const auto source = separate.source();
    Tensors t;
    for (const auto& [theirs, tensor] : tensors_of(golden_hf() / name))
      if (theirs.find(".experts.") == std::string::npos)
        t[name == "mixtral" && theirs.find("block_sparse_moe.gate") != std::string::npos
              ? "model.layers." + theirs.substr(13, 1) + ".mlp.gate.weight"
              : theirs] = tensor;
    for (const interchange::MappedTensor& m : separate.map.tensors()) {
      const size_t at = m.name.find(".mlp.experts.");
      if (at == std::string::npos) continue;
      const bool up = m.name.ends_with("gate_up.weight");
      t["model." + m.name.substr(0, at) + ".mlp.experts." + (up ? "gate_up_proj" : "down_proj")] = {
          m.shape, DType::f32, read_all(*source, m.name)};
    }
    const TemporaryFolder temporary;
    write_folder(temporary.path, name, t);
    const auto fused = interchange::open_hf_folder(temporary.path);
    for (const interchange::MappedTensor& m : separate.map.tensors())
      CHECK(read_all(*fused.source(), m.name) == read_all(*source, m.name));
  }
}

TEST_CASE("a weight that is not finite is named") {
  Tensors t = tensors_of(golden_hf() / "gpt2");
  t["transformer.h.1.mlp.c_fc.weight"].values[9] = std::numeric_limits<float>::quiet_NaN();
  const TemporaryFolder temporary;
  write_folder(temporary / "nan", "gpt2", t);
  const auto folder = interchange::open_hf_folder(temporary / "nan");
  CHECK_THROWS_WITH(interchange::import_hf(folder, temporary / "out"),
                    Contains("transformer.h.1.mlp.c_fc.weight") && Contains("not finite"));
  CHECK_FALSE(storage::find_latest(temporary / "out"));
}

TEST_CASE("import, export and import again give the same bytes") {
  for (const std::string& name : golden_hf_cases()) {
    INFO(name);
    const TemporaryFolder temporary;
    const auto first = interchange::import_hf(interchange::open_hf_folder(golden_hf() / name),
                                              temporary / "first");
    const auto done = interchange::export_hf(first, temporary / "exported", {});
    const storage::SafetensorsFolder exported(temporary / "exported");
    int64_t biases = 0;  // the routers', which are fp32 in all folders
    for (const storage::StoredTensor* t : exported.tensors()) {
      const bool bias = t->name.ends_with(kRouterBias);
      CHECK(t->type == (bias ? "F32" : "BF16"));
      if (bias) biases += t->bytes;
    }
    CHECK(done.parameters * 2 + biases == done.bytes);
    const auto second = interchange::import_hf(interchange::open_hf_folder(temporary / "exported"),
                                               temporary / "second");
    CHECK(read_file(first / "model.safetensors") == read_file(second / "model.safetensors"));
    interchange::export_hf(second, temporary / "again", {});
    CHECK(files_of(temporary / "exported") == files_of(temporary / "again"));
  }
}

TEST_CASE("the biases of routers are fp32 in an export of any type") {
  const TemporaryFolder temporary;
  const auto checkpoint = interchange::import_hf(
      interchange::open_hf_folder(golden_hf() / "dots1_window"), temporary / "imported");
  const Tensors want = tensors_of(golden_hf() / "dots1_window");
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const fs::path folder = temporary / std::string(dtype_name(dtype));
    interchange::export_hf(checkpoint, folder, {.dtype = dtype});
    const storage::SafetensorsFolder exported(folder);
    int found = 0;
    for (const storage::StoredTensor* t : exported.tensors()) {
      CHECK((t->type == "F32") == t->name.ends_with(kRouterBias));
      if (!t->name.ends_with(kRouterBias)) continue;
      ++found;
      CHECK(read_all(exported, t->name) == want.at(t->name).values);
    }
    CHECK(found == 2);
  }
}

TEST_CASE("a folder without the biases of its routers is refused by their name") {
  for (const std::string name : {"dots1", "glm4_moe"}) {
    Tensors t = tensors_of(golden_hf() / name);
    REQUIRE(t.erase("model.layers.1.mlp.gate.e_score_correction_bias") == 1);
    CHECK_THAT(error_of(name, t),
               Contains("missing: model.layers.1.mlp.gate.e_score_correction_bias (8), which is "
                        "mtrain's layers.1.mlp.router.bias"));
  }
}

TEST_CASE("layers of multi-token prediction are imported and exported if they are asked for") {
  // The folder's last layer, once more, is the layer of depth 1.
  Tensors t = tensors_of(golden_hf() / "glm4_moe");
  const Tensors own = t;
  for (const auto& [name, tensor] : own)
    if (name.starts_with("model.layers.1.")) {
      HostTensor further = tensor;
      for (float& value : further.values) value = 0.5f * value + 0.01f;
      t["model.layers.2." + name.substr(15)] = further;
    }
  const int64_t H = own.at("model.norm.weight").shape[0];
  const auto filled = [](const Shape& shape, float first) {
    HostTensor tensor{shape, DType::f32, std::vector<float>(size_t(shape.count()))};
    for (float& value : tensor.values) value = first += 0.125f;
    return tensor;
  };
  t["model.layers.2.enorm.weight"] = filled({H}, 1);
  t["model.layers.2.hnorm.weight"] = filled({H}, 2);
  t["model.layers.2.shared_head.norm.weight"] = filled({H}, 3);
  t["model.layers.2.eh_proj.weight"] = filled({H, 2 * H}, 4);
  t["model.layers.2.embed_tokens.weight"] = own.at("model.embed_tokens.weight");
  t["model.layers.2.shared_head.head.weight"] = own.at("lm_head.weight");
  const TemporaryFolder temporary;
  const auto write = [&](const char* name) {
    write_folder(temporary / name, "glm4_moe", t);
    auto config = nlohmann::json::parse(read_file(temporary / name / "config.json"));
    config["num_nextn_predict_layers"] = 1;
    write_file_atomic(temporary / name / "config.json", config.dump());
    return temporary / name;
  };
  const auto folder = interchange::open_hf_folder(write("from"), {}, interchange::kAllMtpLayers);
  CHECK(folder.left_out.empty());
  CHECK(folder.recipe.model.mtp_num_layers == 1);
  CHECK_THAT(interchange::describe(folder), Contains("2 layers, 1 of multi-token prediction"));
  CHECK(folder.source()->contains("layers.2.mtp.proj.weight"));
  const auto checkpoint = interchange::import_hf(folder, temporary / "imported");
  interchange::export_hf(checkpoint, temporary / "exported", {});
  const auto exported = nlohmann::json::parse(read_file(temporary / "exported/config.json"));
  CHECK(exported.at("num_nextn_predict_layers") == 1);
  const Tensors got = tensors_of(temporary / "exported");
  REQUIRE(got.size() == t.size());
  for (const auto& [name, tensor] : t) {
    INFO(name);
    CHECK((got.at(name).values == tensor.values));
  }
  CHECK_THROWS_WITH(
      interchange::open_hf_folder(temporary / "from", {}, 2),
      Contains("2 layers of multi-token prediction are asked for") && Contains("names 1"));
  t.at("model.layers.2.embed_tokens.weight").values[3] += 1;
  CHECK_THROWS_WITH(interchange::open_hf_folder(write("other_table"), {}, 1),
                    Contains("model.layers.2.embed_tokens.weight differs from "
                             "model.embed_tokens.weight"));
  t.erase("model.layers.2.embed_tokens.weight");
  t.erase("model.layers.2.hnorm.weight");
  CHECK_THROWS_WITH(interchange::open_hf_folder(write("without"), {}, 1),
                    Contains("missing: model.layers.2.hnorm.weight"));
}

TEST_CASE("layers that predict further tokens are reported and left out") {
  Tensors t = tensors_of(golden_hf() / "glm4_moe");
  t["model.layers.2.eh_proj.weight"] = {{4, 8}, DType::f32, std::vector<float>(32, 1.0f)};
  t["model.layers.2.mlp.gate.e_score_correction_bias"] = {{8}, DType::f32, std::vector<float>(8)};
  // config.json says how many there are.
  CHECK_THAT(error_of("glm4_moe", t), Contains("unmapped: model.layers.2.eh_proj.weight (4, 8)"));
  const TemporaryFolder temporary;
  const auto write = [&](const char* name, const nlohmann::json& further) {
    write_folder(temporary / name, "glm4_moe", t);
    auto config = nlohmann::json::parse(read_file(temporary / name / "config.json"));
    config["num_nextn_predict_layers"] = further;
    write_file_atomic(temporary / name / "config.json", config.dump());
    return temporary / name;
  };
  const auto folder = interchange::open_hf_folder(write("one", 1));
  CHECK_THAT(folder.left_out, Contains("2 tensors of the layers from 2 on") &&
                                  Contains("40 parameters") && Contains("are left out") &&
                                  Contains("num_nextn_predict_layers"));
  CHECK_THAT(interchange::describe(folder), Contains("Every other tensor is mapped") &&
                                                Contains("2 tensors of the layers from 2 on"));
  CHECK(interchange::open_hf_folder(golden_hf() / "glm4_moe").left_out.empty());
  // An export has none, and says so.
  const auto checkpoint = interchange::import_hf(folder, temporary / "imported");
  interchange::export_hf(checkpoint, temporary / "exported", {});
  const auto exported = nlohmann::json::parse(read_file(temporary / "exported/config.json"));
  CHECK(exported.at("num_nextn_predict_layers") == 0);
  CHECK_FALSE(
      storage::SafetensorsFolder(temporary / "exported").contains("model.layers.2.eh_proj.weight"));
  for (const char* number : {"9223372036854775807", "100001", "-1", "1.5", "\"one\""})
    CHECK_THROWS_WITH(interchange::open_hf_folder(write("wrong", nlohmann::json::parse(number))),
                      Contains("num_nextn_predict_layers must be a whole number from 0") &&
                          Contains("config.json"));
  // Further layers belong to the families that have them.
  t["model.layers.3.eh_proj.weight"] = {{4, 8}, DType::f32, std::vector<float>(32, 1.0f)};
  CHECK_THROWS_WITH(interchange::open_hf_folder(write("two", 1)),
                    Contains("unmapped: model.layers.3.eh_proj.weight"));
  Tensors dots = tensors_of(golden_hf() / "dots1");
  dots["model.layers.2.eh_proj.weight"] = {{4, 8}, DType::f32, std::vector<float>(32, 1.0f)};
  CHECK_THAT(error_of("dots1", dots), Contains("unmapped: model.layers.2.eh_proj.weight"));
}

TEST_CASE("the files beside the weights are copied byte for byte") {
  const TemporaryFolder temporary;
  write_folder(temporary / "hf", "llama", tensors_of(golden_hf() / "llama"));
  const std::map<std::string, std::string> side{
      {"tokenizer.json", "{ \"odd\":  \xc3\xa4 }\r\n"},
      {"tokenizer_config.json", "{}"},
      {"chat_template.jinja", "{{ x }}\n\n"},
      {"generation_config.json", "{\"eos_token_id\": [1, 2]}"}};
  for (const auto& [name, text] : side) write_file_atomic(temporary / "hf" / name, text);
  const auto checkpoint =
      interchange::import_hf(interchange::open_hf_folder(temporary / "hf"), temporary / "imported");
  const auto done = interchange::export_hf(checkpoint, temporary / "exported", {});
  CHECK_THAT(done.side_files, Contains("chat_template.jinja"));
  for (const auto& [name, text] : side) CHECK(read_file(temporary / "exported" / name) == text);
  CHECK_THROWS_WITH(interchange::export_hf(checkpoint, temporary / "exported", {}),
                    Contains("exists already"));
  CHECK_THROWS_WITH(
      interchange::import_hf(interchange::open_hf_folder(temporary / "hf"), temporary / "imported"),
      Contains("holds checkpoints already"));
}

TEST_CASE("an export to fp16 names a value that is too large for it, and leaves no folder") {
  Tensors t = tensors_of(golden_hf() / "llama");
  t["model.norm.weight"].values[3] = 7e4f;
  const TemporaryFolder temporary;
  write_folder(temporary / "large", "llama", t);
  const auto checkpoint = interchange::import_hf(interchange::open_hf_folder(temporary / "large"),
                                                 temporary / "imported");
  CHECK_THROWS_WITH(
      interchange::export_hf(checkpoint, temporary / "exported", {.dtype = DType::f16}),
      Contains("model.norm.weight") && Contains("70000") && Contains("--dtype bf16"));
  CHECK_FALSE(fs::exists(temporary / "exported"));
  CHECK(std::distance(fs::directory_iterator(temporary.path), {}) == 2);
}

TEST_CASE("numbers of bytes have units") {
  CHECK(interchange::parse_bytes("5GB") == 5'000'000'000);
  CHECK(interchange::parse_bytes("1.5MiB") == 3 << 19);
  CHECK(interchange::parse_bytes("20000") == 20000);
  for (const char* text : {"", "GB", "5 GB", "-1GB", "0", "5gb", "nan", "1e30"})
    CHECK_THROWS_WITH(interchange::parse_bytes(text), Contains("is not a number of bytes"));
}

}  // namespace interchange_tensors_test
