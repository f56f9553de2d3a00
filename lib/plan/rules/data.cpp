#include <algorithm>
#include <filesystem>
#include <regex>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/document_share.h"
#include "base/hub_cache.h"
#include "base/strings.h"
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

// Checks the split of `data`, of which `part` is read. `prefixes` is whether it names any pairs.
void validate_split(const char* field, const char* data, const std::vector<double>& split,
                    SplitPart part, bool prefixes, Diagnostics& diagnostics) {
  if (split.empty()) return;
  const bool has_part = split.size() > size_t(part) && split[size_t(part)] > 0;
  diagnostics.require(split.size() <= 3 && has_part, {field},
                      fmt::format("[{}] {}", fmt::join(split, ", "),
                                  split.size() > 3           ? "has more than three shares"
                                  : part == SplitPart::train ? "has no share for training"
                                                             : "has no share for validation"),
                      "write the shares of training, validation and test: [99, 1, 0]");
  diagnostics.require(prefixes, {field, data}, "splits .bin/.idx pairs, and none are named",
                      fmt::format("rows of text have their own: {}: {{messages: FILE, split: "
                                  "\"train[:99%]\"}}",
                                  data));
}

// Whether the text is a split as data::parse_split() reads it.
bool is_split(const std::string& text) {
  static const std::regex form(
      R"(\s*[\w.-]*(\[\s*(-?\d{1,15}%?)?\s*:\s*(-?\d{1,15}%?)?\s*\])?\s*)");
  return std::regex_match(text, form);
}

void validate_samples(const Recipe& r, Diagnostics& diagnostics) {
  using recipe::DataForm;
  const auto check = [&](const char* field, const recipe::SamplesConfig& s, bool prefixes) {
    if (!s.on()) return;
    const std::string path = fmt::format("dataset.{}_samples", field);
    const std::string files = path + ".files", split = path + ".split",
                      vocab = path + ".vocab_size", own = fmt::format("dataset.{}", field);
    diagnostics.require(
        !prefixes, {own, path}, "is given beside rows of text",
        fmt::format("keep one of them: the prefixes, or {{messages: FILE}} and the like"));
    diagnostics.require(*s.format == recipe::SampleFormat::mock || !s.files.empty(), {files},
                        "names no file",
                        fmt::format("write {}: {{{}: FILE.jsonl}}", own, enum_name(*s.format)));
    diagnostics.require(s.vocab_size.value_or(0) <= r.model.vocab_size || r.model.vocab_size == 0,
                        {vocab, "model.vocab_size"},
                        fmt::format("random tokens are below {}, and the model's vocabulary has {}",
                                    s.vocab_size.value_or(0), r.model.vocab_size),
                        "leave it out: it is then at most the model's");
    diagnostics.require(*s.format != recipe::SampleFormat::tokens ||
                            (s.split.empty() && !s.limit && !s.shuffle_seed),
                        {path + ".format", split, path + ".limit", path + ".shuffle_seed"},
                        "files of tokens are read whole, without split, limit and shuffle_seed",
                        "leave these out, and name fewer files");
    diagnostics.require(is_split(s.split), {split}, fmt::format("`{}` is not a split", s.split),
                        "write train, train[:1000] or train[10%:]");
  };
  check("train", r.dataset.train_samples, !r.dataset.train.empty());
  check("validation", r.dataset.validation_samples, !r.dataset.validation.empty());
  const int64_t size = r.packed_sequence.packed_sequence_size;
  const char *form = "dataset.form", *packs = "packed_sequence.packed_sequence_size";
  diagnostics.require(
      (data_form(r) == DataForm::packed) == (size > 0), {form, packs},
      fmt::format("form is {}, and packed_sequence_size is {}", enum_name(data_form(r)), size),
      size > 0 ? "leave form out, or set packed_sequence_size: 0"
               : "set packed_sequence.packed_sequence_size");
  diagnostics.require(data_form(r) != DataForm::rows ||
                          r.dataset.train_samples.format != recipe::SampleFormat::mock,
                      {form}, "mock data are a stream", "leave form out");
}

}  // namespace

