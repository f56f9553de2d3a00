// Reads the sizes of a model from the config.json of a Hugging Face folder (model.from).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "recipe/load/diagnostics.h"
#include "recipe/load/raw_settings.h"
#include "recipe/load/targets.h"

namespace mtrain::recipe {

// Adds to `given` what the folder named by its model.from says about the model. A size that the
// recipe gives as well must agree. A key of config.json that changes results and that mtrain does
// not know is an error, never dropped. After an error no rule judges the model.
void read_hf_config(RawSettings& given, Diagnostics& diagnostics);

// Adds what the text of a config.json says about the model; messages call it `name`.
void read_hf_text(const std::string& text, const std::string& name, RawSettings& given,
                  Diagnostics& diagnostics);

// Returns what transformers takes for the keys that a configuration of this model_type leaves out;
// nothing for a family that mtrain does not build.
std::vector<FieldText> hf_defaults(std::string_view model_type);

}  // namespace mtrain::recipe
