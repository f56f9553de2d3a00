// Ids that a model cannot read are refused when they are used, and named with their place.
#include <algorithm>
#include <fstream>
#include <memory>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "data/dataset/blend.h"
#include "data/dataset/gpt_dataset.h"
#include "data/dataset/packed_dataset.h"
#include "data/dataset/strided_dataset.h"
#include "test/support/temporary_folder.h"

namespace data_ids_test {

using namespace mtrain;
using namespace mtrain::data;
using Catch::Contains;

namespace {

// Writes documents of 10 tokens with the id 5 each; token 37 has the id `odd`, as a damaged file
// may.
std::shared_ptr<const IndexedDataset> tokens_with(int32_t odd, int64_t count = 60,
                                                  bool masked = false) {
  constexpr int64_t kOdd = 37;
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "ids", TokenType::i32, masked);
  for (int64_t t = 0; t < count; ++t) {
    const int32_t id = t == kOdd ? std::max(odd, 0) : 5;
    const uint8_t label = t != kOdd;
    masked ? writer.add_tokens({&id, 1}, {&label, 1}) : writer.add_tokens({&id, 1});
    if (t % 10 == 9) writer.end_document();
  }
  writer.finish();
  if (odd < 0) {  // no writer makes such a file
    std::fstream file(folder / "ids.bin", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(kOdd * int64_t{sizeof odd});
    file.write(reinterpret_cast<const char*>(&odd), sizeof odd);
  }
  return std::make_shared<IndexedDataset>(folder / "ids");
}

void read_all(const Dataset& data) {
  for (int64_t i = 0; i < data.size(); ++i) {
    Sample sample;
    data.sample(i, sample);
  }
}

std::vector<std::shared_ptr<const Dataset>> all_sets(
    const std::shared_ptr<const IndexedDataset>& tokens, const IdCheck& ids) {
  auto gpt = std::make_shared<GptDataset>(
      tokens, GptDatasetOptions{.seq_length = 8, .shuffle = false, .ids = ids});
  return {
      gpt,
      std::make_shared<PackedDataset>(
          tokens, PackedDatasetOptions{.size = 24, .shuffle = false, .ids = ids}),
      std::make_shared<PackedDataset>(
          tokens, PackedDatasetOptions{.size = 24, .shuffle = false, .alone = true, .ids = ids}),
      std::make_shared<StridedDataset>(tokens,
                                       StridedDatasetOptions{.window = 8, .stride = 5, .ids = ids}),
      std::make_shared<StridedDataset>(
          tokens, StridedDatasetOptions{.window = 8, .stride = 5, .by_document = true, .ids = ids}),
      std::make_shared<BlendDataset>(std::vector<std::shared_ptr<const Dataset>>{gpt},
                                     std::vector<double>{1})};
}

}  // namespace

TEST_CASE("every data set names the id, its token and its place before a model reads it") {
  const std::shared_ptr<const Tokenizer> bytes = make_byte_tokenizer();
  for (const bool masked : {false, true})
    for (const auto& data : all_sets(tokens_with('~', 60, masked), {126, bytes}))
      CHECK_THROWS_WITH(read_all(*data), Contains("token 37 of ") && Contains("ids.bin") &&
                                             Contains("(token 7 of document 3, in sample ") &&
                                             Contains("the id 126 (\"~\")") &&
                                             Contains("the model's vocabulary has 126 ids"));
  for (const auto& data : all_sets(tokens_with('~'), {127, bytes})) CHECK_NOTHROW(read_all(*data));
  for (const auto& data : all_sets(tokens_with(-7), {}))
    CHECK_THROWS_WITH(read_all(*data), Contains("token 37 of ") && Contains("negative"));
}

TEST_CASE("ids above the tokenizer's largest are refused though the model has rows for them") {
  const std::shared_ptr<const Tokenizer> bytes = make_byte_tokenizer();
  for (const auto& data : all_sets(tokens_with(257), {1000, bytes}))
    CHECK_THROWS_WITH(read_all(*data),
                      Contains("token 37 of ") && Contains("the id 257, but the largest id of the "
                                                           "tokenizer (byte) is 256"));
  for (const auto& data : all_sets(tokens_with(256), {1000, bytes})) CHECK_NOTHROW(read_all(*data));
  for (const auto& data : all_sets(tokens_with(257), {1000})) CHECK_NOTHROW(read_all(*data));
}

TEST_CASE("a check knows the largest id that it has seen, and looks at a part of many tokens") {
  const IdCheck ids(1000);
  CHECK(ids.largest() == -1);
  ids.look_at(*tokens_with(900));  // a small set is checked in full
  CHECK(ids.largest() == 900);
  const IdCheck copy = ids;
  copy.check(std::vector<int32_t>{3, 950}, *tokens_with(5), 0, 0);
  CHECK(ids.largest() == 950);
  const IdCheck other(1000);
  other.look_at(*tokens_with(900, 1100));
  CHECK(other.largest() == 900);
  other.look_at(*tokens_with(910, 38));  // the last token of the set
  CHECK(other.largest() == 910);
  const IdCheck one_of_many(1000);
  one_of_many.look_at(*tokens_with(920), 5000);  // at least its first tokens
  CHECK(one_of_many.largest() == 920);
}

TEST_CASE("a token is described by its id and its text") {
  const auto bytes = make_byte_tokenizer();
  CHECK(describe_id('a', bytes.get()) == "id 97 (\"a\")");
  CHECK(describe_id(0xe9, bytes.get()) == "id 233 (\"\\xe9\")");
  CHECK(describe_id(256, bytes.get()) == "id 256 (the end of a document)");
  CHECK(describe_id(257, bytes.get()) == "id 257");
  CHECK(describe_id('a', nullptr) == "id 97");
}

}  // namespace data_ids_test
