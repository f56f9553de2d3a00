// Writes a Hugging Face folder as a checkpoint of mtrain.
#pragma once
#include <filesystem>
#include <string>

#include "interchange/hf_folder.h"

namespace mtrain::interchange {

// Writes the checkpoint <output>/step-00000000 and returns its path. It has model.safetensors (fp32
// weights under mtrain's names), and state.json and recipe.yaml with the model's recipe. It also
// has the folder's config.json, tokenizer and generation settings, with which an export can write
// the folder again. The metadata of model.safetensors has the dtypes of the folder's tensors.
// Weights are read and written in pieces of a few MiB. `output` must be a new folder; it appears
// completely or not at all. Throws UserError (a weight is not finite, `output` exists) and RunError
// (the disk is full, ...).
std::filesystem::path import_hf(const HfFolder& folder, const std::filesystem::path& output);

// Returns the text of that recipe.yaml: the model in fp32, for uses other than training. The
// tokenizer is the tokenizer.json in `tokenizer`, which may be absent.
std::string imported_recipe(const HfFolder& folder, const std::filesystem::path& tokenizer);

// The key of that metadata. Its value is a JSON object: the dtype of each Hugging Face tensor.
inline constexpr const char* kImportedTypes = "hugging_face_types";

}  // namespace mtrain::interchange
