// Compares the tensors of a Hugging Face folder with those that its config.json asks for.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "interchange/tensor_map.h"
#include "storage/safetensors_folder.h"

namespace mtrain::interchange {

// The layers [first, end) behind the model's own, which predict further tokens. None is built.
struct FurtherLayers {
  int64_t first = 0, end = 0;
  bool contains(const Family& family, std::string_view tensor) const;
};

// Returns those that the folder's config.json names, for a model of so many layers of its own.
FurtherLayers further_layers(const std::filesystem::path& folder, const Family& family,
                             int64_t layers);

// Throws UserError if config.json asks for far more layers or experts than the folder has tensors,
// before a map of their names fills the memory.
void check_tensor_count(const storage::SafetensorsFolder& folder, const spec::ModelSpec& model,
                        const NameForm& form);

// Returns a line for each tensor that is missing, has another shape or a type that cannot be read,
// or that nothing uses; known buffers of older versions and further layers are left out. Reads no
// data.
std::vector<std::string> tensor_mistakes(const storage::SafetensorsFolder& folder,
                                         const TensorMap& map, const FurtherLayers& further = {});

// Throws UserError where embeddings are tied and the folder has an output layer of its own that
// differs from the table, which transformers would not read. Reads both, piece by piece.
void check_tied_copy(const storage::SafetensorsFolder& folder, const TensorMap& map);

}  // namespace mtrain::interchange
