// Sums, averages and maxima over ranks, in host memory. comm/communicator.h has the enum Reduce.
#pragma once
#include <vector>

#include "base/span.h"
#include "comm/communicator.h"

namespace mtrain::comm {

// Returns the name of an operation for messages.
constexpr const char* reduce_name(Reduce op) {
  return op == Reduce::sum ? "sum" : op == Reduce::max ? "maximum" : "average";
}

// Sets out[i] to `op` over element i of all parts, in the order of the parts: every rank gets the
// same bits. bf16 and f16 are summed in fp32 and rounded once. `out` may be one of the parts. Takes
// fp32, fp64, bf16, f16, int32 and int64; averages take floats only.
void reduce_parts(const std::vector<const std::byte*>& parts, Span out, Reduce op);

// Turns a sum over `ranks` into the average, in place. Takes floats only.
void average_sum(Span sum, int ranks);

}  // namespace mtrain::comm
