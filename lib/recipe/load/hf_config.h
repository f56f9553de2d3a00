// Reads the sizes of a model from the config.json of a Hugging Face folder (model.from).
#pragma once
#include "recipe/load/diagnostics.h"
#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {

// Adds to `given` what the folder named by its model.from says about the model. A size that the
// recipe gives as well must agree. A key of config.json that changes results and that mtrain does
// not know is an error, never dropped. After an error no rule judges the model.
void read_hf_config(RawSettings& given, Diagnostics& diagnostics);

}  // namespace mtrain::recipe
