// Decides which 8-bit copies of the linears' weights a rank keeps from one use to the next.
#pragma once
#include <string>

#include "plan/overlap.h"

namespace mtrain::plan {

// Forward multiplies with the weight and backward with its transpose. A copy is kept if a step uses
// it more than once and the weight itself stays on the rank. A weight that is gathered for each use
// is quantized for each use.
struct Fp8WeightCache {
  bool forward = false, backward = false;
  // Sharded weights are gathered in 8 bits, so that forward needs no copy of them.
  bool gathered = false;
  int copies() const { return int(forward) + int(backward); }
};

// This is a pure function of the recipe and the layout.
Fp8WeightCache resolve_fp8_weight_cache(const recipe::Recipe& recipe, const Layout& layout,
                                        const Overlap& overlap);

// Returns a phrase for the start banner, such as "weights quantized once a step".
std::string print_fp8_weight_cache(const Fp8WeightCache& cache);

}  // namespace mtrain::plan
