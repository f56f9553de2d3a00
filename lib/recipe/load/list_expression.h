// Lists that Megatron writes as Python expressions, such as ([0]*3+[1]*24).
#pragma once
#include "recipe/load/node.h"

namespace mtrain::recipe {

// Replaces a scalar by the list that it describes: a sum of lists, each with an optional factor.
// Does not change other nodes.
void expand_list_expression(Node& node);

}  // namespace mtrain::recipe
