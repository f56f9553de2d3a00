// A Hugging Face folder whose config.json and tensors have been checked.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "interchange/hf_source.h"
#include "interchange/tensor_map.h"
#include "recipe/recipe.h"
#include "storage/safetensors_folder.h"

namespace mtrain::interchange {

struct HfFolder {
  recipe::Recipe recipe;  // with the model section of config.json
  std::shared_ptr<const storage::SafetensorsFolder> tensors;
  // The values of these tensors: `tensors` itself, unless weights are in 8 bits.
  std::shared_ptr<const storage::ValueSource> values;
  TensorMap map;
  std::string left_out = {};  // a sentence about tensors that mtrain does not read; or empty

  // Returns the folder's values under mtrain's names.
  std::shared_ptr<const HfSource> source() const { return std::make_shared<HfSource>(values, map); }
};

// Opens the folder, which may be named as on the Hugging Face Hub (base/hub_cache.h). Throws one
// UserError with all mistakes: in config.json, in the files, and each
// tensor that is missing, unmapped, or of the wrong shape or dtype. Reads weights only if tied
// embeddings have two copies, which must be equal.
// `ignore_keys` is the recipe's model.ignore_keys. Reads the first `mtp` layers of multi-token
// prediction; kAllMtpLayers: those that config.json names.
inline constexpr int64_t kAllMtpLayers = -1;
HfFolder open_hf_folder(const std::filesystem::path& path,
                        const std::vector<std::string>& ignore_keys = {}, int64_t mtp = 0);

// Returns a text that ranks compare to check that they see the same folder: a hash of config.json,
// and storage::weights_fingerprint(), which reads the tensors' headers and checksums. It reads a
// few bytes of each tensor if files have no checksums.
std::string fingerprint(const HfFolder& folder);

// Returns lines for the user about the folder: family, sizes, parameters, dtypes, files.
std::string describe(const HfFolder& folder);

}  // namespace mtrain::interchange
