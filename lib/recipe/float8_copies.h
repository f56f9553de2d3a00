// Which 8-bit copies of the linears' weights a rank keeps from one use to the next.
#pragma once
#include <string>

#include "recipe/layout.h"

namespace mtrain {

// Of every weight a byte an element for forward, and as much for backward, which multiplies with
// the transpose. Kept where a step uses a weight more than once that way, and the weight itself
// stays: what is gathered for its use is quantized for its use.
struct Float8Copies {
  bool forward = false, backward = false;
  int bytes() const { return int(forward) + int(backward); }  // an element
};

// A pure function of the recipe and the layout.
Float8Copies float8_copies(const Recipe& recipe, const Layout& layout);

// "weights quantized once a step", for the start banner.
std::string print_float8_copies(const Float8Copies& copies);

}  // namespace mtrain