void validate_data(const Recipe& r, Diagnostics& diagnostics) {
  const auto end = document_share(r.dataset.split, SplitPart::train).end,
             begin = document_share(r.dataset.validation_split, SplitPart::validation).begin;
  if (begin < end)
    for (const std::string& prefix : r.dataset.validation)
      if (std::ranges::count(r.dataset.train, prefix) > 0)
        diagnostics.warn("dataset.validation",
                         fmt::format("{} is also training data, so its loss says nothing about "
                                     "held-out text",
                                     prefix),
                         "leave it out, and write dataset.split: [99, 1, 0]; or cut held-out text "
                         "off by `mtrain data build --validation-fraction`");
  diagnostics.require(
      !r.dataset.train.empty() || r.dataset.train_samples.on(), {"dataset.train"},
      "no training data is given",
      "set dataset.train to the prefix of .bin/.idx files made by `mtrain data build`, or to "
      "{messages: FILE.jsonl}");
  validate_samples(r, diagnostics);
  validate_split("dataset.split", "dataset.train", r.dataset.split, SplitPart::train,
                 !r.dataset.train.empty() || !r.given("dataset.split"), diagnostics);
  validate_split("dataset.validation_split", "dataset.validation", r.dataset.validation_split,
                 SplitPart::validation,
                 !r.dataset.validation.empty() || !r.given("dataset.validation_split"),
                 diagnostics);
  validate_weights("train", r.dataset.train, r.dataset.train_weights, diagnostics);
  validate_weights("validation", r.dataset.validation, r.dataset.validation_weights, diagnostics);
  diagnostics.require(r.validation.every_steps == 0 || !r.dataset.validation.empty() ||
                          r.dataset.validation_samples.on(),
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

// Returns the prefix without .bin or .idx, or unchanged if it ends with neither.
std::string without_ending(const std::string& prefix) {
  for (const std::string_view ending : {".bin", ".idx"})
    if (prefix.ends_with(ending)) return prefix.substr(0, prefix.size() - ending.size());
  return prefix;
}

bool has_pair(const std::string& prefix) {
  std::error_code ignored;
  return std::filesystem::exists(prefix + ".bin", ignored) &&
         std::filesystem::exists(prefix + ".idx", ignored);
}

bool is_text_file(const std::string& path) {
  for (const std::string_view ending : {".jsonl", ".json", ".txt", ".text", ".md"})
    if (path.ends_with(ending)) return true;
  return false;
}

// Returns the prefixes of pairs in the folder.
std::vector<std::string> pairs_in(const std::filesystem::path& folder) {
  std::vector<std::string> prefixes;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".bin") {
      const std::string prefix = without_ending(entry.path().lexically_normal().string());
      if (has_pair(prefix)) prefixes.push_back(prefix);
    }
  std::ranges::sort(prefixes);
  return prefixes;
}

constexpr const char* kMake =
    "correct the path, or make its .bin and .idx with `mtrain data build`";

// What is wrong with a prefix that has no pair of files, and what the user can do.
struct DataFault {
  std::string reason, hint;
};
DataFault data_fault(const std::string& prefix, const std::string& tokenizer) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (const std::string stem = without_ending(prefix); stem != prefix && has_pair(stem))
    return {fmt::format("{} is one file of a pair; the path without its ending is needed", prefix),
            fmt::format("write {}: both {}.bin and {}.idx are read", stem, stem, stem)};
  if (is_text_file(prefix) && fs::exists(prefix, ignored)) {
    const std::string stem = fs::path(prefix).replace_extension().string();
    return {
        fmt::format("{} is text; training reads tokens, a .bin and an .idx", prefix),
        fmt::format("first run `mtrain data build --input {} --output {} --tokenizer {}`{}; then "
                    "write {}",
                    prefix, stem, tokenizer,
                    tokenizer == "byte" ? ", or with the model's own tokenizer.json" : "", stem)};
  }
  const std::string missing = prefix + (fs::exists(prefix + ".bin", ignored) ? ".idx" : ".bin");
  std::string reason = fmt::format("there is no file {}", missing);
  // Recipes are often moved to other folders, but relative paths start at the shell's.
  if (fs::path(prefix).is_relative())
    reason += fmt::format(" in {}, the folder where the program was started",
                          fs::current_path(ignored).string());
  if (fs::is_directory(prefix, ignored)) {
    const std::vector<std::string> inside = pairs_in(prefix);
    return {fmt::format("{} is a folder; the path of a pair without its ending is needed", prefix),
            inside.empty() ? kMake : fmt::format("write {}", fmt::join(inside, " or "))};
  }
  std::string inner = prefix;
  while (inner.starts_with("../") || inner.starts_with("./")) inner.erase(0, inner.find('/') + 1);
  if (inner != prefix && has_pair(inner)) return {reason, fmt::format("did you mean {}?", inner)};
  const fs::path folder = fs::path(prefix).parent_path();
  const std::string meant = nearest(prefix, pairs_in(folder.empty() ? fs::path(".") : folder));
  return {reason, meant.empty() ? kMake : fmt::format("did you mean {}?", meant)};
}

void check_prefixes(const char* field, const std::vector<std::string>& prefixes, const Recipe& r,
                    Diagnostics& diagnostics) {
  const std::string tokenizer = r.tokenizer.path.value_or("byte");
  for (const std::string& prefix : prefixes) {
    if (has_pair(prefix)) continue;
    DataFault fault = data_fault(prefix, tokenizer);
    refuse({field}, std::move(fault.reason), std::move(fault.hint), diagnostics);
  }
}

}  // namespace

void check_files(const Recipe& r, Diagnostics& diagnostics) {
  check_prefixes("dataset.train", r.dataset.train, r, diagnostics);
  check_prefixes("dataset.validation", r.dataset.validation, r, diagnostics);
  if (r.tokenizer.type != recipe::TokenizerType::huggingface || !r.tokenizer.path) return;
  std::error_code ignored;
  if (const auto problem = hub_problem(*r.tokenizer.path)) {
    // A tokenizer that is the model's would only repeat what is wrong with model.from.
    if (r.given("tokenizer.path") || r.tokenizer.path != r.model.from)
      diagnostics.add("tokenizer.path", problem->message, problem->hint);
  } else {
    diagnostics.require(std::filesystem::exists(hub_model_folder(*r.tokenizer.path), ignored),
                        {"tokenizer.path"}, fmt::format("{} does not exist", *r.tokenizer.path),
                        "give the tokenizer.json of the model, or the folder that holds it");
  }
}

}  // namespace mtrain::plan
