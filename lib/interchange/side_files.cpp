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

// Copies `file` to `to`/`name` if `file` exists and `to` has no such name. Adds it to `copied`.
void copy(const fs::path& file, const fs::path& to, const char* name,
          std::vector<std::string>& copied) {
  std::error_code error;
  if (!fs::is_regular_file(file, error) || fs::exists(to / name, error)) return;
  if (!fs::copy_file(file, to / name, error))
    throw RunError(
        fmt::format("{} could not be copied to {}: {}", file.string(), to.string(),
                    error.message()),
        error == std::errc::no_space_on_device ? "free some space or choose another folder" : "");
  copied.emplace_back(name);
}

}  // namespace

std::vector<std::string> copy_side_files(const fs::path& from, const fs::path& to) {
  std::vector<std::string> copied;
  for (const char* name : kNames) copy(from / name, to, name, copied);
  return copied;
}

std::vector<std::string> copy_tokenizer(const fs::path& file, const fs::path& to) {
  std::vector<std::string> copied;
  copy(file, to, "tokenizer.json", copied);
  return copied;
}

}  // namespace mtrain::interchange
