// A trained model on disk, for generation and evaluation: a checkpoint of mtrain, or a Hugging Face
// folder, which is read without conversion.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "interchange/hf_source.h"
#include "plan/saved_recipe.h"
#include "storage/read_mark.h"
#include "train/router_state.h"
#include "train/trainer.h"

namespace mtrain::run {

struct StoredModel {
  std::filesystem::path folder;  // the checkpoint's, or the Hugging Face folder
  // The recipe in the checkpoint, or the recipe that `mtrain import hf` would write.
  plan::SavedRecipe recipe;
  plan::SavedRun saved;  // the run of that recipe, with the model's vocabulary
  // Null if none is known, or its file does not exist. text_tokenizer() then throws UserError with
  // the reason.
  std::shared_ptr<const data::Tokenizer> tokenizer;
  const data::Tokenizer& text_tokenizer() const;
  // Whether the recipe names no tokenizer, and the model was trained on ids beyond those of bytes.
  bool exceeds_bytes = false;
  std::shared_ptr<const interchange::HfSource> hugging_face;  // null for a checkpoint
  // Weights with merged adapters, which are used instead of the others; null without adapters.
  std::shared_ptr<const storage::ValueSource> merged;
  // Tensors of a checkpoint that only training uses: those of multi-token prediction.
  std::set<std::string> unused;
  std::string left_out;  // a sentence about tensors of the folder that are not read; or empty
  std::shared_ptr<const storage::ReadMark> reading;  // keeps the checkpoint from being deleted
  std::string fingerprint;                           // differs between models; ranks compare theirs

  // Returns the longest sequence that the model supports: the length of its training samples, or
  // the number of its positions if that is larger.
  int64_t context() const;
  // Returns the ids that end a text: those of the Hugging Face folder of the model or of its
  // tokenizer. For a model that mtrain has trained, also the tokenizer's end of a document.
  std::vector<int32_t> end_ids() const;
};

// Opens the model at `path`: a checkpoint, a run folder, which means its newest checkpoint, or a
// Hugging Face folder. Reads no weights. Throws UserError if there is none, or it is not supported.
// `machine` has the devices that `train.device: auto` may choose. `tokenizer` replaces the recipe's
// tokenizer unless it is empty: "byte", "NullTokenizer", a tokenizer.json or its folder.
// Adapters are merged into the weights: those of a checkpoint, and those at `adapter`, unless it is
// empty. That is a folder in the format of peft, or a run or checkpoint with adapters.
StoredModel open_model(const std::filesystem::path& path, const plan::Machine& machine,
                       const std::string& tokenizer = "", const std::string& adapter = "");

// Logs notes about the model: tensors that are left out, a changed copy of its recipe, missing
// checksums. One rank calls it.
void report(const StoredModel& model);

// Sets parameters, which may have no gradients, and the biases of routers. Each rank reads its own
// part, and rank 0 shows its progress. Throws UserError, which names the tensor, if the weights do
// not fit the model.
void load_weights(Stream& stream, model::ParamStore& params, const train::RouterState& routers,
                  const StoredModel& model, int rank);

// Throws UserError, which names the rank, if a rank has opened a different model. All ranks must
// call it.
void require_same_model(const comm::HostCollectives& control, const StoredModel& model);

// Loads only the model into the trainer, and nothing else of an earlier training: it ignores the
// recipe, seed, data and moments. Throws UserError, as load_weights() does. All ranks must call it.
void load_model(train::Trainer& trainer, const StoredModel& model);

}  // namespace mtrain::run
