// Copies of rectangles, and the lists of rectangles that context parallelism needs. These reorder
// rows and columns for its communication and computations, and are pure functions of sizes.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/copy_blocks.h"
#include "ops/operation.h"

namespace mtrain::ops {

using kernels::CopyBlock;

// Returns the blocks that rearrange (T, N) as (parts * T, N / parts). Part p begins at row p * T
// and holds the p-th share of each section of columns. N is the sum of the sections: {A * D, G * D,
// G * D} for a qkv, {A * D} for an attention output.
std::vector<CopyBlock> split_columns(int64_t T, const std::vector<int64_t>& sections,
                                     int64_t parts);

// Returns the blocks that copy the rows of all ranks, rank after rank, into the sequence's own
// order. To balance causal attention, each document is split into 2 * ranks chunks, and rank r
// holds the chunks r and 2 * ranks - 1 - r. `documents` lists the number of rows of each document
// over all ranks; it has one entry for a sequence that is not packed. `width` is the number of
// columns.
std::vector<CopyBlock> balanced_to_sequence(const std::vector<int64_t>& documents, int64_t ranks,
                                            int64_t width);

// Returns the blocks that copy everything back.
std::vector<CopyBlock> inverse(std::vector<CopyBlock> blocks);

// Copies rectangles from one matrix to another of the same dtype; elements that no block covers
// stay unchanged.
void copy_blocks(Stream& stream, const Tensor& from_TN, const Tensor& to_TN,
                 std::vector<CopyBlock> blocks);

// Returns a copy of the columns [first, first + count).
Tensor copy_columns(Stream& stream, const Tensor& x_TN, int64_t first, int64_t count);
// Writes x_TM into the columns of into_TN that start at `column`.
void put_columns(Stream& stream, const Tensor& x_TM, const Tensor& into_TN, int64_t column);

}  // namespace mtrain::ops
