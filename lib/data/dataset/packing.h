// Packs documents of different lengths into samples of one length.
#pragma once
#include <cstdint>
#include <vector>

namespace mtrain::data {

// Puts each item, whose length is from 1 to `capacity`, into the first pack that still has room for
// it, else into a new one ("first fit"). Returns the indices of the items of each pack, in their
// order. Takes O(n log n) time.
std::vector<std::vector<int64_t>> first_fit(const std::vector<int64_t>& lengths, int64_t capacity);

}  // namespace mtrain::data
