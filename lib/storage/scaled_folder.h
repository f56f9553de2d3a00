// Weights in 8 bits with a scale for each block of elements, as DeepSeek-V3 and Kimi K2 publish
// them. The tensor NAME_scale_inv holds the numbers by which the blocks of NAME are multiplied.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "storage/safetensors_folder.h"

namespace mtrain::storage {

// The size of a block. Blocks at the lower and right edges of a matrix may be smaller.
struct ScaleBlock {
  int64_t rows = 128, columns = 128;
};

// Returns the name of the tensor that holds the scales of this weight.
std::string scale_name(std::string_view weight);

// Returns whether read() of a ScaledFolder multiplies this tensor by scales.
inline bool has_scales(const StoredTensor& t) { return t.dtype == DType::f8e4m3; }

// Returns what is wrong with the scales of a weight for which has_scales() is true; "" if nothing.
// Names the tensors and their files. Reads no data.
std::string scale_mistake(const SafetensorsFolder& folder, const StoredTensor& weight,
                          const ScaleBlock& block);

// The folder's tensors. Those in 8 bits (F8_E4M3) become bf16 numbers: the product with the scale,
// computed in fp32. A scale that is not finite is a UserError.
class ScaledFolder : public ValueSource {
 public:
  ScaledFolder(std::shared_ptr<const SafetensorsFolder> folder, const ScaleBlock& block)
      : folder_(std::move(folder)), block_(block) {}

  bool contains(std::string_view name) const override { return folder_->contains(name); }
  Shape shape(std::string_view name) const override { return folder_->shape(name); }
  std::string origin(std::string_view name) const override { return folder_->origin(name); }
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override;

 private:
  // All scales of one weight. A rank reads a weight part by part, therefore they are kept.
  struct Scales {
    std::string weight;
    std::vector<float> values;
  };
  std::shared_ptr<const Scales> scales(const StoredTensor& weight) const;

  const std::shared_ptr<const SafetensorsFolder> folder_;
  const ScaleBlock block_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Scales> last_;  // those that were read last
};

}  // namespace mtrain::storage
