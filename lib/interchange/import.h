// Writes a Hugging Face folder as a checkpoint of mtrain's.
#pragma once
#include <filesystem>
#include <string>

#include "interchange/hf_folder.h"

namespace mtrain::interchange {

// Writes the checkpoint <output>/step-00000000: model.safetensors (fp32 weights under mtrain's
// names), state.json and recipe.yaml with the recipe of the model, and the folder's own
// config.json, tokenizer and settings of generation, by which an export writes the folder again.
// The types of the folder's tensors are in the metadata of model.safetensors. Weights are read and
// written in pieces of some MiB. The folder `output` is a new one, which appears whole or not at
// all. Returns the checkpoint's path. Throws UserError (a weight is not finite, `output` exists)
// and RunError (the disk is full, ...).
std::filesystem::path import_hf(const HfFolder& folder, const std::filesystem::path& output);

// Returns the text of that recipe.yaml: the model in fp32, for whoever uses it without training.
// The tokenizer is the tokenizer.json in `tokenizer`, which may be absent.
std::string imported_recipe(const HfFolder& folder, const std::filesystem::path& tokenizer);

// The key of that metadata. Its value is a JSON object: the format's type of each tensor of theirs.
inline constexpr const char* kImportedTypes = "hugging_face_types";

}  // namespace mtrain::interchange
