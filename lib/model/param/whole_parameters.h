// The parameters of a whole model, as checkpoints have them.
#pragma once
#include <memory>

#include "model/param/parameters.h"
#include "spec/model_spec.h"

namespace mtrain::model {

// Declares them without memory: their names and layout-free shapes, in the order of a single rank.
std::unique_ptr<ParamStore> whole_parameters(const spec::ModelSpec& model);

}  // namespace mtrain::model
