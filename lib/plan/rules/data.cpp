#include <algorithm>
#include <filesystem>

#include <fmt/core.h>

#include "plan/rules/rules.h"

namespace mtrain::plan {
namespace {

void validate_weights(const char* name, const std::vector<std::string>& paths,
                      const std::vector<double>& weights, Diagnostics& diagnostics) {
  const std::string field = fmt::format("dataset.{}_weights", name);
  const std::string list = fmt::format("dataset.{}", name);
  diagnostics.require(
      weights.empty() || weights.size() == paths.size(), {field, list},
      fmt::format("{} weights for {} path prefixes", weights.size(), paths.size()),
      "give one weight per prefix, or none to weigh them by their numbers of tokens");
}

}  // namespace

void validate_data(const Recipe& r, Diagnostics& diagnostics) {
  for (const std::string& prefix : r.dataset.validation)
    if (std::ranges::count(r.dataset.train, prefix) > 0)
      diagnostics.warn("dataset.validation",
                       fmt::format("{} is trained on, too, so that its loss says nothing about "
                                   "held-out text",
                                   prefix),
                       "cut held-out text off by `mtrain data build --validation-fraction`");
  diagnostics.require(
      !r.dataset.train.empty(), {"dataset.train"}, "no training data is given",
      "set dataset.train to the prefix of .bin/.idx files made by `mtrain data build`");
  validate_weights("train", r.dataset.train, r.dataset.train_weights, diagnostics);
  validate_weights("validation", r.dataset.validation, r.dataset.validation_weights, diagnostics);
  diagnostics.require(r.validation.every_steps == 0 || !r.dataset.validation.empty(),
                      {"validation.every_steps", "dataset.validation"},
                      fmt::format("an evaluation every {} steps is asked for, but there is no "
                                  "validation data",
                                  r.validation.every_steps),
                      "set dataset.validation, or validation.every_steps: 0");
  diagnostics.require(r.tokenizer.type != recipe::TokenizerType::huggingface || r.tokenizer.path,
                      {"tokenizer.type", "tokenizer.path"},
                      "a huggingface tokenizer needs tokenizer.path",
                      "give the tokenizer.json of the model, or use type: byte");
  diagnostics.require(r.tokenizer.type != recipe::TokenizerType::byte || !r.tokenizer.path,
                      {"tokenizer.path", "tokenizer.type"},
                      "is given, but the byte tokenizer reads no file",
                      "set tokenizer.type: huggingface, or remove the path");
  const bool null = r.tokenizer.type == recipe::TokenizerType::null;
  diagnostics.require(!null || !r.tokenizer.path, {"tokenizer.path", "tokenizer.type"},
                      "is given, but NullTokenizer reads no file",
                      "set tokenizer.type: huggingface, or remove the path");
  diagnostics.require(!null || r.model.vocab_size > 0, {"tokenizer.type", "model.vocab_size"},
                      "NullTokenizer does not say how many ids there are", "set model.vocab_size");
}

namespace {

void check_prefixes(const char* field, const std::vector<std::string>& prefixes,
                    Diagnostics& diagnostics) {
  std::error_code ignored;
  for (const std::string& prefix : prefixes)
    for (const char* suffix : {".bin", ".idx"})
      if (!std::filesystem::exists(prefix + suffix, ignored)) {
        diagnostics.require(false, {field}, fmt::format("there is no file {}{}", prefix, suffix),
                            "make the pair by `mtrain data build`, or correct the path prefix");
        break;
      }
}

}  // namespace

void check_files(const Recipe& r, Diagnostics& diagnostics) {
  check_prefixes("dataset.train", r.dataset.train, diagnostics);
  check_prefixes("dataset.validation", r.dataset.validation, diagnostics);
  std::error_code ignored;
  if (r.tokenizer.type == recipe::TokenizerType::huggingface && r.tokenizer.path)
    diagnostics.require(std::filesystem::exists(*r.tokenizer.path, ignored), {"tokenizer.path"},
                        fmt::format("there is no file or folder {}", *r.tokenizer.path),
                        "give the tokenizer.json of the model, or the folder that holds it");
}

}  // namespace mtrain::plan
