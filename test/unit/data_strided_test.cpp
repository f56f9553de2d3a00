// The windows of an evaluation give each token a loss once, with the context of its window.
#include <memory>
#include <numeric>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "data/dataset/strided_dataset.h"
#include "test/support/temporary_folder.h"

namespace data_strided_test {

using namespace mtrain;
using data::StridedDataset;

namespace {

// Token t has the id 1000 + t.
std::shared_ptr<const data::IndexedDataset> tokens(const TemporaryFolder& folder, int64_t count) {
  const auto prefix = folder / ("tokens" + std::to_string(count));
  data::IndexedDatasetWriter writer(prefix, data::TokenType::u16);
  for (int64_t t = 0; t < count; ++t) {
    const std::vector<int32_t> one{int32_t(1000 + t)};
    writer.add_tokens(one);
    if (t % 10 == 9) writer.end_document();
  }
  writer.finish();
  return std::make_shared<data::IndexedDataset>(prefix);
}

}  // namespace

TEST_CASE("strided windows are those of transformers' guide to perplexity") {
  const TemporaryFolder folder;
  for (const int64_t N : {2, 7, 8, 9, 23, 24, 25, 40})
    for (const int64_t stride : {1, 3, 4, 7, 8}) {
      CAPTURE(N, stride);
      constexpr int64_t S = 8;
      const StridedDataset windows(tokens(folder, N), {.window = S, .stride = stride});
      // The loop of transformers' guide, whose labels are the tokens themselves.
      int64_t seen = 0, window = 0;
      for (int64_t begin = 0;; begin += stride, ++window) {
        const int64_t end = std::min(begin + S, N);
        data::Sample sample;
        windows.sample(window, sample);
        REQUIRE(sample.padding == S - (end - begin));
        for (int64_t s = 0; s < S; ++s) {
          CAPTURE(window, s);
          const int64_t t = begin + s + 1;  // the token that input s predicts
          REQUIRE(sample.position[size_t(s)] == s);
          REQUIRE(sample.input[size_t(s)] == (begin + s < end ? 1000 + begin + s : 0));
          REQUIRE(sample.label[size_t(s)] == (t >= seen && t < end ? 1000 + t : -1));
        }
        seen = end;
        if (end == N) break;
      }
      REQUIRE(windows.size() == window + 1);
    }
}

TEST_CASE("each token has a loss in one window, the first one in none") {
  const TemporaryFolder folder;
  const StridedDataset windows(tokens(folder, 100), {.window = 16, .stride = 5, .packed = true});
  std::vector<int> losses(100);
  for (int64_t i = 0; i < windows.size(); ++i) {
    data::Sample sample;
    windows.sample(i, sample);
    CHECK(sample.documents == std::vector<int64_t>{16});
    const auto [first, end] = windows.label_range(i);
    int64_t counted = 0;
    for (const int32_t label : sample.label) {
      if (label < 0) continue;
      ++losses[size_t(label - 1000)], ++counted;
      CHECK((label - 1000 >= first && label - 1000 < end));
    }
    CHECK(counted == end - first);
  }
  CHECK(losses[0] == 0);
  CHECK(std::accumulate(losses.begin(), losses.end(), 0) == 99);
  CHECK(*std::max_element(losses.begin(), losses.end()) == 1);
}

TEST_CASE("windows that cannot be are refused") {
  const TemporaryFolder folder;
  const auto some = tokens(folder, 20), one = tokens(folder, 1);
  using Catch::Contains;
  CHECK_THROWS_WITH(StridedDataset(some, {.window = 8, .stride = 9}), Contains("stride is 9"));
  CHECK_THROWS_WITH(StridedDataset(some, {.window = 8, .stride = 0}), Contains("stride is 0"));
  CHECK_THROWS_WITH(StridedDataset(one, {.window = 8, .stride = 4}), Contains("1 tokens"));
  const StridedDataset small(some, {.window = 8, .stride = 8, .ids = {1010}});
  data::Sample sample;
  CHECK_NOTHROW(small.sample(0, sample));
  CHECK_THROWS_WITH(small.sample(1, sample), Contains("1010"));
}

TEST_CASE("windows begin again with each document, and no label sees another document") {
  const TemporaryFolder folder;  // documents of 10 tokens
  const StridedDataset windows(tokens(folder, 35), {.window = 6, .stride = 4, .by_document = true});
  REQUIRE(windows.size() == 2 * 3 + 1);
  std::vector<int> losses(35);
  for (int64_t i = 0; i < windows.size(); ++i) {
    data::Sample sample;
    windows.sample(i, sample);
    const int64_t document = (sample.input[0] - 1000) / 10;
    for (int64_t s = 0; s < 6 - sample.padding; ++s)
      CHECK((sample.input[size_t(s)] - 1000) / 10 == document);
    for (const int32_t label : sample.label)
      if (label >= 0) {
        CHECK((label - 1000) / 10 == document);
        ++losses[size_t(label - 1000)];
      }
  }
  for (int t = 0; t < 35; ++t) CHECK(losses[size_t(t)] == (t % 10 > 0));
}

}  // namespace data_strided_test
