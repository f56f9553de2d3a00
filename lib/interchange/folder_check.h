// Compares the tensors of a Hugging Face folder with those that its config.json asks for.
#pragma once
#include <string>
#include <vector>

#include "interchange/tensor_map.h"
#include "storage/safetensors_folder.h"

namespace mtrain::interchange {

// Returns a line for each tensor that is missing, has another shape or a type that cannot be read,
// or that nothing uses; known buffers of older versions are left out. Reads no data.
std::vector<std::string> tensor_mistakes(const storage::SafetensorsFolder& folder,
                                         const TensorMap& map);

// Throws UserError where embeddings are tied and the folder has an output layer of its own that
// differs from the table, which transformers would not read. Reads both, piece by piece.
void check_tied_copy(const storage::SafetensorsFolder& folder, const TensorMap& map);

}  // namespace mtrain::interchange
