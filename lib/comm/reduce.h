// Sums, averages and maxima over ranks, on host memory.
#pragma once
#include <vector>

#include "base/span.h"
#include "comm/communicator.h"

namespace mtrain {

// out[i] = op over all parts of part[i], in the order of the parts: the same bits on every rank.
// bf16 is added up in fp32 and rounded once. `out` may be one of the parts. fp32, fp64, bf16, int32
// and int64; an average only of floats.
void reduce_parts(const std::vector<const std::byte*>& parts, Span out, Reduce op);

// Makes the average of a sum over `ranks`, in place. Floats only.
void average_sum(Span sum, int ranks);

}  // namespace mtrain
