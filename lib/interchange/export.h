// Writes the model of a checkpoint as a Hugging Face folder.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "recipe/recipe.h"

namespace mtrain::interchange {

struct ExportOptions {
  // The dtype of all tensors. If empty, a tensor of an imported model keeps its original dtype, and
  // other models are fp32, as in the checkpoint. Biases of routers are always fp32.
  std::optional<DType> dtype;
  int64_t max_shard_bytes = 5'000'000'000;  // data per file; a larger tensor has its own file
  // Whether adapters are merged into the weights of a full model. Otherwise a checkpoint with
  // adapters becomes a folder of adapters in the format of peft (adapter_folder.h).
  bool merge = false;
  std::filesystem::path base = {};  // the base model of adapters; empty: the recipe's model.from
  // If set, called before each piece of a few MiB is written. An exception from it ends the export.
  std::function<void()> before_piece;
};

// A process that writes a part of an export, and how many there are.
struct ExportPart {
  int rank = 0, ranks = 1;
};

struct Exported {
  std::string model_type;
  int64_t parameters = 0, bytes = 0;     // written, without the files' headers
  int files = 0;                         // that hold weights
  std::string side_files;                // the names of the copied files, such as tokenizer.json
  bool adapters = false;                 // whether it is a folder of adapters
  std::map<std::string, int64_t> sizes;  // of the files that hold weights, without headers
};

// Reads the weights and the recipe of `checkpoint`, and writes a Hugging Face model into the
// new folder `output`, which appears completely or not at all. The model has config.json,
// generation_config.json, the weights (one file, or shards with an index) and the tokenizer's
// files. Keys of config.json without a field in mtrain are copied from the folder that the model
// came from. That is the checkpoint itself if it was imported, else the recipe's model.from if it
// still exists. The other files come from it too, unless the recipe of a trained model has a
// tokenizer.path. A model that was trained on bytes gets a byte tokenizer. Throws UserError (no
// family computes such a model, a value is too large for fp16, `output` exists) and RunError.
Exported export_hf(const std::filesystem::path& checkpoint, const std::filesystem::path& output,
                   const ExportOptions& options);

// Decides what write_consolidated() writes for `checkpoint`, and returns it as a text. One rank
// calls it before any rank writes, since its host may be the only one with the folder that the
// model came from. Throws UserError as export_hf(), and RunError if `folder` lacks the space.
std::string plan_consolidated(const std::filesystem::path& checkpoint,
                              const std::filesystem::path& folder,
                              const ExportOptions& options = {});

// About what write_consolidated() allocates on a rank: blocks that it reads, and the elements of a
// part in fp32 and in the type that is written.
inline constexpr int64_t kConsolidatedMemory = int64_t{128} << 20;

// Writes this rank's part of what export_hf() writes for `checkpoint`, which is not in use yet,
// into `folder`. `contents` is the text of plan_consolidated(), with the same options. The files of
// weights are spread over the ranks; rank 0, which made that text, writes the others as well. It
// reads the files of the checkpoint alone, and needs neither the device nor other ranks. The caller
// waits for all ranks; the folder then has the bytes of an export. Waits up to a minute until this
// host sees the folder and the checkpoint's index.json. The result is about all ranks' files.
Exported write_consolidated(const std::filesystem::path& checkpoint,
                            const std::filesystem::path& folder, const std::string& contents,
                            const ExportPart& part, const ExportOptions& options = {});

// Waits up to a minute until this host sees all files of weights that the ranks have written.
// Throws RunError.
void await_consolidated(const std::filesystem::path& folder, const Exported& exported);

// Adds an error to `diagnostics` if the recipe requests checkpoints in Hugging Face's format
// (checkpoint.save_consolidated), but no family computes its model, or peft cannot have its
// adapters. Without that request, such adapters are a warning. Does nothing if `diagnostics`
// already has an error.
void check_consolidated(const recipe::Recipe& recipe, Diagnostics& diagnostics);

// Returns the number of bytes of "5GB", "500MB", "1GiB" or "20000". Throws UserError otherwise.
int64_t parse_bytes(const std::string& text);

}  // namespace mtrain::interchange
