// Text from the files of a run.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "generate/generate.h"

namespace mtrain::run {

// Continues `prompt` with the newest checkpoint of a run folder, or with one checkpoint.
void generate_from_run(const std::string& run, std::string_view prompt,
                       generate::GenerateOptions options,
                       const std::function<void(std::string_view)>& emit);

}  // namespace mtrain::run
