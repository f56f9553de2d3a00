// Generates text with the model of a run folder.
#pragma once
#include <string>
#include <vector>

#include "base/dtype.h"
#include "generate/generate.h"
#include "launch/job.h"

namespace mtrain::run {

struct GenerateJob {
  std::string run;  // a checkpoint, or a run folder, which means its newest checkpoint
  std::vector<std::string> prompts;
  int64_t num = 1;    // texts for each prompt; request number prompt * num + n is its n-th
  int64_t batch = 8;  // texts that are generated together, at most
  // The job says which rank this process is. Its ranks share each layer by tensor parallelism.
  launch::Job job = {};
  DType dtype = DType::f32;  // of the weights that compute, and of keys and values
};

// Continues the prompts; options.context follows from the run. Throws UserError if job.run holds no
// complete checkpoint or its layers cannot be shared by so many ranks, and as generate() does.
// Requests are told of as they go on, in any order, on every rank alike. Returns options.context.
int64_t generate_from_run(const GenerateJob& job, generate::GenerateOptions options,
                          const generate::Listener& listener);

}  // namespace mtrain::run
