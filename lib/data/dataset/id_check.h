// Refuses token ids that a model cannot read, before they index its embedding.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/dataset/indexed_dataset.h"
#include "data/tokenizer/tokenizer.h"

namespace mtrain::data {

// Copies share the largest id.
class IdCheck {
 public:
  // `rows` is the number of rows of the model's embedding (0: any id is allowed). With a tokenizer
  // (null: not known), ids above its largest are refused, too, and errors show the texts of tokens.
  IdCheck(int64_t rows = 0, std::shared_ptr<const Tokenizer> tokenizer = nullptr);

  // Checks the tokens [first, first + ids.size()) of `tokens`, which were read for sample number
  // `sample`. Throws UserError, which names the first id that is refused and its place. Several
  // threads may call it.
  void check(std::span<const int32_t> ids, const IndexedDataset& tokens, int64_t first,
             int64_t sample) const;

  // Updates largest() from a bounded number of evenly spaced tokens, and refuses nothing. `sets` is
  // how many sets of tokens share the bound.
  void look_at(const IndexedDataset& tokens, int64_t sets = 1) const;
  int64_t rows() const { return rows_; }
  int32_t largest() const { return *largest_; }  // of all ids seen so far; -1: none

 private:
  void note(int32_t id) const;
  [[noreturn]] void refuse(int32_t id, const IndexedDataset& tokens, int64_t token,
                           int64_t sample) const;

  int64_t rows_, limit_;  // ids are below limit_
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<std::atomic<int32_t>> largest_;
};

// Returns "id 7 ("<pad>")", with the text of the token if the tokenizer, which may be null, has it.
std::string describe_id(int32_t id, const Tokenizer* tokenizer);

}  // namespace mtrain::data
