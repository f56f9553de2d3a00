// Generates text with the model of a run folder.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "generate/generate.h"

namespace mtrain::run {

// Continues `prompt` with the model of `run`: a checkpoint, or a run folder, which means its newest
// checkpoint. Calls `emit` with the prompt and then with each new token's bytes. Throws UserError
// if `run` holds no complete checkpoint.
void generate_from_run(const std::string& run, std::string_view prompt,
                       generate::GenerateOptions options,
                       const std::function<void(std::string_view)>& emit);

}  // namespace mtrain::run
