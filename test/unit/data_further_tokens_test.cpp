// Tests the inputs and labels of multi-token prediction in a micro-batch.
#include <catch2/catch.hpp>

#include "data/dataset/batch.h"

namespace data_further_tokens_test {

using namespace mtrain;
using data::Batch;

TEST_CASE("further tokens are those of the same sequence") {
  // Two sequences of four tokens; element s * 2 + b is token s of sequence b.
  Batch batch{.B = 2, .S = 4};
  batch.input = {1, 11, 2, 12, 3, 13, 4, 14};
  batch.label = {2, 12, -1, 13, 4, 14, 5, 15};
  batch.position = {0, 0, 1, 1, 2, 2, 3, 3};
  data::add_further_tokens(batch, 2);
  REQUIRE(batch.further.size() == 2);
  CHECK(batch.further[0].input == std::vector<int32_t>{2, 12, 3, 13, 4, 14, 0, 0});
  CHECK(batch.further[0].label == std::vector<int32_t>{-1, 13, 4, 14, 5, 15, -1, -1});
  CHECK(batch.further[0].unmasked == 5);
  CHECK(batch.further[1].input == std::vector<int32_t>{3, 13, 4, 14, 0, 0, 0, 0});
  CHECK(batch.further[1].label == std::vector<int32_t>{4, 14, 5, 15, -1, -1, -1, -1});
  CHECK(batch.further[1].unmasked == 4);
}

TEST_CASE("further tokens end with the document, and shares take them along") {
  Batch batch{.B = 1, .S = 8};
  batch.input = {1, 2, 3, 4, 5, 6, 7, 8};
  batch.label = {2, 3, 4, 5, 6, 7, 8, 9};
  batch.position = {0, 1, 2, 3, 4, 0, 1, 0};
  batch.documents = {5, 2, 1};
  batch.packs = 1;
  data::add_further_tokens(batch, 3);
  CHECK(batch.further[0].input == std::vector<int32_t>{2, 3, 4, 5, 0, 7, 0, 0});
  CHECK(batch.further[0].label == std::vector<int32_t>{3, 4, 5, 6, -1, 8, -1, -1});
  CHECK(batch.further[2].input == std::vector<int32_t>{4, 5, 0, 0, 0, 0, 0, 0});
  CHECK(batch.further[2].label == std::vector<int32_t>{5, 6, -1, -1, -1, -1, -1, -1});
  int64_t unmasked = 0;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const Batch share = data::share_of_batch(batch, rank, 2);
    const Batch::Further& f = share.further.at(0);
    REQUIRE(f.input.size() == share.input.size());
    REQUIRE(f.label.size() == share.label.size());
    for (size_t t = 0; t < f.label.size(); ++t)
      if (f.label[t] >= 0) CHECK(f.label[t] == share.label[t] + 1);
    unmasked += f.unmasked;
  }
  CHECK(unmasked == batch.further[0].unmasked);
  const Batch padded = data::pad_rows(batch, 16);
  CHECK(padded.further[0].input.size() == 16);
  CHECK(padded.further[0].label.back() == -1);
  // Tables of positions may be as short as the longest row, and padding may be longer.
  CHECK(padded.position == std::vector<int32_t>{0, 1, 2, 3, 4, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0});
}

}  // namespace data_further_tokens_test
