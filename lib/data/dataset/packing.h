// Several documents in one sample, without cutting them more than need be.
#pragma once
#include <cstdint>
#include <vector>

namespace mtrain::data {

// Items of the given lengths (1 to capacity) to packs: each to the first pack that still has room
// for it, else to a new one ("first fit"). The items of every pack, in their order. n log n time.
std::vector<std::vector<int64_t>> first_fit(const std::vector<int64_t>& lengths, int64_t capacity);

}  // namespace mtrain::data
