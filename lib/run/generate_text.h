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
  std::string model;           // the path for open_model() (run/stored_model.h)
  std::string tokenizer = {};  // a tokenizer for open_model() instead of the recipe's
  std::string adapter = {};    // an adapter for open_model()
  std::vector<std::string> prompts;
  std::vector<std::string> names = {};  // the name of each prompt in errors; empty: "the prompt"
  int64_t num = 1;    // texts per prompt; request prompt * num + n is its n-th text
  int64_t batch = 8;  // at most this many texts are generated together
  // The rank of this process: the ranks of a job shard each layer by tensor parallelism.
  launch::Job job = {};
  std::optional<comm::World> world = {};  // these ranks; by default `job` connects them
  plan::Machine machine = {};             // the devices that `train.device: auto` may choose
  DType dtype = DType::f32;               // type of the weights in GEMMs, and of keys and values
};

// Continues the prompts; options.context and the end-of-text ids follow from the model. Throws
// UserError as generate() does, and if there is no such model, it has no tokenizer, or its layers
// cannot be sharded over so many ranks. The listener is called for the requests in any order, the
// same on every rank. Returns options.context.
int64_t generate_text(const GenerateJob& job, generate::GenerateOptions options,
                      const generate::Listener& listener);

}  // namespace mtrain::run
