#include "storage/scaled_folder.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/math.h"

namespace mtrain::storage {

namespace {

constexpr const char* kCopyAgain =
    "download the folder again; each weight in 8 bits needs the scales of its blocks";
constexpr int64_t kCodesAtOnce = 64 << 10;  // bytes of a weight; they fit in a cache

// The matrices of a weight, and their blocks.
class Blocks {
 public:
  Blocks(const std::vector<int64_t>& shape, const ScaleBlock& block)
      : block_(block), rows_(shape[shape.size() - 2]), columns_(shape.back()) {}

  int64_t across() const { return ceil_div(columns_, block_.columns); }
  int64_t down() const { return ceil_div(rows_, block_.rows); }

  // Writes elements [first, first + count) of the weight, whose codes are `codes`.
  void multiply(const uint8_t* codes, int64_t first, int64_t count,
                const std::vector<float>& scales, float* values) const {
    for (int64_t i = 0; i < count;) {
      const int64_t row = (first + i) / columns_, column = (first + i) % columns_;
      const int64_t block = column / block_.columns;
      const int64_t end = std::min((block + 1) * block_.columns, columns_);
      const int64_t run = std::min(end - column, count - i);
      const int64_t blocks_above = row / rows_ * down() + row % rows_ / block_.rows;
      scale_run(codes + i, run, scales[size_t(blocks_above * across() + block)], values + i);
      i += run;
    }
  }

 private:
  static void scale_run(const uint8_t* codes, int64_t count, float scale, float* values) {
    static const std::array<float, 256> kNumbers = [] {
      std::array<float, 256> numbers{};
      for (int code = 0; code < 256; ++code) {
        f8e4m3 number;
        number.bits = uint8_t(code);
        numbers[size_t(code)] = float(number);
      }
      return numbers;
    }();
    for (int64_t i = 0; i < count; ++i) values[i] = float(bf16(kNumbers[codes[i]] * scale));
  }

  const ScaleBlock block_;
  const int64_t rows_, columns_;
};

// Returns the shape of a weight's scales: that of its blocks.
std::vector<int64_t> scale_shape(const StoredTensor& weight, const ScaleBlock& block) {
  const Blocks blocks(weight.shape, block);
  std::vector<int64_t> shape = weight.shape;
  shape[shape.size() - 2] = blocks.down();
  shape.back() = blocks.across();
  return shape;
}

}  // namespace

std::string scale_name(std::string_view weight) { return std::string(weight) + "_scale_inv"; }

std::string scale_mistake(const SafetensorsFolder& folder, const StoredTensor& weight,
                          const ScaleBlock& block) {
  const std::string origin = folder.origin(weight.name), name = scale_name(weight.name);
  if (weight.shape.size() < 2)
    return fmt::format("{}: a weight in 8 bits must be a matrix, and its shape is ({})", origin,
                       fmt::join(weight.shape, ", "));
  const std::vector<int64_t> expected = scale_shape(weight, block);
  if (!folder.contains(name))
    return fmt::format("{}: its type is {}, and its scales are missing: {} ({})", origin,
                       weight.type, name, fmt::join(expected, ", "));
  const StoredTensor& scales = folder.info(name);
  if (scales.shape != expected)
    return fmt::format("{}: its shape is ({}), and {} has ({}) blocks of {} x {}",
                       folder.origin(name), fmt::join(scales.shape, ", "), weight.name,
                       fmt::join(expected, ", "), block.rows, block.columns);
  if (scales.dtype != DType::f32 && scales.dtype != DType::bf16)
    return fmt::format("{}: scales must have type F32 or BF16, and have type {}",
                       folder.origin(name), scales.type);
  return "";
}

std::shared_ptr<const ScaledFolder::Scales> ScaledFolder::scales(const StoredTensor& weight) const {
  const std::lock_guard lock(mutex_);
  if (last_ && last_->weight == weight.name) return last_;
  if (const std::string mistake = scale_mistake(*folder_, weight, block_); !mistake.empty())
    throw UserError(mistake, kCopyAgain);
  const std::string name = scale_name(weight.name);
  auto read = std::make_shared<Scales>();
  read->weight = weight.name;
  read->values.resize(size_t(folder_->info(name).count()));
  folder_->read(name, 0, int64_t(read->values.size()), read->values.data());
  const auto bad = std::ranges::find_if_not(read->values, [](float s) { return std::isfinite(s); });
  if (bad != read->values.end())
    throw UserError(fmt::format("{} has {} as element {}: a scale must be finite",
                                folder_->origin(name), *bad, bad - read->values.begin()),
                    kCopyAgain);
  return last_ = read;
}

void ScaledFolder::read(std::string_view name, int64_t first, int64_t count, float* values) const {
  const StoredTensor& t = folder_->info(name);
  if (!has_scales(t)) return folder_->read(name, first, count, values);
  MT_CHECK(first >= 0 && count >= 0 && count <= t.count() - first, "elements {} + {} of {} of {}",
           first, count, t.count(), t.name);
  if (count == 0) return;
  const auto scales_of_t = scales(t);
  const Blocks blocks(t.shape, block_);
  uint8_t codes[kCodesAtOnce];
  for (int64_t done = 0; done < count; done += kCodesAtOnce) {
    const int64_t n = std::min(kCodesAtOnce, count - done);
    folder_->read_bytes(name, first + done, n, codes);
    blocks.multiply(codes, first + done, n, scales_of_t->values, values + done);
  }
}

}  // namespace mtrain::storage
