// Packs documents of different lengths into samples of one length.
#pragma once
#include <cstdint>
#include <vector>

#include "base/packing_strategy.h"

namespace mtrain::data {

// Puts each item, whose length is from 1 to `capacity`, into the first pack that still has room for
// it, else into a new one ("first fit"). Returns the indices of the items of each pack, in their
// order. Takes O(n log n) time.
std::vector<std::vector<int64_t>> first_fit(const std::vector<int64_t>& lengths, int64_t capacity);

// Puts the items into packs in their order. A pack ends before the first item for which it has no
// room ("next fit"), as in AutoModel's `thd` packing.
std::vector<std::vector<int64_t>> next_fit(const std::vector<int64_t>& lengths, int64_t capacity);

// Puts the items, the longest first, each into the pack that holds least, else into a new one, as
// AutoModel's `neat` packing does. Items of equal length keep their order, and so do packs that
// hold equally much. Takes O(n log n) time.
std::vector<std::vector<int64_t>> least_full_decreasing(const std::vector<int64_t>& lengths,
                                                        int64_t capacity);

// Packs the items as `strategy` says.
std::vector<std::vector<int64_t>> pack(PackingStrategy strategy,
                                       const std::vector<int64_t>& lengths, int64_t capacity);

}  // namespace mtrain::data
