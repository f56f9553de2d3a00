// Generates text with a trained model.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "comm/world.h"
#include "generate/generate.h"
#include "launch/job.h"
#include "plan/machine.h"

namespace mtrain::run {

struct GenerateJob {
  std::string model;           // what open_model() opens (run/stored_model.h)
  std::string tokenizer = {};  // what open_model() takes instead of the recipe's
  std::vector<std::string> prompts;
  std::vector<std::string> names = {};  // what errors call each prompt; empty: "the prompt"
  int64_t num = 1;    // texts for each prompt; request number prompt * num + n is its n-th
  int64_t batch = 8;  // texts that are generated together, at most
  // Which rank this process is: the ranks of a job share each layer by tensor parallelism.
  launch::Job job = {};
  std::optional<comm::World> world = {};  // these ranks; by default they are connected by `job`
  plan::Machine machine = {};             // what `train.device: auto` may take
  DType dtype = DType::f32;               // of the weights that compute, and of keys and values
};

// Continues the prompts; options.context and the model's own ends of a text follow from the model.
// Throws UserError if there is no such model, it has no tokenizer or its layers cannot be shared by
// so many ranks, and as generate() does. The listener hears of requests in any order, and on every
// rank the same. Returns options.context.
int64_t generate_text(const GenerateJob& job, generate::GenerateOptions options,
                      const generate::Listener& listener);

}  // namespace mtrain::run
