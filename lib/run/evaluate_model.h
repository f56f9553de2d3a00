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
  std::string model;   // what open_model() opens (run/stored_model.h)
  std::string data;    // prefix of a .bin/.idx pair
  int64_t stride = 0;  // data/dataset/strided_dataset.h; 0: windows do not overlap
  // Settings that win over the saved recipe's, such as another layout or length of windows.
  std::vector<std::string> overrides = {};
  launch::Job job = {};                   // which of the ranks this process is
  std::optional<comm::World> world = {};  // these ranks; by default they are connected by `job`
  plan::Machine machine = {};             // what `train.device: auto` may take
};

struct Evaluation {
  double nats_per_token = 0;  // the mean over all tokens that have a loss
  int64_t tokens = 0;         // those tokens
  int64_t bytes = 0;          // of their text; ends of documents have none; 0: no tokenizer
  int64_t windows = 0, window = 0, stride = 0;
  double perplexity() const;
  double bits_per_byte() const;  // 0 where there is no text
};

// Returns the same on every rank. The ranks have the layout of the saved recipe; a single rank has
// the whole model, whatever the layout was. A Hugging Face folder computes in fp32, with windows of
// its positions or of 4096 tokens, if these are fewer. Throws UserError if the model or the data
// cannot be read, or the layout does not fit the ranks.
Evaluation evaluate_model(const EvaluateJob& job);

}  // namespace mtrain::run
