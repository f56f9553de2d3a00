#include "train/data_setup.h"

#include "base/error.h"
#include "data/dataset/blend.h"
#include "data/dataset/gpt_dataset.h"
#include "data/dataset/indexed_dataset.h"
#include "data/dataset/mock_dataset.h"
#include "data/dataset/packed_dataset.h"
#include "data/dataset/rows_dataset.h"

namespace mtrain::train {

namespace {

std::shared_ptr<const data::Dataset> dataset_of(const plan::DatasetOptions& o,
                                                std::shared_ptr<const data::IndexedDataset> tokens,
                                                const data::IdCheck& ids, bool training) {
  const auto seed = uint64_t(o.seed);
  if (o.rows)
    return std::make_shared<data::RowsDataset>(
        std::move(tokens),
        data::RowsDatasetOptions{
            .longest = o.seq_length, .seed = seed, .shuffle = training, .ids = ids});
  const bool packed = o.packed_size > 0;
  if (packed || (tokens->masked() && !training))
    return std::make_shared<data::PackedDataset>(
        std::move(tokens), data::PackedDatasetOptions{.size = packed ? o.packed_size : o.seq_length,
                                                      .seed = seed,
                                                      .shuffle = training,
                                                      .drop_long = o.drop_long,
                                                      .strategy = o.packing,
                                                      .max_packs = training ? o.max_packs : 0,
                                                      .alone = !packed,
                                                      .ids = ids});
  return std::make_shared<data::GptDataset>(
      std::move(tokens),
      data::GptDatasetOptions{
          .seq_length = o.seq_length, .seed = seed, .shuffle = training, .ids = ids});
}

std::shared_ptr<const data::Dataset> open_mock(const plan::DatasetOptions& o,
                                               const plan::DatasetOptions::Mock& mock,
                                               const data::IdCheck& ids, uint64_t stream) {
  constexpr int64_t kVocabulary = 1024;
  const int64_t asked = mock.vocab_size > 0 ? mock.vocab_size : kVocabulary;
  return std::make_shared<data::MockDataset>(
      data::MockDatasetOptions{.seq_length = o.seq_length,
                               .samples = mock.samples,
                               .vocab_size = ids.rows() > 0 ? std::min(asked, ids.rows()) : asked,
                               .seed = uint64_t(o.seed) * 2 + stream});
}

std::shared_ptr<const data::Dataset> open_blend(const char* name, const plan::DatasetOptions& o,
                                                const plan::DatasetOptions::Blend& blend,
                                                const data::IdCheck& ids, bool training) {
  std::vector<std::shared_ptr<const data::Dataset>> parts;
  std::vector<double> weights = blend.weights;
  const bool by_size = weights.empty();
  for (const auto& prefix : blend.prefixes) {
    auto tokens = open_tokens(prefix, name, blend.documents);
    if (by_size) weights.push_back(double(tokens->tokens()));
    if (o.tokenizer.assumed) ids.look_at(*tokens, int64_t(blend.prefixes.size()));
    parts.push_back(dataset_of(o, std::move(tokens), ids, training));
  }
  if (parts.size() == 1) return parts.front();
  return std::make_shared<data::BlendDataset>(std::move(parts), weights);
}

}  // namespace

std::shared_ptr<const data::IndexedDataset> open_tokens(const std::string& prefix, const char* name,
                                                        const DocumentShare& share) {
  for (const auto& file : {data::bin_path(prefix), data::idx_path(prefix)})
    if (!std::filesystem::exists(file))
      throw UserError(
          fmt::format("{}: there is no {}", name, file.string()),
          fmt::format("{} names the prefix of a .bin/.idx pair; `mtrain data build --input <text> "
                      "--output <prefix>` makes one",
                      name));
  return std::make_shared<data::IndexedDataset>(prefix, share);
}

std::shared_ptr<const data::Tokenizer> open_tokenizer(const plan::TokenizerOptions& o) {
  if (o.unknown) return nullptr;
  return o.path ? data::load_tokenizer(*o.path) : data::make_byte_tokenizer();
}

int64_t vocabulary(const plan::TokenizerOptions& o) {
  if (o.model_vocab > 0) return o.model_vocab;
  const auto tokenizer = open_tokenizer(o);
  MT_CHECK(tokenizer, "a recipe names neither a tokenizer nor a vocabulary");
  return tokenizer->vocab_size();
}

data::IdCheck id_check(const plan::TokenizerOptions& o, int64_t vocab) {
  return {vocab, o.assumed ? nullptr : open_tokenizer(o)};
}

std::shared_ptr<const data::Dataset> open_training_data(const plan::DatasetOptions& o,
                                                        const data::IdCheck& ids) {
  if (o.mock_train.samples > 0) return open_mock(o, o.mock_train, ids, 0);
  if (o.train.prefixes.empty())
    throw UserError("dataset.train is not set",
                    "name the prefix of a .bin/.idx pair; `mtrain data build` makes one from text");
  return open_blend("dataset.train", o, o.train, ids, true);
}

int64_t samples_of_epoch(const plan::DatasetOptions& o) {
  plan::DatasetOptions unread = o;
  unread.tokenizer.assumed = false;  // otherwise IdCheck::look_at() would read tokens
  return open_training_data(unread, {})->size();
}

std::shared_ptr<const data::Dataset> open_validation_data(const plan::DatasetOptions& o,
                                                          const data::IdCheck& ids,
                                                          const char* name) {
  if (o.mock_validation.samples > 0) return open_mock(o, o.mock_validation, ids, 1);
  if (o.validation.prefixes.empty()) return nullptr;
  return open_blend(name, o, o.validation, ids, false);
}

}  // namespace mtrain::train
