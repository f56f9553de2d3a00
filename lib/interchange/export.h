// Writes the model of a checkpoint as a Hugging Face folder.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "recipe/recipe.h"

namespace mtrain::interchange {

struct ExportOptions {
  // The type of all tensors. Without it a tensor of an imported model keeps the type that it had,
  // and those of other models are fp32, as in the checkpoint. Biases of routers are fp32 always.
  std::optional<DType> dtype;
  int64_t max_shard_bytes = 5'000'000'000;  // of a file's data; a larger tensor has a file alone
  // Called before each piece of some MiB is written, unless empty. What it throws ends the export.
  std::function<void()> before_piece;
};

struct Exported {
  std::string model_type;
  int64_t parameters = 0, bytes = 0;  // written, without headers
  int files = 0;                      // of weights
  std::string side_files;             // the names of those that were copied
};

// Reads model.safetensors and the recipe of `checkpoint`, and writes config.json,
// generation_config.json, the weights (one file, or shards with an index) and the files of the
// tokenizer into the new folder `output`, which appears whole or not at all. Keys of config.json
// that mtrain has no field for, and the other files, are those of the folder from which the model
// came: of the checkpoint itself where it was imported, else of the recipe's model.from while that
// folder exists. A model that was trained on bytes gets a tokenizer of bytes. Throws UserError (no
// family computes such a model, a value is too large for fp16, `output` exists) and RunError.
Exported export_hf(const std::filesystem::path& checkpoint, const std::filesystem::path& output,
                   const ExportOptions& options);

// Adds an error to `diagnostics` if the recipe asks for Hugging Face forms of its checkpoints
// (checkpoint.save_consolidated), and no family computes its model. Needs a recipe without errors,
// and does nothing for others.
void check_consolidated(const recipe::Recipe& recipe, Diagnostics& diagnostics);

// Returns the bytes of "5GB", "500MB", "1GiB", "20000"; UserError for other texts.
int64_t parse_bytes(const std::string& text);

}  // namespace mtrain::interchange
