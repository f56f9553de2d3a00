// Which 8-bit copies of the linears' weights a rank keeps from one use to the next.
#pragma once
#include <string>

#include "plan/overlap.h"

namespace mtrain {

// Of every weight a byte an element for forward, and as much for backward, which multiplies with
// the transpose. Kept where a step uses a weight more than once that way, and the weight itself
// stays: what is gathered for its use is quantized for its use.
struct Fp8WeightCache {
  bool forward = false, backward = false;
  int bytes() const { return int(forward) + int(backward); }  // an element
};

// A pure function of the recipe and the layout.
Fp8WeightCache resolve_fp8_weight_cache(const Recipe& recipe, const Layout& layout,
                                        const Overlap& overlap);

// "weights quantized once a step", for the start banner.
std::string print_fp8_weight_cache(const Fp8WeightCache& copies);

}  // namespace mtrain
