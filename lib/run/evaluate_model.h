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
  std::string model;  // what open_model() opens (run/stored_model.h)
  // Prefixes of .bin/.idx pairs; several are blended by their numbers of tokens. Empty: what the
  // recipe validates on, and as much of it.
  std::vector<std::string> data;
  // Tokens from one window to the next (data/dataset/strided_dataset.h); 0: the samples are those
  // on which a run validates.
  int64_t stride = 0;
  std::string tokenizer = {};  // what open_model() takes instead of the recipe's
  // Settings that win over the saved recipe's, such as another layout or length of windows.
  std::vector<std::string> overrides = {};
  launch::Job job = {};                   // which of the ranks this process is
  std::optional<comm::World> world = {};  // these ranks; by default they are connected by `job`
  plan::Machine machine = {};             // what `train.device: auto` may take
};

struct Evaluation {
  std::vector<std::string> data;  // prefixes
  double nats_per_token = 0;      // the mean over all tokens that have a loss
  int64_t tokens = 0;             // those tokens
  int64_t bytes = 0;              // of their text; ends of documents have none; 0: no tokenizer
  int64_t windows = 0;            // samples
  int64_t window = 0;             // tokens of a sample
  int64_t stride = 0;             // tokens from one window to the next; 0: samples as a run's
  std::string note;               // a line for the log on what the samples are; or empty
  double perplexity() const;
  double bits_per_byte() const;  // 0 where there is no text
};

// Returns the same on every rank: without a stride, the loss that a run of the recipe has on the
// data as its validation set. The ranks have the layout of the saved recipe; a single rank has the
// whole model, whatever the layout was. A Hugging Face folder computes in fp32, with samples of its
// positions or of 4096 tokens, if these are fewer. Throws UserError if the model or the data cannot
// be read, or the layout does not fit the ranks.
Evaluation evaluate_model(const EvaluateJob& job);

}  // namespace mtrain::run
