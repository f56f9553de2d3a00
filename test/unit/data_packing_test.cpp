// Tests the packing of documents, and the shares of a sequence that ranks compute.
#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "data/dataset/batch.h"
#include "data/dataset/packed_dataset.h"
#include "data/dataset/packing.h"
#include "test/support/temporary_folder.h"

namespace data_packing_test {

using namespace mtrain;
using namespace mtrain::data;

namespace {

// Returns documents of these lengths; token s of document d is 100 d + s.
std::shared_ptr<const IndexedDataset> documents_of(const std::vector<int32_t>& lengths) {
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "d", TokenType::i32);
  for (size_t d = 0; d < lengths.size(); ++d) {
    std::vector<int32_t> tokens(static_cast<size_t>(lengths[d]));
    std::iota(tokens.begin(), tokens.end(), int32_t(100 * d));
    writer.add_tokens(tokens);
    writer.end_document();
  }
  writer.finish();
  return std::make_shared<IndexedDataset>(folder / "d");
}

}  // namespace

TEST_CASE("first fit puts each item into the first pack that has room") {
  CHECK(first_fit({}, 10).empty());
  CHECK(first_fit({6, 5, 4, 5, 10, 1}, 10) ==
        std::vector<std::vector<int64_t>>{{0, 2}, {1, 3}, {4}, {5}});
  CHECK_THROWS_AS(first_fit({11}, 10), BugError);
  CHECK_THROWS_AS(first_fit({0}, 10), BugError);
  // Compares with the definition of first fit.
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<int64_t> lengths, room;
    for (uint64_t i = 0; i < 100; ++i)
      lengths.push_back(int64_t(1 + uniform_below(seed, i, 50 + seed)));
    std::vector<std::vector<int64_t>> want;
    for (size_t i = 0; i < lengths.size(); ++i) {
      size_t p = 0;
      while (p < room.size() && room[p] < lengths[i]) ++p;
      if (p == room.size()) room.push_back(70), want.emplace_back();
      room[p] -= lengths[i];
      want[p].push_back(int64_t(i));
    }
    CHECK(first_fit(lengths, 70) == want);
  }
}

TEST_CASE("thd fills packs in the order of the items") {
  using Packs = std::vector<std::vector<int64_t>>;
  CHECK(next_fit({}, 10).empty());
  CHECK(next_fit({6, 5, 4, 1, 10, 1}, 10) == Packs{{0}, {1, 2, 3}, {4}, {5}});
  CHECK(next_fit({5, 5, 10}, 10) == Packs{{0, 1}, {2}});
  CHECK_THROWS_AS(next_fit({11}, 10), BugError);
  CHECK_THROWS_AS(next_fit({0}, 10), BugError);
}

TEST_CASE("neat puts the longest items first, each into the pack that holds least") {
  using Packs = std::vector<std::vector<int64_t>>;
  CHECK(least_full_decreasing({}, 10).empty());
  CHECK_THROWS_AS(least_full_decreasing({11}, 10), BugError);
  // 6 and 5 open packs; 4 goes to the 5, since the 6 holds more; then 3 to the 6.
  CHECK(least_full_decreasing({3, 4, 5, 6}, 10) == Packs{{3, 0}, {2, 1}});
  // Items of equal length keep their order, and so do packs that hold equally much.
  CHECK(least_full_decreasing({4, 6, 6, 4, 4}, 10) == Packs{{1, 0}, {2, 3}, {4}});
  // Compares with the definition: AutoModel's greedy knapsack.
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<int64_t> lengths, order, filled;
    for (uint64_t i = 0; i < 100; ++i) {
      lengths.push_back(int64_t(1 + uniform_below(seed, i, 50 + seed)));
      order.push_back(int64_t(i));
    }
    std::ranges::stable_sort(
        order, [&](int64_t a, int64_t b) { return lengths[size_t(a)] > lengths[size_t(b)]; });
    Packs want;
    for (const int64_t item : order) {
      const int64_t length = lengths[size_t(item)];
      auto least = std::ranges::min_element(filled);
      if (least == filled.end() || *least + length > 70) {
        filled.push_back(0), want.emplace_back();
        least = filled.end() - 1;
      }
      *least += length;
      want[size_t(least - filled.begin())].push_back(item);
    }
    CHECK(least_full_decreasing(lengths, 70) == want);
  }
}

