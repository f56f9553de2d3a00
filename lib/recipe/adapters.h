// Finds the linears that get adapters from the names that the section peft lists.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "spec/lora.h"
#include "spec/model_spec.h"

namespace mtrain::recipe {

struct ModelConfig;
struct PeftConfig;

// Returns the adapters of a model; none if the section is off. Its family decides which weights
// are linears of their own. The layers of multi-token prediction have none, and patterns do not
// match them: peft, for which an adapter is exported, knows no such layers.
std::optional<spec::Lora> adapters_of(const PeftConfig& peft, const ModelConfig& config,
                                      const spec::ModelSpec& model);

// Returns the patterns that match no linear of the model.
std::vector<std::string> unmatched_modules(const std::vector<std::string>& patterns,
                                           const ModelConfig& config, const spec::ModelSpec& model);

// Returns the linears that target_modules names as a whole, such as linear_qkv, and that
// exclude_modules excludes in part. They have a single adapter, which cannot be divided.
std::vector<std::string> split_modules(const PeftConfig& peft, const ModelConfig& config,
                                       const spec::ModelSpec& model);

// Returns the names of linears that patterns may match, without repetitions: "q_proj", ...
std::vector<std::string> adaptable_modules(const ModelConfig& config, const spec::ModelSpec& model);

}  // namespace mtrain::recipe
