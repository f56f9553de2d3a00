#include "train/data_setup.h"

#include "base/error.h"
#include "data/blend.h"
#include "data/gpt_dataset.h"
#include "data/indexed_dataset.h"
#include "data/packed_dataset.h"

namespace mtrain {

namespace {

std::shared_ptr<const IndexedDataset> open_tokens(const std::string& prefix, const char* field) {
  for (const auto& file : {bin_path(prefix), idx_path(prefix)})
    if (!std::filesystem::exists(file))
      throw UserError(
          fmt::format("{}: there is no {}", field, file.string()),
          fmt::format("{} names the prefix of a .bin/.idx pair; `mtrain data build --input <text> "
                      "--output <prefix>` makes one",
                      field));
  return std::make_shared<IndexedDataset>(prefix);
}

std::shared_ptr<const Dataset> dataset_of(const Recipe& r,
                                          std::shared_ptr<const IndexedDataset> tokens,
                                          int64_t vocab, bool shuffle) {
  const auto seed = uint64_t(r.dataset.seed.value_or(r.train.seed));
  const auto& packed = r.packed_sequence;
  if (packed.packed_sequence_size > 0)
    return std::make_shared<PackedDataset>(
        std::move(tokens), PackedDatasetOptions{.size = packed.packed_sequence_size,
                                                .seed = seed,
                                                .shuffle = shuffle,
                                                .drop_long = packed.drop_long_samples,
                                                .vocab_size = vocab});
  GptDatasetOptions o;
  o.seq_length = r.dataset.seq_length;
  o.seed = seed;
  o.shuffle = shuffle;
  o.vocab_size = vocab;
  return std::make_shared<GptDataset>(std::move(tokens), o);
}

std::shared_ptr<const Dataset> open_blend(const char* field,
                                          const std::vector<std::string>& prefixes,
                                          std::vector<double> weights, const Recipe& r,
                                          int64_t vocab, bool shuffle) {
  std::vector<std::shared_ptr<const Dataset>> parts;
  const bool by_size = weights.empty();
  for (const auto& prefix : prefixes) {
    auto tokens = open_tokens(prefix, field);
    if (by_size) weights.push_back(double(tokens->tokens()));
    parts.push_back(dataset_of(r, std::move(tokens), vocab, shuffle));
  }
  if (parts.size() == 1) return parts.front();
  return std::make_shared<BlendDataset>(std::move(parts), weights);
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const TokenizerConfig& c) {
  return c.type == TokenizerType::byte ? make_byte_tokenizer() : load_tokenizer(c.path.value());
}

int64_t vocabulary(const Recipe& r) {
  const int64_t tokenizer = open_tokenizer(r.tokenizer)->vocab_size();
  if (r.model.vocab_size == 0) return tokenizer;
  if (r.model.vocab_size < tokenizer)
    throw UserError(fmt::format("model.vocab_size is {}, and the tokenizer has {} ids",
                                r.model.vocab_size, tokenizer),
                    "leave model.vocab_size at 0 to take the tokenizer's");
  return r.model.vocab_size;
}

std::shared_ptr<const Dataset> open_training_data(const Recipe& r, int64_t vocab) {
  if (r.dataset.train.empty())
    throw UserError("dataset.train is not set",
                    "name the prefix of a .bin/.idx pair; `mtrain data build` makes one from text");
  return open_blend("dataset.train", r.dataset.train, r.dataset.train_weights, r, vocab, true);
}

std::shared_ptr<const Dataset> open_validation_data(const Recipe& r, int64_t vocab) {
  if (r.dataset.validation.empty()) return nullptr;
  return open_blend("dataset.validation", r.dataset.validation, r.dataset.validation_weights, r,
                    vocab, false);
}

}  // namespace mtrain
