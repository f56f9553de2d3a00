// Writes a small model's folder twice: with weights in 8 bits and a scale for each block, as
// DeepSeek-V3 is published, and with the bf16 weights that these bits mean.
#pragma once
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/dtype.h"
#include "base/file.h"
#include "base/math.h"
#include "storage/safetensors.h"
#include "storage/safetensors_folder.h"
#include "storage/scaled_folder.h"
#include "test/support/interchange_testing.h"

namespace mtrain {

struct QuantizedTensor {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<float> values;  // what the tensor means, except in 8 bits
  std::vector<uint8_t> codes;
};
using QuantizedTensors = std::map<std::string, QuantizedTensor>;

// Adds a weight in 8 bits to `to`, and its scales. Returns the bf16 numbers that they mean.
inline std::vector<float> add_quantized(const std::string& name, const Shape& shape,
                                        const std::vector<float>& values,
                                        const storage::ScaleBlock& block, QuantizedTensors& to) {
  const int64_t columns = shape[shape.rank() - 1], rows = shape[shape.rank() - 2];
  const int64_t down = ceil_div(rows, block.rows), across = ceil_div(columns, block.columns);
  const int64_t matrices = shape.count() / (rows * columns);
  Shape scales_shape = shape;
  scales_shape[shape.rank() - 2] = down, scales_shape[shape.rank() - 1] = across;
  std::vector<float> scales(size_t(matrices * down * across), 0.0f), meant(values.size());
  const auto scale_of = [&](int64_t i) -> float& {
    const int64_t row = i / columns, column = i % columns;
    return scales[size_t((row / rows * down + row % rows / block.rows) * across +
                         column / block.columns)];
  };
  for (int64_t i = 0; i < shape.count(); ++i)
    scale_of(i) = std::max(scale_of(i), std::fabs(values[size_t(i)]) / 448);
  for (float& s : scales) s = s == 0 ? 1 : s;
  std::vector<uint8_t> codes(values.size());
  for (int64_t i = 0; i < shape.count(); ++i) {
    const f8e4m3 code(values[size_t(i)] / scale_of(i));
    codes[size_t(i)] = code.bits;
    meant[size_t(i)] = float(bf16(float(code) * scale_of(i)));
  }
  to[name] = {DType::f8e4m3, shape, {}, std::move(codes)};
  to[name + "_scale_inv"] = {DType::f32, scales_shape, std::move(scales), {}};
  return meant;
}

// Writes these tensors to `files` files, and an index if there are several. The types of a file are
// in the order that the format needs.
inline void write_tensors(const std::filesystem::path& folder, const QuantizedTensors& tensors,
                          size_t files = 1) {
  std::filesystem::create_directories(folder);
  nlohmann::json index{{"metadata", {{"total_size", 0}}}, {"weight_map", nlohmann::json::object()}};
  for (size_t f = 0; f < files; ++f) {
    const std::string file = files == 1 ? "model.safetensors"
                                        : "model-0000" + std::to_string(f + 1) + "-of-0000" +
                                              std::to_string(files) + ".safetensors";
    std::vector<std::string> names;
    size_t next = 0;
    for (const auto& [name, t] : tensors)
      if (next++ % files == f) names.push_back(name);
    std::ranges::stable_sort(names, std::greater(), [&](const std::string& name) {
      return dtype_size(tensors.at(name).dtype);
    });
    std::vector<storage::TensorInfo> infos;
    for (const std::string& name : names) {
      infos.push_back({name, tensors.at(name).dtype, tensors.at(name).shape});
      index["weight_map"][name] = file;
    }
    storage::SafetensorsWriter writer(folder / file, infos);
    for (const std::string& name : names) {
      const QuantizedTensor& t = tensors.at(name);
      const auto count = t.shape.count();
      if (t.dtype == DType::f8e4m3) {
        writer.write(name, ConstSpan{t.codes.data(), count, t.dtype});
      } else if (t.dtype == DType::bf16) {
        const std::vector<bf16> halves(t.values.begin(), t.values.end());
        writer.write(name, ConstSpan{halves.data(), count, t.dtype});
      } else {
        writer.write(name, ConstSpan{t.values.data(), count, t.dtype});
      }
    }
    writer.commit();
  }
  if (files > 1) write_file_atomic(folder / storage::kIndexFile, index.dump());
}

// The config.json of a golden folder, with the quantization that DeepSeek-V3's has.
inline nlohmann::json quantized_config(const std::string& golden,
                                       const storage::ScaleBlock& block) {
  auto config = nlohmann::json::parse(read_file(golden_hf() / golden / "config.json"));
  config["quantization_config"] = {{"activation_scheme", "dynamic"},
                                   {"fmt", "e4m3"},
                                   {"quant_method", "fp8"},
                                   {"weight_block_size", {block.rows, block.columns}}};
  return config;
}

// Both forms of a golden folder. As in DeepSeek-V3, all matrices of the layers are in 8 bits except
// those of routers.
struct BothForms {
  QuantizedTensors quantized, plain;
};
inline BothForms both_forms(const std::string& golden, const storage::ScaleBlock& block) {
  const storage::SafetensorsFolder folder(golden_hf() / golden);
  BothForms both;
  for (const storage::StoredTensor* t : folder.tensors()) {
    const Shape shape = folder.shape(t->name);
    std::vector<float> values(size_t(shape.count()));
    folder.read(t->name, 0, shape.count(), values.data());
    const bool linear = shape.rank() >= 2 && t->name.find(".layers.") != std::string::npos &&
                        !t->name.ends_with("mlp.gate.weight");
    if (linear)
      both.plain[t->name] = {
          DType::bf16, shape, add_quantized(t->name, shape, values, block, both.quantized), {}};
    else
      both.plain[t->name] = both.quantized[t->name] = {DType::f32, shape, values, {}};
  }
  return both;
}

// Writes the folders `quantized` and `plain`.
inline void write_both_forms(const std::string& golden, const storage::ScaleBlock& block,
                             const std::filesystem::path& quantized,
                             const std::filesystem::path& plain, size_t files = 1) {
  const BothForms both = both_forms(golden, block);
  write_tensors(quantized, both.quantized, files);
  write_tensors(plain, both.plain, files);
  write_file_atomic(quantized / "config.json", quantized_config(golden, block).dump());
  write_file_atomic(plain / "config.json", read_file(golden_hf() / golden / "config.json"));
}

}  // namespace mtrain
