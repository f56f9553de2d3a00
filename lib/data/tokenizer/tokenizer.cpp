#include "data/tokenizer/tokenizer.h"

#include <filesystem>
#include <mutex>

#include "base/error.h"
#include "base/file.h"

namespace mtrain::data {
namespace fs = std::filesystem;

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  const auto decoder = start_decoding();
  std::string text;
  for (int32_t id : ids) decoder->push(id, text);
  decoder->finish(text);
  return text;
}

namespace {

// Explains a folder or a file that holds a tokenizer in another form.
[[noreturn]] void refuse(const fs::path& path) {
  const fs::path folder = path.parent_path();
  for (const char* other :
       {"tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json"})
    if (fs::exists(folder / other))
      throw UserError(
          fmt::format("no tokenizer at {}, but {} of another form", path.string(), other),
          fmt::format("python3 -c \"from transformers import AutoTokenizer as T; "
                      "T.from_pretrained('{0}').save_pretrained('{0}')\" writes tokenizer.json",
                      folder.empty() ? "." : folder.string()));
  throw UserError(fmt::format("no tokenizer at {}", path.string()),
                  "give \"byte\", a tokenizer.json or a folder that holds one");
}

std::shared_ptr<const Tokenizer> parse(const fs::path& path, const std::string& eod) {
  const fs::path config = path.parent_path() / "tokenizer_config.json";
  const bool has_config = path.filename() == "tokenizer.json" && fs::exists(config);
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return make_bpe_tokenizer({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                            path.string(), eod, has_config ? read_file(config) : "");
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& what, const std::string& eod) {
  if (what == "byte") {
    if (!eod.empty())
      throw UserError(fmt::format("the byte tokenizer has no token \"{}\"", eod),
                      "it ends documents with an id of its own");
    return make_byte_tokenizer();
  }
  fs::path path = what;
  if (fs::is_directory(path)) path /= "tokenizer.json";
  if (!fs::exists(path) || path.extension() == ".model") refuse(path);
  // Ranks that are threads, and parts of a program that do not know of each other, share it.
  static std::mutex mutex;
  static std::shared_ptr<const Tokenizer> last;
  static std::string last_key;
  const auto stamp = [](const fs::path& p) {
    std::error_code absent;
    const auto time = fs::last_write_time(p, absent).time_since_epoch().count();
    return fmt::format("{} {}", absent ? 0 : time, absent ? 0 : fs::file_size(p));
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
