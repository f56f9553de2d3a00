// Copies the files of a Hugging Face folder other than config.json and weights: tokenizer, chat
// template and generation settings. They are copied byte for byte.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace mtrain::interchange {

// Copies these files from `from` to `to`, except those whose names `to` already has. Returns the
// names of the copied files. Throws RunError.
std::vector<std::string> copy_side_files(const std::filesystem::path& from,
                                         const std::filesystem::path& to);

// Copies the file of a tokenizer, which may have any name, to `to`/tokenizer.json. Returns that
// name, or nothing if there is no such file or `to` already has one. Throws RunError.
std::vector<std::string> copy_tokenizer(const std::filesystem::path& file,
                                        const std::filesystem::path& to);

}  // namespace mtrain::interchange
