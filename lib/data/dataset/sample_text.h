// A document of token files as text for people, with its labels marked.
#pragma once
#include <cstdint>
#include <string>

#include "data/dataset/indexed_dataset.h"
#include "data/tokenizer/tokenizer.h"

namespace mtrain::data {

// What stands before and after tokens that count as labels.
struct LabelMarks {
  std::string begin, end;
};

// Returns "PREFIX: sample 3 of 100, 54 tokens, 20 of them labels". Throws UserError if there is no
// such sample, as does text_of_sample().
std::string describe_sample(const IndexedDataset& tokens, int64_t sample);

// Returns the text. Without a mask all tokens count, and none is marked. Control characters but
// line feeds and tabs are shown as codes, so no text can change a terminal. The end of a
// document without a text, and an id that the tokenizer lacks, are shown as "<id 256>".
std::string text_of_sample(const IndexedDataset& tokens, int64_t sample, const Tokenizer& tokenizer,
                           const LabelMarks& marks);

}  // namespace mtrain::data
