#include "train/data_setup.h"

#include "base/error.h"
#include "data/dataset/blend.h"
#include "data/dataset/gpt_dataset.h"
#include "data/dataset/indexed_dataset.h"
#include "data/dataset/packed_dataset.h"

namespace mtrain::train {

namespace {

std::shared_ptr<const data::IndexedDataset> open_tokens(const std::string& prefix,
                                                        const char* field) {
  for (const auto& file : {data::bin_path(prefix), data::idx_path(prefix)})
    if (!std::filesystem::exists(file))
      throw UserError(
          fmt::format("{}: there is no {}", field, file.string()),
          fmt::format("{} names the prefix of a .bin/.idx pair; `mtrain data build --input <text> "
                      "--output <prefix>` makes one",
                      field));
  return std::make_shared<data::IndexedDataset>(prefix);
}

std::shared_ptr<const data::Dataset> dataset_of(const plan::DatasetOptions& o,
                                                std::shared_ptr<const data::IndexedDataset> tokens,
                                                int64_t vocab, bool shuffle) {
  const auto seed = uint64_t(o.seed);
  if (o.packed_size > 0)
    return std::make_shared<data::PackedDataset>(
        std::move(tokens), data::PackedDatasetOptions{.size = o.packed_size,
                                                      .seed = seed,
                                                      .shuffle = shuffle,
                                                      .drop_long = o.drop_long,
                                                      .vocab_size = vocab});
  data::GptDatasetOptions gpt;
  gpt.seq_length = o.seq_length;
  gpt.seed = seed;
  gpt.shuffle = shuffle;
  gpt.vocab_size = vocab;
  return std::make_shared<data::GptDataset>(std::move(tokens), gpt);
}

std::shared_ptr<const data::Dataset> open_blend(const char* field, const plan::DatasetOptions& o,
                                                const plan::DatasetOptions::Blend& blend,
                                                int64_t vocab, bool shuffle) {
  std::vector<std::shared_ptr<const data::Dataset>> parts;
  std::vector<double> weights = blend.weights;
  const bool by_size = weights.empty();
  for (const auto& prefix : blend.prefixes) {
    auto tokens = open_tokens(prefix, field);
    if (by_size) weights.push_back(double(tokens->tokens()));
    parts.push_back(dataset_of(o, std::move(tokens), vocab, shuffle));
  }
  if (parts.size() == 1) return parts.front();
  return std::make_shared<data::BlendDataset>(std::move(parts), weights);
}

}  // namespace

std::shared_ptr<const data::Tokenizer> open_tokenizer(const plan::TokenizerOptions& o) {
  return o.path ? data::load_tokenizer(*o.path) : data::make_byte_tokenizer();
}

int64_t vocabulary(const plan::TokenizerOptions& o) {
  const int64_t tokenizer = open_tokenizer(o)->vocab_size();
  if (o.model_vocab == 0) return tokenizer;
  if (o.model_vocab < tokenizer)
    throw UserError(fmt::format("model.vocab_size is {}, but the tokenizer has {} ids",
                                o.model_vocab, tokenizer),
                    "leave model.vocab_size at 0 to take the tokenizer's");
  return o.model_vocab;
}

std::shared_ptr<const data::Dataset> open_training_data(const plan::DatasetOptions& o,
                                                        int64_t vocab) {
  if (o.train.prefixes.empty())
    throw UserError("dataset.train is not set",
                    "name the prefix of a .bin/.idx pair; `mtrain data build` makes one from text");
  return open_blend("dataset.train", o, o.train, vocab, true);
}

std::shared_ptr<const data::Dataset> open_validation_data(const plan::DatasetOptions& o,
                                                          int64_t vocab) {
  if (o.validation.prefixes.empty()) return nullptr;
  return open_blend("dataset.validation", o, o.validation, vocab, false);
}

}  // namespace mtrain::train
