#include "data/dataset/packing.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "base/error.h"

namespace mtrain::data {

namespace {
void check_item(int64_t length, int64_t capacity) {
  MT_CHECK(0 < length && length <= capacity, "an item of {} in packs of {}", length, capacity);
}
}  // namespace

std::vector<std::vector<int64_t>> first_fit(const std::vector<int64_t>& lengths, int64_t capacity) {
  // A binary tree whose leaves are the packs; there are at most as many packs as items. A node
  // holds the largest room of the packs below it.
  const size_t leaves = std::bit_ceil(std::max<size_t>(1, lengths.size()));
  std::vector<int64_t> room(2 * leaves, capacity);
  std::vector<std::vector<int64_t>> packs;
  for (size_t item = 0; item < lengths.size(); ++item) {
    const int64_t length = lengths[item];
    check_item(length, capacity);
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

std::vector<std::vector<int64_t>> next_fit(const std::vector<int64_t>& lengths, int64_t capacity) {
  std::vector<std::vector<int64_t>> packs;
  int64_t room = 0;
  for (size_t item = 0; item < lengths.size(); ++item) {
    check_item(lengths[item], capacity);
    if (lengths[item] > room) packs.emplace_back(), room = capacity;
    packs.back().push_back(int64_t(item));
    room -= lengths[item];
  }
  return packs;
}

std::vector<std::vector<int64_t>> least_full_decreasing(const std::vector<int64_t>& lengths,
                                                        int64_t capacity) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t(0));
  std::ranges::stable_sort(order, std::greater(),
                           [&](int64_t item) { return lengths[size_t(item)]; });
  using Filled = std::pair<int64_t, size_t>;  // how much a pack holds, and its index
  std::priority_queue<Filled, std::vector<Filled>, std::greater<>> least_full;
  std::vector<std::vector<int64_t>> packs;
  for (const int64_t item : order) {
    const int64_t length = lengths[size_t(item)];
    check_item(length, capacity);
    Filled pack{0, packs.size()};
    if (!least_full.empty() && least_full.top().first + length <= capacity) {
      pack = least_full.top();
      least_full.pop();
    } else {
      packs.emplace_back();
    }
    packs[pack.second].push_back(item);
    least_full.emplace(pack.first + length, pack.second);
  }
  return packs;
}

std::vector<std::vector<int64_t>> pack(PackingStrategy strategy,
                                       const std::vector<int64_t>& lengths, int64_t capacity) {
  switch (strategy) {
    case PackingStrategy::first_fit: return first_fit(lengths, capacity);
    case PackingStrategy::thd: return next_fit(lengths, capacity);
    case PackingStrategy::neat: return least_full_decreasing(lengths, capacity);
  }
  throw BugError("an unknown packing strategy");
}

}  // namespace mtrain::data
