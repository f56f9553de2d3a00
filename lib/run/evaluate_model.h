// Evaluates a trained model on a text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "launch/job.h"
#include "plan/machine.h"

namespace mtrain::run {

struct EvaluateJob {
  std::string model;  // the path for open_model() (run/stored_model.h)
  // Prefixes of .bin/.idx pairs; several are blended by their numbers of tokens. Empty: the
  // recipe's validation data, and as many samples as in its validation.
  std::vector<std::string> data;
  // Tokens from one window to the next (data/dataset/strided_dataset.h); 0: the samples are those
  // of a run's validation.
  int64_t stride = 0;
  std::string tokenizer = {};  // a tokenizer for open_model() instead of the recipe's
  std::string adapter = {};    // an adapter for open_model()
  // Settings that override the saved recipe's, such as a different layout or window length.
  std::vector<std::string> overrides = {};
  launch::Job job = {};                   // the rank of this process
  std::optional<comm::World> world = {};  // these ranks; by default `job` connects them
  plan::Machine machine = {};             // the devices that `train.device: auto` may choose
};

struct Evaluation {
  std::vector<std::string> data;  // prefixes
  double nats_per_token = 0;      // the mean over all tokens that have a loss
  int64_t tokens = 0;             // number of these tokens
  int64_t bytes = 0;    // bytes of their text; ends of documents have none; 0: no tokenizer
  int64_t windows = 0;  // samples
  int64_t window = 0;   // tokens of a sample
  int64_t stride = 0;   // tokens from one window to the next; 0: samples as in a run
  std::string note;     // a line for the log that describes the samples; or empty
  double perplexity() const;
  double bits_per_byte() const;  // 0 if there is no text
};

// Returns the same result on every rank. Without a stride it is the loss of a run of the recipe
// with the data as its validation set. The ranks have the layout of the saved recipe; a single rank
// has the full model for any layout. A Hugging Face folder is evaluated in fp32, with samples of
// the model's number of positions, at most 4096 tokens. Throws UserError if the model or the data
// cannot be read, or the layout does not fit the ranks.
Evaluation evaluate_model(const EvaluateJob& job);

}  // namespace mtrain::run
