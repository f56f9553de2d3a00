// Folders with weights in 8 bits and a scale for each block, as DeepSeek-V3 and Kimi K2 are
// published.
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "interchange/config/reader.h"
#include "interchange/export.h"
#include "interchange/hf_folder.h"
#include "interchange/import.h"
#include "interchange/model_source.h"
#include "recipe/recipe.h"
#include "test/support/quantized_folder.h"
#include "test/support/temporary_folder.h"

namespace interchange_quantized_test {

using namespace mtrain;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

std::vector<float> read_all(const storage::ValueSource& source, const std::string& name) {
  std::vector<float> values(size_t(source.shape(name).count()));
  source.read(name, 0, int64_t(values.size()), values.data());
  return values;
}

// Writes DeepSeek-V3 in 8 bits after `change`, and returns the message of the error with which it
// is opened and read; "" if there is none.
std::string error_of(const std::function<void(QuantizedTensors&, nlohmann::json&)>& change) {
  const TemporaryFolder temporary;
  const storage::ScaleBlock block{16, 8};
  QuantizedTensors tensors = both_forms("deepseek_v3", block).quantized;
  nlohmann::json config = quantized_config("deepseek_v3", block);
  change(tensors, config);
  write_tensors(temporary.path, tensors);
  write_file_atomic(temporary / "config.json", config.dump());
  try {
    const auto folder = interchange::open_hf_folder(temporary.path);
    const auto source = folder.source();
    for (const interchange::MappedTensor& t : folder.map.tensors()) read_all(*source, t.name);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

constexpr const char* kWeight = "model.layers.1.self_attn.o_proj.weight";
constexpr const char* kScales = "model.layers.1.self_attn.o_proj.weight_scale_inv";

// The message must name these scales.
void check_named(const std::string& message, const std::string& gist) {
  CHECK_THAT(message, Contains(kScales));
  CHECK_THAT(message, Contains(gist));
}

}  // namespace

TEST_CASE("any run of a weight in 8 bits is that part of the dequantized weight") {
  const TemporaryFolder temporary;
  for (const auto& [shape, block] :
       {std::pair{Shape{300, 200}, storage::ScaleBlock{}},
        {Shape{128, 256}, storage::ScaleBlock{}},
        {Shape{1, 129}, storage::ScaleBlock{}},
        {Shape{129, 1}, storage::ScaleBlock{}},
        {Shape{3, 130, 140}, storage::ScaleBlock{}},
        {Shape{31, 17}, storage::ScaleBlock{5, 3}},
        {Shape{600, 300}, storage::ScaleBlock{}}}) {  // more than are read at a time
    std::vector<float> values(size_t(shape.count()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = std::sin(float(i)) * std::exp2(float(i % 37) - 20);
    QuantizedTensors tensors;
    const std::vector<float> meant = add_quantized("w.weight", shape, values, block, tensors);
    const fs::path path = temporary / fmt::format("{}", shape.str());
    write_tensors(path, tensors);
    const storage::ScaledFolder folder(std::make_shared<storage::SafetensorsFolder>(path), block);
    CHECK(read_all(folder, "w.weight") == meant);
    CHECK(read_all(folder, "w.weight_scale_inv") == tensors.at("w.weight_scale_inv").values);
    const int64_t n = shape.count();
    for (const auto& [first, end] :
         {std::pair{n / 3, n - n / 5}, {n - 1, n}, {n / 2, n / 2}, {n / 7, n / 7 + 1}}) {
      std::vector<float> run(size_t(end - first));
      folder.read("w.weight", first, end - first, run.data());
      CHECK(std::equal(run.begin(), run.end(), meant.begin() + first));
    }
  }
}

TEST_CASE("a folder in 8 bits has the values of the dequantized folder") {
  for (const std::string name :
       {"deepseek_v3", "deepseek_v3_direct", "deepseek_v2_lite", "llama", "qwen3_moe", "glm4_moe"})
    for (const storage::ScaleBlock block : {storage::ScaleBlock{}, {16, 8}, {5, 7}})
      for (const size_t files : {size_t(1), size_t(3)}) {
        INFO(name << ", blocks of " << block.rows << " x " << block.columns << ", files " << files);
        const TemporaryFolder temporary;
        write_both_forms(name, block, temporary / "8", temporary / "16", files);
        const auto quantized = interchange::open_hf_folder(temporary / "8");
        const auto plain = interchange::open_hf_folder(temporary / "16");
        const auto a = quantized.source(), b = plain.source();
        REQUIRE(quantized.map.tensors().size() == plain.map.tensors().size());
        for (const interchange::MappedTensor& t : plain.map.tensors())
          CHECK(read_all(*a, t.name) == read_all(*b, t.name));
        CHECK_THAT(interchange::describe(quantized), Contains("F8_E4M3 is read as BF16"));
        CHECK_THAT(interchange::describe(plain), !Contains("F8_E4M3"));
      }
}

TEST_CASE("a rank reads its rows of a weight in 8 bits, and one byte for each element") {
  const TemporaryFolder temporary;
  write_both_forms("llama", {16, 8}, temporary / "8", temporary / "16");
  const auto folder = interchange::open_hf_folder(temporary / "8");
  const auto source = folder.source();
  const int64_t before = folder.tensors->bytes_read();
  std::vector<float> rows(8 * 32);
  source->read("layers.1.attention.qkv.weight", 3 * 32, 8 * 32, rows.data());
  const std::string scales = "model.layers.1.self_attn.q_proj.weight_scale_inv";
  CHECK(folder.tensors->bytes_read() - before == 8 * 32 + folder.tensors->info(scales).bytes);
}

TEST_CASE("a wrong scale is an error that names the tensor and its file") {
  CHECK(error_of([](auto&, auto&) {}) == "");
  const auto with_scales = [](const std::function<void(QuantizedTensor&)>& change) {
    return error_of([&](QuantizedTensors& t, auto&) { change(t.at(kScales)); });
  };
  check_named(error_of([](QuantizedTensors& t, auto&) { t.erase(kScales); }), "missing");
  check_named(with_scales([](QuantizedTensor& t) {
                t.shape = {t.shape[0] + 1, t.shape[1]};
                t.values.resize(size_t(t.shape.count()), 1.0f);
              }),
              "its shape is");
  check_named(with_scales([](QuantizedTensor& t) {
                t.shape = {t.shape[1], t.shape[0]};
              }),
              "its shape is (3, 2)");
  check_named(with_scales([](QuantizedTensor& t) {
                t.dtype = DType::f8e4m3;
                t.codes.resize(t.values.size());
              }),
              "F8_E4M3");
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    check_named(with_scales([&](QuantizedTensor& t) { t.values.back() = bad; }),
                "as element 5: a scale must be finite");
  CHECK(with_scales([](QuantizedTensor& t) { t.dtype = DType::bf16; }) == "");
  // Several mistakes are reported at once.
  check_named(error_of([](QuantizedTensors& t, auto&) {
                t.erase(kScales);
                t.erase("model.layers.0.mlp.up_proj.weight_scale_inv");
              }),
              "model.layers.0.mlp.up_proj.weight_scale_inv");
  // A weight's own NaN is found like that of a bf16 weight, and scales of other types have no use.
  CHECK_THAT(error_of([](QuantizedTensors& t, auto&) { t.at(kWeight).codes[3] = 0x7f; }),
             Contains(kWeight) && Contains("element 3") && Contains("not finite"));
  check_named(error_of([](QuantizedTensors& t, auto&) {
                QuantizedTensor& w = t.at(kWeight);
                w.values.resize(w.codes.size());
                w.dtype = DType::bf16;
              }),
              "unmapped");
  CHECK_THAT(error_of([](auto&, nlohmann::json& c) { c.erase("quantization_config"); }),
             Contains(kWeight) && Contains("type F8_E4M3 without a quantization_config"));
}

TEST_CASE("the scales of layers that predict further tokens are left out with their weights") {
  CHECK(error_of([](QuantizedTensors& t, nlohmann::json& c) {
          c["num_nextn_predict_layers"] = 1;
          for (const char* end : {"", "_scale_inv"})
            t["model.layers.2.eh_proj.weight" + std::string(end)] =
                t.at(kWeight + std::string(end));
        }) == "");
}

TEST_CASE("other quantizations are refused by name, with a hint") {
  struct Row {
    nlohmann::json config;
    const char* gist;
  };
  for (const auto& [config, gist] : std::vector<Row>{
           {{{"quant_method", "gptq"}, {"bits", 4}}, "\"gptq\""},
           {{{"quant_method", "awq"}}, "\"awq\""},
           {{{"quant_method", "compressed-tensors"}}, "\"compressed-tensors\""},
           {{{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}}, "\"bitsandbytes\""},
           {{{"quant_method", "mxfp4"}}, "\"mxfp4\""},
           {{{"bits", 4}}, "names no quant_method"},
           {{{"quant_method", "fp8"}}, "weight_block_size must be two positive numbers"},
           {{{"quant_method", "fp8"}, {"weight_block_size", {128, 0}}}, "weight_block_size"},
           {{{"quant_method", "fp8"}, {"weight_block_size", {128}}}, "weight_block_size"},
           {{{"quant_method", "fp8"}, {"weight_block_size", {1.5, 2}}}, "weight_block_size"},
           {{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"fmt", "e5m2"}}, "e5m2"},
           {{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"experts", "fp4"}},
            "the key experts"},
           {"fp8", "not a JSON object"}}) {
    Diagnostics diagnostics;
    const nlohmann::json text{{"model_type", "llama"}, {"quantization_config", config}};
    interchange::read_config_json(text.dump(), "config.json", diagnostics);
    CHECK_THAT(diagnostics.text(recipe::Severity::error),
               Contains(gist) && Contains("dequantize()"));
    CHECK_THAT(error_of([&](auto&, nlohmann::json& c) { c["quantization_config"] = config; }),
               Contains(gist) && Contains("config.json"));
  }
}

TEST_CASE("an import of a folder in 8 bits exports bf16 weights without a quantization") {
  const TemporaryFolder temporary;
  write_both_forms("deepseek_v3", {16, 8}, temporary / "8", temporary / "16", 2);
  const fs::path a =
      interchange::import_hf(interchange::open_hf_folder(temporary / "8"), temporary / "imported8");
  const fs::path b = interchange::import_hf(interchange::open_hf_folder(temporary / "16"),
                                            temporary / "imported16");
  interchange::export_hf(a, temporary / "exported8", {});
  interchange::export_hf(b, temporary / "exported16", {});
  for (const char* file : {"model.safetensors", "config.json"})
    CHECK(read_file(temporary / "exported8" / file) == read_file(temporary / "exported16" / file));
  CHECK_THAT(read_file(temporary / "exported8/config.json"), !Contains("quantization"));
  const storage::SafetensorsFolder exported(temporary / "exported8");
  CHECK(exported.info(kWeight).dtype == DType::bf16);
  CHECK_FALSE(exported.contains(kScales));
}

}  // namespace interchange_quantized_test
