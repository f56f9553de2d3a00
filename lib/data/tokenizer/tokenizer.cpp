#include "data/tokenizer/tokenizer.h"

#include <filesystem>

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

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& what, const std::string& eod) {
  if (what == "byte") return make_byte_tokenizer();
  fs::path path = what;
  if (fs::is_directory(path)) path /= "tokenizer.json";
  if (!fs::exists(path))
    throw UserError(fmt::format("no tokenizer at {}", path.string()),
                    "give \"byte\", a tokenizer.json or a folder that holds one");
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return make_bpe_tokenizer({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                            path.string(), eod);
}

}  // namespace mtrain::data
