// AutoModel's classes of data, which set the fields of dataset.train_samples and
// validation_samples.
#pragma once
#include <span>

#include "recipe/load/layer_settings.h"
#include "recipe/load/targets.h"

namespace mtrain::recipe {

std::span<const Target> sample_targets();

// Sets the fields of `dataset: {train: {messages: FILE, split: ...}}`, or one of its keys, and of
// AutoModel's arguments whose values are converted. Returns false if `path` is none of them.
bool set_samples(LayerSettings& layer, const std::string& path, const SourceLocation& location,
                 const Node& node);

}  // namespace mtrain::recipe
