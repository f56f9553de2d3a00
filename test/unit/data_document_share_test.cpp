// Tests data sets that read a share of the documents of their files.
#include <catch2/catch.hpp>
#include <filesystem>

#include "base/document_share.h"
#include "data/dataset/id_check.h"
#include "data/dataset/indexed_dataset.h"
#include "test/support/temporary_folder.h"

namespace data_document_share_test {

using namespace mtrain;
using namespace mtrain::data;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

TEST_CASE("a share of the documents has Megatron's bounds") {
  using Range = std::pair<int64_t, int64_t>;
  struct Row {
    std::vector<double> split;
    int64_t documents;
    Range train, validation, test;
  };
  // By Megatron-Core's formula in Python. Halves are rounded to the even number: 49.5 to 50, 148.5
  // to 148.
  for (const Row& row :
       std::vector<Row>{{{99, 1, 0}, 50, {0, 50}, {50, 50}, {50, 50}},
                        {{99, 1, 0}, 150, {0, 148}, {148, 150}, {150, 150}},
                        {{900, 50, 50}, 50, {0, 45}, {45, 48}, {48, 50}},
                        {{900, 50, 50}, 12345, {0, 11110}, {11110, 11728}, {11728, 12345}},
                        {{0.98, 0.01, 0.01}, 150, {0, 147}, {147, 148}, {148, 150}},
                        {{1, 1, 1}, 7, {0, 2}, {2, 5}, {5, 7}},
                        {{9999, 8, 2}, 1000, {0, 999}, {999, 1000}, {1000, 1000}},
                        {{98, 2}, 12345, {0, 12098}, {12098, 12345}, {12345, 12345}},
                        {{}, 7, {0, 7}, {0, 7}, {0, 7}}}) {
    CHECK(document_share(row.split, SplitPart::train).range(row.documents) == row.train);
    CHECK(document_share(row.split, SplitPart::validation).range(row.documents) == row.validation);
    CHECK(document_share(row.split, SplitPart::test).range(row.documents) == row.test);
  }
}

TEST_CASE("a share of the documents reads as a data set of these documents alone") {
  const TemporaryFolder folder;
  std::vector<std::vector<int32_t>> all;
  for (int32_t d = 0; d < 10; ++d) {
    all.emplace_back();
    for (int32_t i = 0; i <= d; ++i) all.back().push_back(10 * d + i);
  }
  const auto write_masked = [&](const fs::path& prefix, size_t first, size_t last) {
    IndexedDatasetWriter writer(prefix, TokenType::u16, true);
    for (size_t d = first; d < last; ++d) {
      std::vector<uint8_t> labels;
      for (const int32_t id : all[d]) labels.push_back(uint8_t(id % 3 == 0));
      writer.add_tokens(all[d], labels);
      writer.end_document();
    }
    writer.finish();
  };
  write_masked(folder / "all", 0, 10);
  write_masked(folder / "part", 3, 7);
  const IndexedDataset share(folder / "all", {.begin = 0.3, .end = 0.7}), part(folder / "part");
  REQUIRE(share.tokens() == part.tokens());
  REQUIRE(share.index().documents() == 4);
  for (int64_t d = 0; d <= 4; ++d)
    CHECK(share.index().document_begin(d) == part.index().document_begin(d));
  std::vector<int32_t> of_share(size_t(share.tokens())), of_part(of_share.size());
  share.read(0, of_share);
  part.read(0, of_part);
  CHECK(of_share == of_part);
  for (int64_t t = 0; t < part.tokens(); ++t) {
    CHECK(share.counts(t) == part.counts(t));
    CHECK(share.index().document_of(t) == part.index().document_of(t));
    CHECK(share.any_counts(t, 1) == part.any_counts(t, 1));
  }
  CHECK_THAT(share.name(), Contains("all.bin (documents 3 to 6)"));

  // Errors name the place in the file.
  const IdCheck ids(40);
  CHECK_THROWS_WITH(ids.check(of_share, share, 0, 0), Contains("token 10 of") &&
                                                          Contains("token 0 of document 4") &&
                                                          Contains("id 40"));
  CHECK_THROWS_WITH(IndexedDataset(folder / "all", {.begin = 0.99, .end = 1}),
                    Contains("has 10 documents") && Contains("99 % to 100 %"));
}

}  // namespace data_document_share_test
