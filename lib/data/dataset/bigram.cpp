#include "data/dataset/bigram.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/error.h"

namespace mtrain::data {
namespace {

// Calls f(a, b) for all neighbouring tokens of the stream whose second counts as a label. The
// stream is read in blocks.
template <class F>
void for_each_pair(const IndexedDataset& data, int64_t vocab_size, F&& f) {
  constexpr int64_t kBlock = int64_t(1) << 16;
  std::vector<int32_t> block;
  for (int64_t first = 0; first + 1 < data.tokens(); first += kBlock) {
    block.resize(size_t(std::min(kBlock + 1, data.tokens() - first)));
    data.read(first, block);
    for (size_t i = 0; i < block.size(); ++i)
      if (block[i] < 0 || block[i] >= vocab_size)
        throw UserError(fmt::format("token {} of {} has the id {}, but the vocabulary has {}",
                                    first + int64_t(i), data.name(), block[i], vocab_size));
    for (size_t i = 0; i + 1 < block.size(); ++i)
      if (data.counts(first + int64_t(i) + 1)) f(block[i], block[i + 1]);
  }
}

int64_t count_pairs(const IndexedDataset& data) {
  int64_t pairs = 0;
  for (int64_t t = 1; t < data.tokens(); ++t) pairs += data.counts(t);
  return pairs;
}

}  // namespace

BigramResult bigram_loss(const IndexedDataset& train, const IndexedDataset& valid,
                         int64_t vocab_size, const std::vector<double>& alphas) {
  MT_CHECK(!alphas.empty(), "no alpha to try");
  if (valid.tokens() < 2)
    throw UserError(
        fmt::format("{} has {} tokens, but a bigram needs two", valid.name(), valid.tokens()));
  const int64_t pairs = count_pairs(valid);
  if (pairs == 0)
    throw UserError(fmt::format("no token of {} counts as a label", valid.name()),
                    "build the data set with answers");
  struct Pair {
    int64_t in_valid = 0, in_train = 0;
  };
  const int64_t V = vocab_size;
  std::vector<int64_t> context(size_t(V), 0);  // n(a)
  BigramResult best{.loss = INFINITY, .pairs = pairs};
  const auto loss = [&](auto&& for_each_counted) {
    for (double alpha : alphas) {
      double sum = 0;
      for_each_counted([&](int64_t a, const Pair& pair) {
        const double p =
            (double(pair.in_train) + alpha) / (double(context[size_t(a)]) + alpha * double(V));
        sum -= double(pair.in_valid) * std::log(p);
      });
      if (sum / double(best.pairs) < best.loss)
        best.loss = sum / double(best.pairs), best.alpha = alpha;
    }
  };

  // For so few tokens a dense table is ten times as fast as a hash map, and smaller than its nodes.
  if (V <= 1024) {
    std::vector<Pair> table(size_t(V * V));
    for_each_pair(valid, V, [&](int64_t a, int64_t b) { ++table[size_t(a * V + b)].in_valid; });
    for_each_pair(train, V, [&](int64_t a, int64_t b) {
      ++table[size_t(a * V + b)].in_train, ++context[size_t(a)];
    });
    loss([&](auto&& f) {
      for (int64_t i = 0; i < V * V; ++i)
        if (table[size_t(i)].in_valid > 0) f(i / V, table[size_t(i)]);
    });
    return best;
  }
  std::unordered_map<int64_t, Pair> table;  // keys: a * V + b
  for_each_pair(valid, V, [&](int64_t a, int64_t b) { ++table[a * V + b].in_valid; });
  for_each_pair(train, V, [&](int64_t a, int64_t b) {
    ++context[size_t(a)];
    const auto found = table.find(a * V + b);
    if (found != table.end()) ++found->second.in_train;
  });
  // The terms are summed in a fixed order; the loss then does not depend on the hash function.
  std::vector<std::pair<int64_t, Pair>> sorted(table.begin(), table.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& x, const auto& y) { return x.first < y.first; });
  loss([&](auto&& f) {
    for (const auto& [key, pair] : sorted) f(key / V, pair);
  });
  return best;
}

}  // namespace mtrain::data
