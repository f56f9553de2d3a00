#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "base/error.h"
#include "base/hub_cache.h"
#include "base/json.h"
#include "base/regular_file.h"
#include "base/strings.h"

namespace mtrain::data {
namespace fs = std::filesystem;

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  const auto decoder = start_decoding();
  std::string text;
  for (int32_t id : ids) decoder->push(id, text);
  decoder->finish(text);
  return text;
}

std::vector<int32_t> begin_of_text(BeginOfText begin, const Tokenizer& tokenizer) {
  const auto prefix = tokenizer.text_prefix();
  if (begin == BeginOfText::none) return {};
  if (begin == BeginOfText::automatic || !prefix.empty()) return {prefix.begin(), prefix.end()};
  if (!tokenizer.bos())
    throw UserError(
        fmt::format("the tokenizer {} has no BOS token to begin a text with", tokenizer.name()),
        "give --bos none, or name bos_token in the tokenizer_config.json beside it");
  return {*tokenizer.bos()};
}

namespace {

// Throws an error about a path without a tokenizer.json, which may hold a tokenizer in another
// form.
[[noreturn]] void refuse_file(const fs::path& path) {
  const fs::path folder = path.parent_path();
  for (const char* other :
       {"tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json"})
    if (fs::exists(folder / other))
      throw UserError(
          fmt::format("no tokenizer at {}, but {}, which has another format", path.string(), other),
          fmt::format("python3 -c \"from transformers import AutoTokenizer as T; "
                      "T.from_pretrained('{0}').save_pretrained('{0}')\" writes tokenizer.json",
                      folder.empty() ? "." : folder.string()));
  const std::string name = path.string();
  const bool repository = !fs::exists(path) && !path.is_absolute() && name[0] != '.' &&
                          path.extension() != ".json" && path.extension() != ".model" &&
                          std::ranges::count(name, '/') <= 1;
  if (repository)
    throw UserError(
        fmt::format("{} is neither a file nor a folder, and nothing is downloaded", name),
        fmt::format("{}give \"byte\", a tokenizer.json or a folder that holds one. If it is a "
                    "model of the Hub, `hf download {}` fetches it",
                    nearest(name, {"byte"}).empty() ? "" : "did you mean byte? ", name));
  throw UserError(fmt::format("no tokenizer at {}", name),
                  hub_missing_files_hint(folder) +
                      "give \"byte\", a tokenizer.json or a folder that holds one");
}

std::shared_ptr<const Tokenizer> parse(const fs::path& path, const std::string& eod) {
  const fs::path config = path.parent_path() / "tokenizer_config.json";
  const bool has_config = path.filename() == "tokenizer.json" && fs::exists(config);
  return make_bpe_tokenizer(read_regular_file(path, kLargestJson), path.string(), eod,
                            has_config ? read_regular_file(config, kLargestJson) : "");
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& what, const std::string& eod) {
  if (what == "byte") {
    if (!eod.empty())
      throw UserError(fmt::format("the byte tokenizer has no token \"{}\"", eod),
                      "it ends documents with an id of its own");
    return make_byte_tokenizer();
  }
  if (const auto problem = hub_problem(what))
    throw UserError(problem->message,
                    "give \"byte\", a tokenizer.json or a folder that holds one; " + problem->hint);
  fs::path path = hub_model_folder(what);
  if (fs::is_directory(path)) path /= "tokenizer.json";
  if (!fs::exists(path) || path.extension() == ".model") refuse_file(path);
  // Ranks that are threads share it, and so do independent parts of a program.
  static std::mutex mutex;
  static std::shared_ptr<const Tokenizer> last;
  static std::string last_key;
  const auto stamp = [](const fs::path& p) {
    std::error_code absent;  // or not a file with a size, which parse() refuses
    const auto time = fs::last_write_time(p, absent).time_since_epoch().count();
    const auto size = fs::file_size(p, absent);
    return fmt::format("{} {}", absent ? 0 : time, absent ? 0 : size);
  };
  const std::string key =
      fmt::format("{}\n{}\n{}\n{}", fs::absolute(path).string(), eod, stamp(path),
                  stamp(path.parent_path() / "tokenizer_config.json"));
  std::lock_guard lock(mutex);
  if (!last || key != last_key) {
    last = parse(path, eod);
    last_key = key;
  }
  return last;
}

}  // namespace mtrain::data