TEST_CASE("a limit of packs keeps the first ones, and every strategy keeps all labels") {
  const auto tokens = documents_of({5, 9, 12, 3, 8});  // 4, 8, 11, 2 and 7 inputs
  const auto inputs_of = [&](PackingStrategy strategy, int64_t max_packs) {
    const PackedDataset packed(
        tokens, {.size = 12, .shuffle = false, .strategy = strategy, .max_packs = max_packs});
    std::vector<std::vector<int32_t>> all;
    Sample s;
    for (int64_t i = 0; i < packed.size(); ++i) {
      packed.sample(i, s);
      std::vector<int32_t> documents;
      for (size_t at = 0; at < s.input.size(); ++at)
        if (s.position[at] == 0 && s.label[at] >= 0) documents.push_back(s.input[at] / 100);
      all.push_back(documents);
    }
    return std::pair(all, packed.note());
  };
  using Documents = std::vector<std::vector<int32_t>>;
  CHECK(inputs_of(PackingStrategy::first_fit, 0).first == Documents{{0, 1}, {2}, {3, 4}});
  CHECK(inputs_of(PackingStrategy::thd, 0).first == Documents{{0, 1}, {2}, {3, 4}});
  CHECK(inputs_of(PackingStrategy::neat, 0).first == Documents{{2}, {1, 3}, {4, 0}});
  const auto [two, note] = inputs_of(PackingStrategy::neat, 2);
  CHECK(two == Documents{{2}, {1, 3}});
  CHECK_THAT(note, Catch::Matchers::Contains("in 2 samples of 12, 87.5 % full") &&
                       Catch::Matchers::Contains("1 further packs left out by max_packs"));
  CHECK(inputs_of(PackingStrategy::first_fit, 3).second.find("max_packs") == std::string::npos);
  CHECK(inputs_of(PackingStrategy::first_fit, 9).first.size() == 3);
}

TEST_CASE("packed samples hold every label of every document once, with positions from 0 on") {
  const std::vector<int32_t> lengths{5, 1, 9, 30, 2, 12, 13, 3};
  const auto tokens = documents_of(lengths);
  PackedDatasetOptions options{.size = 12, .seed = 3};
  const PackedDataset all(tokens, options);
  std::multiset<int32_t> labels;
  Sample s;
  for (int64_t i = 0; i < all.size(); ++i) {
    all.sample(i, s);
    REQUIRE(s.input.size() == 12);
    REQUIRE(std::accumulate(s.documents.begin(), s.documents.end(), int64_t(0)) == 12);
    size_t at = 0;
    for (const int64_t length : s.documents)
      for (int64_t k = 0; k < length; ++k, ++at) {
        CHECK(s.position[at] == k);
        if (s.label[at] < 0) continue;
        CHECK(s.label[at] == s.input[at] + 1);
        CHECK(s.label[at] / 100 == s.input[at - size_t(k)] / 100);  // one document
        labels.insert(s.label[at]);
      }
  }
  std::multiset<int32_t> want;
  for (size_t d = 0; d < lengths.size(); ++d)
    for (int32_t k = 1; k < lengths[d]; ++k) want.insert(int32_t(100 * d) + k);
  CHECK(labels == want);
  CHECK(all.note().find("1 split") != std::string::npos);

  options.drop_long = true;
  const PackedDataset some(tokens, options);
  CHECK(some.note().find("1 left out") != std::string::npos);
  for (int64_t i = 0; i < some.size(); ++i) {
    some.sample(i, s);
    for (const int32_t label : s.label) CHECK(label / 100 != 3);
  }
  // Another epoch has the same packs in another order.
  std::vector<std::vector<int32_t>> first, second;
  for (int64_t i = 0; i < all.size(); ++i) {
    all.sample(i, s), first.push_back(s.input);
    all.sample(i + all.size(), s), second.push_back(s.input);
  }
  CHECK(first != second);
  std::ranges::sort(first), std::ranges::sort(second);
  CHECK(first == second);
  CHECK_THROWS_AS(PackedDataset(documents_of({1, 1}), {.size = 12}), UserError);
  CHECK_THROWS_AS(PackedDataset(documents_of({30}), {.size = 12, .drop_long = true}), UserError);
}

TEST_CASE("ranks' shares of a sequence have equal work, and each token once") {
  Batch whole{.B = 2, .S = 16};
  for (int32_t t = 0; t < 32; ++t) {
    whole.input.push_back(t);
    whole.label.push_back(t % 5 ? t + 1 : -1);
    whole.position.push_back(t / 2);
  }
  const Batch share = share_of_batch(whole, 1, 2);
  CHECK(share.S == 8);
  CHECK(share.position == std::vector<int32_t>{4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11});
  CHECK(share.input.front() == 8);
  CHECK(share.unmasked == 13);
  REQUIRE(share.runs.size() == 1);
  CHECK((share.runs[0].first == 4 && share.runs[0].count == 8));
  REQUIRE(share_of_batch(whole, 0, 2).runs.size() == 2);
  CHECK_THROWS_AS(share_of_batch(whole, 0, 3), BugError);
}

