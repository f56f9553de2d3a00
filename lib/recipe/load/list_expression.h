// Lists that another system writes as Python would compute them, such as ([0]*3+[1]*24).
#pragma once
#include "recipe/load/node.h"

namespace mtrain::recipe {

// Makes a list of a scalar that is a sum of lists, each of which may be multiplied by a number.
// Leaves every other node as it is.
void expand_list_expression(Node& node);

}  // namespace mtrain::recipe
