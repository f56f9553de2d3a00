// Any bytes are refused as an index with a UserError, or every look-up in the index stays inside
// the bytes.
#include <cstring>

#include "base/error.h"
#include "data/dataset/indexed_dataset.h"

using namespace mtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  uint64_t bin_size = 0;  // the first bytes are the size of the .bin
  std::memcpy(&bin_size, data, 8);
  try {
    const data::TokenIndex index(std::as_bytes(std::span(data + 8, size - 8)), bin_size,
                                 "fuzz.idx");
    const auto in_stream = [&](int64_t token) {
      MT_CHECK(token >= 0 && token <= index.tokens(), "token {}", token);
    };
    MT_CHECK(uint64_t(index.tokens()) * uint64_t(token_bytes(index.type())) == bin_size, "tokens");
    for (int64_t i = 0; i < index.sequences(); ++i) {
      in_stream(index.first_token(i));
      in_stream(index.first_token(i) + index.length(i));
    }
    for (int64_t d = 0; d <= index.documents(); ++d) in_stream(index.document_begin(d));
    for (int64_t t = 0; t < index.tokens(); t += 1 + index.tokens() / 50) {
      const int64_t d = index.document_of(t);
      MT_CHECK(index.document_begin(d) <= t && t < index.document_begin(d + 1), "document {}", d);
    }
  } catch (const UserError&) {
  }
  return 0;
}
