// Names and values of other systems that become settings of mtrain.
#pragma once
#include <string>

#include "recipe/load/layer_settings.h"

namespace mtrain::recipe {

// Converts a value that Megatron or AutoModel writes in a different form. Returns true if the
// setting has been made or refused. Otherwise the caller must set `node`, which may be converted.
bool convert_value(LayerSettings& layer, const std::string& path, const SourceLocation& location,
                   Node& node);

// Sets every field that `path`, a name of another system, decides. Returns false if there is none.
bool convert_name(LayerSettings& layer, const std::string& path, const SourceLocation& location,
                  const Node& node);

// Sets the field of `row` to the opposite of `node`, the value of a negated name such as no_x.
void negate(LayerSettings& layer, const SchemaRow* row, const std::string& path,
            const SourceLocation& location, Node node);

}  // namespace mtrain::recipe
