#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "base/error.h"
#include "data/dataset/batch.h"
#include "data/dataset/bigram.h"
#include "data/dataset/blend.h"
#include "data/dataset/gpt_dataset.h"
#include "data/dataset/packed_dataset.h"
#include "data/dataset/permutation.h"
#include "test/support/temporary_folder.h"

namespace data_sampling_test {

using namespace mtrain;
using namespace mtrain::data;
using Catch::Matchers::Contains;

namespace {

// Token files of the given documents, which live as long as the mapping.
std::shared_ptr<const IndexedDataset> tokens_of(const std::vector<std::vector<int32_t>>& documents,
                                                TokenType type = TokenType::u16) {
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "d", type);
  for (const auto& document : documents) {
    writer.add_tokens(document);
    writer.end_document();
  }
  writer.finish();
  return std::make_shared<IndexedDataset>(folder / "d");
}

std::vector<int32_t> counting(int32_t n, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Sample i is S times i, which shows the samples of a batch.
class Labelled final : public Dataset {
 public:
  explicit Labelled(int64_t S, int64_t size = 1000, int32_t scale = 1)
      : S_(S), size_(size), scale_(scale) {}
  int64_t seq_length() const override { return S_; }
  int64_t size() const override { return size_; }
  void sample(int64_t index, Sample& out) const override {
    if (index == 777) throw UserError("sample 777 is bad");
    out.input.assign(size_t(S_), int32_t(index) * scale_);
    out.label.assign(size_t(S_), int32_t(index) * scale_ + 1);
    if (S_ > 1) out.label[1] = -1;
    out.position = counting(int32_t(S_));
  }

 private:
  int64_t S_, size_;
  int32_t scale_;
};

}  // namespace

TEST_CASE("a permutation is a bijection and depends on its key") {
  for (int64_t n : {1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 4096, 4097, 100'000}) {
    const Permutation p(42, n);
    std::vector<bool> seen(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t image = p(i);
      REQUIRE((image >= 0 && image < n));
      REQUIRE(!seen[size_t(image)]);
      seen[size_t(image)] = true;
    }
  }
  const int64_t n = 10'000;
  const Permutation a(1, n), b(2, n);
  int64_t same = 0, fixed = 0, neighbours = 0;
  double correlation = 0;
  const double mean = (double(n) - 1) / 2, variance = (double(n) * double(n) - 1) / 12;
  for (int64_t i = 0; i < n; ++i) {
    same += a(i) == b(i);
    fixed += a(i) == i;
    if (i > 0) neighbours += a(i) == a(i - 1) + 1;
    correlation += (double(i) - mean) * (double(a(i)) - mean) / variance / double(n);
  }
  // Of a random permutation each count is Poisson of mean 1 (above 8: 1e-6), the correlation normal
  // of deviation 0.01.
  REQUIRE(same <= 8);
  REQUIRE(fixed <= 8);
  REQUIRE(neighbours <= 8);
  REQUIRE(std::abs(correlation) < 0.05);
  // Far beyond any table.
  const Permutation huge(3, int64_t(1) << 50);
  std::set<int64_t> images;
  for (int64_t i = 0; i < 1000; ++i) images.insert(huge(i));
  REQUIRE(images.size() == 1000);
  REQUIRE(*images.rbegin() > (int64_t(1) << 49));
}

TEST_CASE("samples cover the stream once an epoch, labels one further") {
  const auto data = tokens_of({counting(40), counting(61, 40)});  // tokens 0 .. 100
  const int64_t S = 10;
  const GptDataset dataset(data, {.seq_length = S, .seed = 5});
  REQUIRE(dataset.size() == 10);
  std::vector<std::vector<int32_t>> orders;
  Sample sample;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int32_t> order;
    for (int64_t i = 0; i < 10; ++i) {
      dataset.sample(epoch * 10 + i, sample);
      order.push_back(sample.input[0] / 10);
      REQUIRE(sample.input == counting(10, sample.input[0]));
      REQUIRE(sample.label == counting(10, sample.input[0] + 1));
      REQUIRE(sample.position == counting(10));
    }
    orders.push_back(order);
    std::sort(order.begin(), order.end());
    REQUIRE(order == counting(10));
  }
  REQUIRE(orders[0] != orders[1]);
  REQUIRE(orders[1] != orders[2]);
  // The same seed gives the same order, another seed another.
  GptDataset(data, {.seq_length = S, .seed = 5}).sample(17, sample);
  REQUIRE(sample.input[0] / 10 == orders[1][7]);
  std::vector<int32_t> other;
  for (int64_t i = 0; i < 10; ++i) {
    GptDataset(data, {.seq_length = S, .seed = 6}).sample(i, sample);
    other.push_back(sample.input[0] / 10);
  }
  REQUIRE(other != orders[0]);
  const GptDataset in_order(data, {.seq_length = S, .shuffle = false});
  for (int64_t i = 0; i < 25; ++i) {
    in_order.sample(i, sample);
    REQUIRE(sample.input[0] == 10 * (i % 10));
  }
}

TEST_CASE("document ends: masked labels and restarted positions") {
  // Documents of 3, 1, 4 and 5 tokens; sequences of 6: [0 1 2 | 10 | 20 21] and [22 23 | 30 31 32
  // 33], then label 34.
  const auto data = tokens_of({counting(3), {10}, counting(4, 20), counting(5, 30)});
  const GptDataset dataset(
      data,
      {.seq_length = 6, .shuffle = false, .mask_document_ends = true, .reset_positions = true});
  REQUIRE(dataset.size() == 2);
  Sample sample;
  dataset.sample(0, sample);
  REQUIRE(sample.input == std::vector<int32_t>{0, 1, 2, 10, 20, 21});
  REQUIRE(sample.label == std::vector<int32_t>{1, 2, -1, -1, 21, 22});
  REQUIRE(sample.position == std::vector<int32_t>{0, 1, 2, 0, 0, 1});
  dataset.sample(1, sample);
  REQUIRE(sample.input == std::vector<int32_t>{22, 23, 30, 31, 32, 33});
  REQUIRE(sample.label == std::vector<int32_t>{23, -1, 31, 32, 33, 34});
  REQUIRE(sample.position == std::vector<int32_t>{0, 1, 0, 1, 2, 3});

  // A document that ends with the sequence: its last label is the next one's first token.
  const GptDataset edge(tokens_of({counting(4), counting(4)}),
                        {.seq_length = 4, .shuffle = false, .mask_document_ends = true});
  edge.sample(0, sample);
  REQUIRE(sample.label == std::vector<int32_t>{1, 2, 3, -1});
}

TEST_CASE("mistakes of data sets name the numbers") {
  const auto data = tokens_of({counting(100)});
  REQUIRE_THROWS_WITH(GptDataset(data, {.seq_length = 100}),
                      Contains("101 tokens") && Contains("has 100"));
  REQUIRE(GptDataset(data, {.seq_length = 99}).size() == 1);
  REQUIRE_THROWS_AS(GptDataset(data, {.seq_length = 0}), UserError);
  Sample sample;
  const GptDataset small(data, {.seq_length = 50, .shuffle = false, .ids = {50}});
  REQUIRE_THROWS_WITH(small.sample(0, sample), Contains("token 50 of") && Contains("the id 50"));
  REQUIRE_NOTHROW(
      GptDataset(data, {.seq_length = 40, .shuffle = false, .ids = {50}}).sample(0, sample));
}

TEST_CASE("a blend stays within one sample of its weights, in order, from any start") {
  const std::vector<std::vector<double>> cases = {{1},
                                                  {1, 1},
                                                  {0.5, 0.3, 0.2},
                                                  {7, 1},
                                                  {1.0 / 3, 1.0 / 3, 1.0 / 3},
                                                  {0.999, 0.001},
                                                  {M_PI, M_E, M_SQRT2, 0.01},
                                                  std::vector<double>(37, 2.0),
                                                  {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0.017, 0.3},
                                                  {1, 1e-5}};
  for (const auto& weights : cases) {
    const Blend blend(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<int64_t> counts(weights.size());
    const int64_t n = 3 * blend.block() + 500;
    double worst = 0;
    std::vector<Blend::Pick> picks;
    for (int64_t i = 0; i < n; ++i) {
      const auto pick = blend.at(i);
      if (i % 997 == 0) picks.push_back(pick);
      REQUIRE((pick.dataset >= 0 && pick.dataset < int64_t(weights.size())));
      if (pick.index != counts[size_t(pick.dataset)])
        REQUIRE(pick.index == counts[size_t(pick.dataset)]);
      ++counts[size_t(pick.dataset)];
      for (size_t j = 0; j < weights.size(); ++j)
        worst = std::max(worst, std::abs(double(counts[j]) - weights[j] / sum * double(i + 1)));
    }
    // Rounded up or down: below 1, but for the rounding of the doubles.
    REQUIRE(worst < 1 + 1e-9);
    const Blend again(weights);
    for (int64_t i = (n - 1) / 997; i >= 0; --i) {
      const auto pick = again.at(997 * i);
      REQUIRE(pick.dataset == picks[size_t(i)].dataset);
      REQUIRE(pick.index == picks[size_t(i)].index);
    }
  }
  // Far into a run, at once: the index is weight * i.
  const Blend blend({0.5, 0.3, 0.2});
  const double share[] = {0.5, 0.3, 0.2};
  for (int64_t i : {int64_t(1) << 33, (int64_t(1) << 40) + 12345}) {
    const auto pick = blend.at(i);
    // 0.3 as a double is off by 1e-17 relative: 1e-5 of a sample here.
    REQUIRE(std::abs(double(pick.index) - share[pick.dataset] * double(i)) < 1.001);
  }
  REQUIRE_THROWS_WITH(Blend({1, 0}), Contains("data set 1"));
  REQUIRE_THROWS_AS(Blend({1, -1}), UserError);
  REQUIRE_THROWS_AS(Blend({1, NAN}), UserError);
  REQUIRE_THROWS_AS(Blend({}), UserError);
  REQUIRE_THROWS_WITH(Blend({1, 1e-9}), Contains("less than one sample in"));
}

TEST_CASE("a blend of data sets") {
  const BlendDataset blend(
      {std::make_shared<Labelled>(4, 100, 1), std::make_shared<Labelled>(4, 300, -1)}, {1, 2});
  REQUIRE(blend.seq_length() == 4);
  REQUIRE(blend.size() == 300);  // then the first begins again
  std::vector<int32_t> first, second;
  Sample sample;
  for (int64_t i = 0; i < 300; ++i) {
    blend.sample(i, sample);
    const bool from_first = sample.label[0] - sample.input[0] == 1 && sample.input[0] > 0;
    (from_first ? first : second).push_back(std::abs(sample.input[0]));
  }
  // Sample 0 of both sets is 0; it counts as one of the second set.
  REQUIRE(first == counting(99, 1));
  REQUIRE(second.size() == 201);
  REQUIRE_THROWS_AS(BlendDataset({std::make_shared<Labelled>(4)}, {1, 1}), UserError);
}

TEST_CASE("batches: every sample of the global batch once, in sequence-major order") {
  const auto dataset = std::make_shared<Labelled>(3);
  const bool prefetch = GENERATE(false, true);
  for (const auto& [G, B, R] :
       {std::tuple{12, 2, 3}, {12, 4, 1}, {12, 1, 4}, {12, 12, 1}, {12, 3, 4}}) {
    for (int64_t step : {0, 1, 7}) {
      std::vector<int32_t> seen;
      for (int64_t rank = 0; rank < R; ++rank) {
        BatchLoader loader(dataset, {.global_batch = G,
                                     .micro_batch = B,
                                     .dp_rank = rank,
                                     .dp_size = R,
                                     .prefetch = prefetch});
        REQUIRE(loader.micro_batches() == G / (B * R));
        for (int64_t k = 0; k < loader.micro_batches(); ++k) {
          const Batch batch = loader.micro_batch(step, k);
          REQUIRE((batch.B == B && batch.S == 3));
          REQUIRE(batch.input.size() == size_t(3 * B));
          REQUIRE(batch.unmasked == 2 * B);
          for (int64_t b = 0; b < B; ++b) {
            const int32_t id = batch.input[size_t(b)];
            seen.push_back(id);
            for (int64_t s = 0; s < 3; ++s) {
              const size_t token = size_t(s * B + b);
              REQUIRE(batch.input[token] == id);
              REQUIRE(batch.label[token] == (s == 1 ? -1 : id + 1));
              REQUIRE(batch.position[token] == s);
            }
          }
        }
      }
      std::sort(seen.begin(), seen.end());
      REQUIRE(seen == counting(12, int32_t(12 * step)));
    }
  }
  REQUIRE_THROWS_WITH(BatchLoader(dataset, {.global_batch = 10, .micro_batch = 2, .dp_size = 3}),
                      Contains("10") && Contains("= 6") && Contains("use 12"));
  REQUIRE_THROWS_AS(BatchLoader(dataset, {.global_batch = 0}), UserError);
  REQUIRE_THROWS_AS(BatchLoader(dataset, {.global_batch = 4, .micro_batch = 0}), UserError);
}

TEST_CASE("a run that resumes at a step sees what the uninterrupted one saw") {
  const auto data = tokens_of({counting(1000)});
  const auto make = [&](uint64_t seed) {
    return std::make_shared<BlendDataset>(
        std::vector<std::shared_ptr<const Dataset>>{
            std::make_shared<GptDataset>(data, GptDatasetOptions{.seq_length = 8, .seed = seed}),
            std::make_shared<GptDataset>(data,
                                         GptDatasetOptions{.seq_length = 8, .seed = seed + 1})},
        std::vector<double>{2, 1});
  };
  const LoaderOptions options{.global_batch = 8, .micro_batch = 4};
  BatchLoader whole(make(9), options);
  std::map<std::pair<int64_t, int64_t>, std::vector<int32_t>> seen;
  for (int64_t step = 0; step < 60; ++step)  // more than an epoch
    for (int64_t k = 0; k < 2; ++k) seen[{step, k}] = whole.micro_batch(step, k).input;
  for (int64_t start : {0, 1, 31, 59}) {
    BatchLoader resumed(make(9), options);
    for (int64_t step = start; step < std::min<int64_t>(60, start + 3); ++step)
      for (int64_t k = 0; k < 2; ++k)
        REQUIRE(resumed.micro_batch(step, k).input == seen[{step, k}]);
  }
  // Also in any order, when prefetched batches are thrown away.
  REQUIRE(whole.micro_batch(5, 1).input == seen[{5, 1}]);
  REQUIRE(whole.micro_batch(40, 0).input == seen[{40, 0}]);
  REQUIRE(BatchLoader(make(10), options).micro_batch(0, 0).input != seen[{0, 0}]);
}

TEST_CASE("a run whose batch changes its size reads what a run of single samples reads") {
  std::vector<std::vector<int32_t>> documents;
  for (int32_t d = 0; d < 40; ++d) documents.push_back(counting(5 + d * 7 % 23, 100 * d));
  const auto stream = tokens_of({counting(400)}), texts = tokens_of(documents);
  const auto windows = [&](uint64_t seed) {
    return std::make_shared<GptDataset>(stream, GptDatasetOptions{.seq_length = 12, .seed = seed});
  };
  const auto packs = [&](uint64_t seed) {
    return std::make_shared<PackedDataset>(texts, PackedDatasetOptions{.size = 12, .seed = seed});
  };
  using Parts = std::vector<std::shared_ptr<const Dataset>>;
  struct Row {
    const char* what;
    std::shared_ptr<const Dataset> data;
  };
  struct Phase {
    int64_t steps, batch;
  };
  const std::vector<Phase> phases{{5, 4}, {3, 12}, {13, 8}};  // 160 samples
  for (const Row& row : std::vector<Row>{
           {"windows", windows(3)},
           {"packs", packs(3)},
           {"a blend", std::make_shared<BlendDataset>(Parts{windows(3), windows(4)},
                                                      std::vector<double>{2, 1})},
           {"a blend of packs", std::make_shared<BlendDataset>(Parts{packs(3), packs(4)},
                                                               std::vector<double>{1, 3})}}) {
    REQUIRE(row.data->size() < 150);  // an epoch ends within the phases
    for (const int64_t R : {1, 2}) {
      INFO(row.what << ", dp " << R);
      std::vector<int32_t> seen, wanted;
      int64_t sample = 0, step = 0;
      for (const Phase& p : phases) {
        std::vector<std::unique_ptr<BatchLoader>> ranks;
        for (int64_t rank = 0; rank < R; ++rank) {
          ranks.push_back(std::make_unique<BatchLoader>(
              row.data,
              LoaderOptions{
                  .global_batch = p.batch, .micro_batch = 1, .dp_rank = rank, .dp_size = R}));
          ranks.back()->micro_batch(0, 0);  // what it prefetches must not count
          ranks.back()->begin_at(step, sample);
        }
        for (int64_t i = 0; i < p.steps; ++i, ++step, sample += p.batch)
          for (int64_t k = 0; k < p.batch / R; ++k)
            for (const auto& rank : ranks) {
              const Batch batch = rank->micro_batch(step, k);
              for (const auto* values : {&batch.input, &batch.label, &batch.position})
                seen.insert(seen.end(), values->begin(), values->end());
            }
      }
      BatchLoader ones(row.data, {.global_batch = 1});
      for (int64_t i = 0; i < sample; ++i) {
        const Batch batch = ones.micro_batch(i, 0);
        for (const auto* values : {&batch.input, &batch.label, &batch.position})
          wanted.insert(wanted.end(), values->begin(), values->end());
      }
      REQUIRE(sample == 160);
      CHECK(seen == wanted);
    }
  }
  BatchLoader loader(windows(3), {.global_batch = 4});
  loader.begin_at(5, 20);
  CHECK_THROWS_AS(loader.micro_batch(4, 0), BugError);  // the size of its batch is not known
}

TEST_CASE("an error of the background thread reaches the caller, at the batch that has it") {
  BatchLoader loader(std::make_shared<Labelled>(2), {.global_batch = 1});
  REQUIRE_NOTHROW(loader.micro_batch(776, 0));
  REQUIRE_THROWS_WITH(loader.micro_batch(777, 0), Contains("777"));
  REQUIRE(loader.micro_batch(778, 0).input[0] == 778);
}

TEST_CASE("validation visits the first samples once each, in order") {
  const auto dataset = std::make_shared<Labelled>(2, 50);
  for (int64_t N : {1, 7, 12, 50}) {
    for (int64_t R : {1, 2, 3}) {
      std::map<int64_t, std::vector<int32_t>> by_batch;
      int64_t unmasked = 0;
      for (int64_t rank = 0; rank < R; ++rank) {
        const ValidationLoader loader(dataset, N,
                                      {.micro_batch = 4, .dp_rank = rank, .dp_size = R});
        REQUIRE(loader.samples() == N);
        REQUIRE(loader.batches() == (N + 4 * R - 1) / (4 * R));
        for (int64_t i = 0; i < loader.batches(); ++i) {
          const Batch batch = loader.batch(i);
          unmasked += batch.unmasked;
          REQUIRE(batch.unmasked == 8 - std::count(batch.label.begin(), batch.label.end(), -1));
          for (int64_t b = 0; b < 4; ++b)
            if (batch.label[size_t(b)] != -1) by_batch[i].push_back(batch.input[size_t(b)]);
        }
      }
      std::vector<int32_t> order;
      for (const auto& [i, samples] : by_batch)
        order.insert(order.end(), samples.begin(), samples.end());
      REQUIRE(order == counting(int32_t(N)));
      REQUIRE(unmasked == N);  // one of two labels of each sample
    }
  }
  REQUIRE(ValidationLoader(dataset, 0, {}).samples() == 50);
  REQUIRE(ValidationLoader(dataset, 99, {}).samples() == 50);
}

TEST_CASE("bigram loss by hand, and the same sparse as dense") {
  // train: 0 1 0 1 0 0: n(0,1) = 2, n(1,0) = 2, n(0,0) = 1, n(0) = 3, n(1) = 2. valid: 0 1 1.
  const auto train = tokens_of({{0, 1, 0, 1, 0, 0}}), valid = tokens_of({{0, 1, 1}});
  const auto result = bigram_loss(*train, *valid, 4, {0.5});
  REQUIRE(result.pairs == 2);
  const double expected =
      -(std::log((2 + 0.5) / (3 + 0.5 * 4)) + std::log(0.5 / (2 + 0.5 * 4))) / 2;
  REQUIRE(result.loss == Approx(expected).epsilon(1e-12));

  std::mt19937 rng(7);
  std::vector<int32_t> a(200'000), b(70'000);  // more than a block of reading
  for (size_t i = 0; i < a.size(); ++i) a[i] = int32_t(i % 2 ? rng() % 30 : rng() % 10);
  for (size_t i = 0; i < b.size(); ++i) b[i] = int32_t(i % 2 ? rng() % 30 : rng() % 10);
  const auto big_train = tokens_of({a}), big_valid = tokens_of({b});
  for (double alpha : {1.0, 0.1}) {
    // Larger vocabularies change the smoothing alone: alpha V is kept equal.
    const auto dense = bigram_loss(*big_train, *big_valid, 1024, {alpha});
    std::vector<std::vector<double>> n(30, std::vector<double>(30));
    std::vector<double> context(30);
    for (size_t i = 0; i + 1 < a.size(); ++i)
      ++n[size_t(a[i])][size_t(a[i + 1])], ++context[size_t(a[i])];
    for (int64_t V : {1024, 1025, 50'000}) {
      double sum = 0;
      for (size_t i = 0; i + 1 < b.size(); ++i)
        sum -= std::log((n[size_t(b[i])][size_t(b[i + 1])] + alpha) /
                        (context[size_t(b[i])] + alpha * double(V)));
      REQUIRE(bigram_loss(*big_train, *big_valid, V, {alpha}).loss ==
              Approx(sum / double(b.size() - 1)).epsilon(1e-10));
    }
    REQUIRE(dense.pairs == 69'999);
  }
  const auto best = bigram_loss(*big_train, *big_valid, 50'000, {10.0, 1e-3, 1.0});
  REQUIRE(best.alpha == 1e-3);
  REQUIRE(best.loss <= bigram_loss(*big_train, *big_valid, 50'000, {1.0}).loss);
  REQUIRE_THROWS_WITH(bigram_loss(*big_train, *big_valid, 29), Contains("the id 29"));
  REQUIRE_THROWS_AS(bigram_loss(*big_train, *tokens_of({{1}}), 50), UserError);
}

}  // namespace data_sampling_test
