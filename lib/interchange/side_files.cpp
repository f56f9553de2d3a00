#include "interchange/side_files.h"

#include <fmt/core.h>

#include "base/error.h"

namespace mtrain::interchange {

namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"generation_config.json",
                                  "tokenizer.json",
                                  "tokenizer_config.json",
                                  "tokenizer.model",
                                  "special_tokens_map.json",
                                  "added_tokens.json",
                                  "vocab.json",
                                  "merges.txt",
                                  "chat_template.jinja",
                                  "chat_template.json"};

}  // namespace

std::vector<std::string> copy_side_files(const fs::path& from, const fs::path& to) {
  std::vector<std::string> copied;
  std::error_code error;
  for (const char* name : kNames) {
    if (!fs::is_regular_file(from / name, error) || fs::exists(to / name, error)) continue;
    if (!fs::copy_file(from / name, to / name, error))
      throw RunError(fmt::format("{} could not be copied to {}: {}", (from / name).string(),
                                 to.string(), error.message()));
    copied.emplace_back(name);
  }
  return copied;
}

}  // namespace mtrain::interchange
