#include "data/dataset/packing.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace mtrain::data {

std::vector<std::vector<int64_t>> first_fit(const std::vector<int64_t>& lengths, int64_t capacity) {
  // A binary tree whose leaves are the packs; there are at most as many packs as items. A node
  // holds the largest room of the packs below it.
  const size_t leaves = std::bit_ceil(std::max<size_t>(1, lengths.size()));
  std::vector<int64_t> room(2 * leaves, capacity);
  std::vector<std::vector<int64_t>> packs;
  for (size_t item = 0; item < lengths.size(); ++item) {
    const int64_t length = lengths[item];
    MT_CHECK(0 < length && length <= capacity, "an item of {} in packs of {}", length, capacity);
    size_t node = 1;
    while (node < leaves) {
      node *= 2;
      if (room[node] < length) ++node;
    }
    const size_t pack = node - leaves;
    if (pack == packs.size()) packs.emplace_back();
    packs[pack].push_back(int64_t(item));
    for (room[node] -= length, node /= 2; node > 0; node /= 2)
      room[node] = std::max(room[2 * node], room[2 * node + 1]);
  }
  return packs;
}

}  // namespace mtrain::data
