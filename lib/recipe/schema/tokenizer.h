// tokenizer: how text becomes tokens.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <tuple>

#include "recipe/schema/field.h"

namespace mtrain::recipe {

enum class TokenizerType { byte, huggingface, null };
constexpr auto enum_names(TokenizerType) {
  return std::array{EnumName{TokenizerType::byte, "byte"},
                    EnumName{TokenizerType::huggingface, "huggingface"},
                    EnumName{TokenizerType::huggingface, "HuggingFaceTokenizer"},
                    EnumName{TokenizerType::null, "NullTokenizer"}};
}

struct TokenizerConfig {
  TokenizerType type = TokenizerType::byte;
  std::optional<std::string> path;

  static constexpr auto fields =
      std::tuple{Field{"type",
                       &TokenizerConfig::type,
                       "byte needs no file; huggingface reads a tokenizer.json; NullTokenizer: the "
                       "data are ids below model.vocab_size that cannot be decoded to text",
                       {.aliases = "tokenizer.tokenizer_type"}},
                 Field{"path",
                       &TokenizerConfig::path,
                       "tokenizer.json, the folder that holds it, or a downloaded model's name on "
                       "the Hugging Face Hub",
                       {.aliases = "tokenizer.tokenizer_model "
                                   "tokenizer.pretrained_model_name_or_path "
                                   "dataset.tokenizer.pretrained_model_name_or_path"}}};
};

}  // namespace mtrain::recipe
