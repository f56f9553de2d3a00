// Tests how a sample of token files is shown.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "data/dataset/sample_text.h"
#include "test/support/temporary_folder.h"

namespace data_sample_text_test {

using namespace mtrain;
using namespace mtrain::data;

namespace {

// Writes a document for each text: bytes between < and > are labels.
IndexedDataset tokens_of(const TemporaryFolder& folder, const std::vector<std::string>& texts) {
  IndexedDatasetWriter writer(folder / "d", TokenType::u16, true);
  for (const std::string& text : texts) {
    uint8_t label = 0;
    for (const char c : text) {
      const auto id = int32_t(uint8_t(c == '$' ? 0 : c)) + (c == '$' ? 256 : 0);
      if (c == '<' || c == '>')
        label = c == '<';
      else
        writer.add_tokens({&id, 1}, {&label, 1});
    }
    writer.end_document();
  }
  writer.finish();
  return IndexedDataset(folder / "d");
}

}  // namespace

TEST_CASE("a sample is shown with marks around its labels") {
  const TemporaryFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  const IndexedDataset tokens = tokens_of(folder, {"ab", "u<é\n>x\x1b<$>"});
  CHECK(text_of_sample(tokens, 0, *tokenizer, {"[[", "]]"}) == "ab");
  CHECK(text_of_sample(tokens, 1, *tokenizer, {"[[", "]]"}) == "u[[é\n]]x\\x1b[[<id 256>]]");
  CHECK(describe_sample(tokens, 1).ends_with("sample 1 of 2, 7 tokens, 4 of them labels"));
  CHECK_THROWS_WITH(describe_sample(tokens, 2), Catch::Matchers::Contains("there is no sample 2"));
}

}  // namespace data_sample_text_test
