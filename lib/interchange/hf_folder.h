// A Hugging Face folder whose configuration and tensors are understood.
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
  recipe::Recipe recipe;  // its model section
  std::shared_ptr<const storage::SafetensorsFolder> tensors;
  TensorMap map;
  std::string left_out = {};  // a sentence on tensors that no part of mtrain reads; or empty

  // Returns the folder's values under mtrain's names.
  std::shared_ptr<const HfSource> source() const {
    return std::make_shared<HfSource>(tensors, map);
  }
};

// Opens the folder. Throws one UserError with all mistakes: of config.json, of the files, and every
// tensor that is missing, unmapped, or of another shape or type. Reads no weights, unless tied
// embeddings have two copies, which must be equal.
// `ignore_keys` is the recipe's model.ignore_keys.
HfFolder open_hf_folder(const std::filesystem::path& folder,
                        const std::vector<std::string>& ignore_keys = {});

// Returns a text by which ranks can tell whether they see the same folder, without reading it
// whole: a hash of config.json, and storage::weights_fingerprint().
std::string fingerprint(const HfFolder& folder);

// Returns what the folder holds, in lines for people: family, sizes, parameters, types, files.
std::string describe(const HfFolder& folder);

}  // namespace mtrain::interchange
