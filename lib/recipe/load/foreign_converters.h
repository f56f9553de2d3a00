// Names and values of other systems that become settings of mtrain.
#pragma once
#include <string>

#include "recipe/load/layer_settings.h"

namespace mtrain::recipe {

// Reads a value that Megatron or AutoModel writes in another form. Returns true if nothing is left
// to do: the setting is made, or refused. Else `node` may have been brought into mtrain's form.
bool convert_value(LayerSettings& layer, const std::string& path, const SourceLocation& location,
                   Node& node);

// Sets every field that this name of another system decides. Returns false if there is none.
bool convert_name(LayerSettings& layer, const std::string& path, const SourceLocation& location,
                  const Node& node);

// Sets the field of `row` to the opposite of what its negated name says.
void negate(LayerSettings& layer, const SchemaRow* row, const std::string& path,
            const SourceLocation& location, Node node);

}  // namespace mtrain::recipe
