// Lists for ops::copy_blocks: the orders of rows and columns that context parallelism sends and
// computes in. Pure functions of sizes.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/copy_blocks.h"

namespace mtrain::ops {

using kernels::CopyBlock;

// (T, N) -> (parts * T, N / parts): part p, from row p * T on, has the p-th share of each section
// of columns. N is the sum of the sections: {A * D, G * D, G * D} of a qkv, {A * D} of an attention
// output.
std::vector<CopyBlock> split_columns(int64_t T, const std::vector<int64_t>& sections,
                                     int64_t parts);

// Rows of all ranks, rank after rank, -> the sequence's own order, under the load balance of causal
// attention: each document is cut into 2 * ranks chunks, of which rank r holds numbers r and
// 2 * ranks - 1 - r. `documents`: the rows of each, over all ranks; one entry for a sequence that
// is not packed.
std::vector<CopyBlock> balanced_to_sequence(const std::vector<int64_t>& documents, int64_t ranks,
                                            int64_t width);

// The way back.
std::vector<CopyBlock> inverse(std::vector<CopyBlock> blocks);

}  // namespace mtrain::ops
