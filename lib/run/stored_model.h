// A trained model on disk, as generation and evaluation take it: a checkpoint of mtrain's, or a
// Hugging Face folder, which is read as it is.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "interchange/hf_source.h"
#include "plan/saved_recipe.h"
#include "train/router_state.h"
#include "train/trainer.h"

namespace mtrain::run {

struct StoredModel {
  std::filesystem::path folder;  // the checkpoint's, or the Hugging Face folder
  // The recipe that lies in the checkpoint, or that `mtrain import hf` would put there.
  plan::SavedRecipe recipe;
  plan::SavedRun saved;  // of that recipe, with the model's vocabulary
  // Null if none is known, or its file is not there. text_tokenizer() throws UserError then, which
  // says why.
  std::shared_ptr<const data::Tokenizer> tokenizer;
  const data::Tokenizer& text_tokenizer() const;
  // Whether the recipe names no tokenizer, and the model was trained on ids that bytes do not have.
  bool exceeds_bytes = false;
  std::shared_ptr<const interchange::HfSource> hugging_face;  // null for a checkpoint
  std::string left_out;     // a sentence on tensors of the folder that are not read; or empty
  std::string fingerprint;  // tells this model from another one, by which ranks compare theirs

  // Returns the longest sequence that the model is made for: that of its training, or its positions
  // if they are more.
  int64_t context() const;
  // Returns the ids that end a text: those of the Hugging Face folder that the model or its
  // tokenizer came with, and the tokenizer's end of a document for a model that mtrain has trained.
  std::vector<int32_t> end_ids() const;
};

// Opens the model at `path`: a checkpoint, a run folder, which means its newest checkpoint, or a
// Hugging Face folder. Reads no weights. Throws UserError if there is none, or it is not
// understood. `machine` is what `train.device: auto` may take. `tokenizer` names another tokenizer
// than the recipe does: "byte", "NullTokenizer", a tokenizer.json or its folder; or it is empty.
StoredModel open_model(const std::filesystem::path& path, const plan::Machine& machine,
                       const std::string& tokenizer = "");

// Logs what is to say of the model: tensors that are left out, a changed copy of its recipe,
// missing checksums. One rank calls it.
void report(const StoredModel& model);

// Sets parameters that may have no gradients, and the biases of routers. Each rank reads what it
// owns, and rank 0 shows how far it is. Throws UserError, which names the tensor, for weights that
// are not the model's.
void load_weights(Stream& stream, model::ParamStore& params, const train::RouterState& routers,
                  const StoredModel& model, int rank);

// Throws UserError, which names the rank, if a rank has opened another model. All ranks call it.
void require_same_model(const comm::HostCollectives& control, const StoredModel& model);

// Gives the trainer the model, and nothing of an earlier training: neither its recipe, seed and
// data nor its moments are looked at. Throws UserError, as load_weights() does. All ranks call it.
void load_model(train::Trainer& trainer, const StoredModel& model);

}  // namespace mtrain::run