TEST_CASE("documents are padded to two chunks a rank, which changes no token") {
  Batch whole{.B = 1, .S = 24, .documents = {1, 8, 5, 10}};
  for (int32_t t = 0; t < 24; ++t) {
    whole.input.push_back(t);
    whole.label.push_back(t + 1);
    whole.position.push_back(t);
  }
  for (const int64_t ranks : {1, 2, 3, 4}) {
    std::vector<int32_t> labels;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      // A last document of padding makes a share what sequence parallelism can divide.
      const Batch divisible = share_of_batch(whole, rank, ranks, 5);
      CHECK(divisible.S % 10 == 0);
      CHECK(int64_t(divisible.input.size()) == divisible.S);
      CHECK(std::reduce(divisible.documents.begin(), divisible.documents.end()) ==
            divisible.S * ranks);
      const Batch share = share_of_batch(whole, rank, ranks);
      CHECK(divisible.unmasked == share.unmasked);
      int64_t padded = 0;
      for (size_t d = 0; d < 4; ++d) {
        CHECK(share.documents[d] % (2 * ranks) == 0);
        CHECK(share.documents[d] - whole.documents[d] < 2 * ranks);
        padded += share.documents[d];
      }
      CHECK(share.S == padded / ranks);
      REQUIRE(int64_t(share.input.size()) == share.S);
      // Runs give the origin of each row: its token, or padding after all tokens.
      size_t row = 0;
      for (const PositionRun& run : share.runs)
        for (int64_t k = 0; k < run.count; ++k, ++row) {
          const auto from = int32_t(run.first + k);
          CHECK(share.label[row] == (from < 24 ? from + 1 : -1));
          CHECK(share.input[row] == (from < 24 ? from : 0));
          if (from < 24) labels.push_back(from);
        }
      CHECK(int64_t(row) == share.S);
    }
    std::ranges::sort(labels);
    REQUIRE(labels.size() == 24);
    CHECK((labels.front() == 0 && labels.back() == 23));
    CHECK(std::ranges::adjacent_find(labels) == labels.end());
  }
}

namespace {
// Returns tokens [first, first + count) of a batch.
std::vector<int32_t> part(const std::vector<int32_t>& of, int64_t first, int64_t count) {
  return {of.begin() + first, of.begin() + first + count};
}
}  // namespace

TEST_CASE("the packs of a micro-batch follow each other, in the order of single ones") {
  const auto packs =
      std::make_shared<PackedDataset>(documents_of({8, 5, 13, 4, 9, 30, 7, 12, 6, 11}),
                                      PackedDatasetOptions{.size = 12, .seed = 3});
  const auto loader = [&](int64_t micro_batch) {
    return BatchLoader(packs, {.global_batch = 8, .micro_batch = micro_batch, .dp_size = 1});
  };
  BatchLoader ones = loader(1);
  for (const int64_t n : {2, 4, 8}) {
    BatchLoader several = loader(n);
    REQUIRE(several.micro_batches() == 8 / n);
    for (int64_t k = 0; k < 8 / n; ++k) {
      const Batch all = several.micro_batch(1, k);
      CHECK((all.B == 1 && all.S == 12 * n && all.packs == n && all.samples() == n));
      std::vector<int64_t> documents;
      std::vector<int32_t> pack;
      int64_t unmasked = 0;
      for (int64_t i = 0; i < n; ++i) {
        const Batch one = ones.micro_batch(1, k * n + i);
        CHECK((one.S == 12 && one.packs == 1 && one.pack.empty()));
        CHECK(part(all.input, 12 * i, 12) == one.input);
        CHECK(part(all.label, 12 * i, 12) == one.label);
        CHECK(part(all.position, 12 * i, 12) == one.position);
        documents.insert(documents.end(), one.documents.begin(), one.documents.end());
        pack.insert(pack.end(), 12, int32_t(i));
        unmasked += one.unmasked;
      }
      CHECK(all.documents == documents);
      CHECK(all.pack == pack);
      CHECK(all.unmasked == unmasked);
      // A rank's share has the pack of each token; padding counts to the first.
      for (int64_t rank = 0; rank < 2; ++rank) {
        const Batch share = share_of_batch(all, rank, 2, 5);
        CHECK((share.S % 10 == 0 && share.samples() == n));
        REQUIRE(int64_t(share.pack.size()) == share.S);
        size_t row = 0;
        for (const PositionRun& run : share.runs)
          for (int64_t i = 0; i < run.count; ++i, ++row)
            CHECK(share.pack[row] == (run.first + i < all.S ? (run.first + i) / 12 : 0));
      }
    }
  }
}

TEST_CASE("places of packs that an evaluation does not use are documents of padding") {
  const auto packs = std::make_shared<PackedDataset>(
      documents_of({13, 8, 6, 13}), PackedDatasetOptions{.size = 12, .shuffle = false});
  REQUIRE(packs->size() == 3);
  for (const int64_t rank : {0, 1, 2}) {
    const ValidationLoader loader(packs, 0, {.micro_batch = 2, .dp_rank = rank, .dp_size = 3});
    REQUIRE(loader.batches() == 1);
    const Batch batch = loader.batch(0);
    CHECK((batch.B == 1 && batch.S == 24 && batch.packs == 2));
    CHECK(std::reduce(batch.documents.begin(), batch.documents.end()) == 24);
    const int64_t used = rank == 0 ? 24 : rank == 1 ? 12 : 0;
    CHECK(batch.valid.empty() == (rank == 0));
    for (int64_t t = used; t < 24; ++t) CHECK((batch.valid[t] == 0 && batch.label[t] == -1));
    if (rank > 0) CHECK(batch.documents.back() == 12);
    // Also what no rank of context parallelism uses fits sequence parallelism.
    CHECK(share_of_batch(batch, 0, 2, 5).S % 5 == 0);
  }
}

}  // namespace data_packing_test
