// dataset: which tokens are trained on. packed_sequence: several documents in one sample.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/packing_strategy.h"
#include "recipe/schema/samples.h"

namespace mtrain::recipe {

// What a training sample is.
enum class DataForm { rows, packed, stream };
constexpr auto enum_names(DataForm) {
  return std::array{EnumName{DataForm::rows, "rows"}, EnumName{DataForm::packed, "packed"},
                    EnumName{DataForm::stream, "stream"}};
}

struct DatasetConfig {
  std::vector<std::string> train, validation;
  std::vector<double> train_weights, validation_weights;
  std::vector<double> split, validation_split;
  SamplesConfig train_samples, validation_samples;
  Auto<DataForm> form;
  std::optional<std::string> cache_dir;
  int64_t seq_length = 1024;
  std::optional<int64_t> seed;

  static constexpr auto fields = std::tuple{
      Field{"train",
            &DatasetConfig::train,
            "path prefix (or a list of them) of .bin/.idx pairs made by `mtrain data build`",
            {.aliases = "dataset.data_path dataset.paths"}},
      Field{"train_weights",
            &DatasetConfig::train_weights,
            "share of each training prefix in the blend; empty: in proportion to their numbers of "
            "tokens",
            {.min = 0, .above_min = true}},
      Field{"validation",
            &DatasetConfig::validation,
            "path prefix or prefixes for validation",
            {.aliases = "dataset.valid validation_dataset.paths"}},
      Field{"validation_weights",
            &DatasetConfig::validation_weights,
            "share of each validation prefix; empty: in proportion to their numbers of tokens",
            {.min = 0, .above_min = true}},
      Field{"split",
            &DatasetConfig::split,
            "[99, 1, 0]: shares of the documents of each training prefix, in their order, for "
            "training, validation and test. Validation reads its share unless "
            "dataset.validation names other data. Empty: training reads all documents",
            {.min = 0}},
      Field{"validation_split",
            &DatasetConfig::validation_split,
            "such shares of each prefix of dataset.validation, which reads the second. Empty: "
            "those of split if it names the training prefixes, else all documents",
            {.aliases = "validation_dataset.split", .min = 0}},
      Field{"train_samples", &DatasetConfig::train_samples,
            "rows of text to train on, which are tokenized when a run starts: what `train: "
            "{messages: "
            "FILE}` means"},
      Field{"validation_samples", &DatasetConfig::validation_samples, "the same for validation"},
      Field{"form", &DatasetConfig::form,
            "rows: each document is a sample of its own length; packed: documents fill samples of "
            "packed_sequence_size; stream: samples are cut from the text of all documents; auto: "
            "packed if a size is set, rows for train_samples of prompts or messages, else stream"},
      Field{"cache_dir", &DatasetConfig::cache_dir,
            "folder of the tokens of train_samples; none: mtrain/data in the user's cache folder"},
      Field{"seq_length",
            &DatasetConfig::seq_length,
            "length of a training sample, or of the longest row",
            {.aliases = "model.seq_length dataset.sequence_length dataset.seq_len",
             .unit = "tokens",
             .min = 1,
             .max = 1 << 30}},
      Field{"seed",
            &DatasetConfig::seed,
            "seed of the order of the samples; train.seed unless set",
            {.aliases = "dataset.random_seed", .min = 0, .max = 0x1p63}}};
};

struct PackedSequenceConfig {
  int64_t packed_sequence_size = 0;
  PackingStrategy packing_strategy = PackingStrategy::first_fit;
  std::optional<int64_t> max_packs;
  bool drop_long_samples = false;

  static constexpr auto fields = std::tuple{
      Field{"packed_sequence_size",
            &PackedSequenceConfig::packed_sequence_size,
            "documents are packed into samples of this length; 0: off",
            {.unit = "tokens", .min = 0, .max = 1 << 30}},
      Field{"packing_strategy",
            &PackedSequenceConfig::packing_strategy,
            "first_fit: a document goes into the first pack that has room; thd: packs are filled "
            "in the order of the documents; neat: the longest documents first, each into the pack "
            "that holds least",
            {.aliases = "dataset.packing_strategy"}},
      Field{"max_packs",
            &PackedSequenceConfig::max_packs,
            "train on the first so many packs of each training prefix; none: on all",
            {.aliases = "dataset.max_packs", .unit = "packs", .min = 1, .max = 0x1p62}},
      Field{"drop_long_samples",
            &PackedSequenceConfig::drop_long_samples,
            "leave out documents that are longer than a pack, instead of splitting them; true with "
            "thd and neat unless set",
            {.aliases = "dataset.drop_long_samples"}}};
};

}  // namespace mtrain::recipe
