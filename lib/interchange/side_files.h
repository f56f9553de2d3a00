// The files of a Hugging Face folder beside configuration and weights: tokenizer, chat template,
// settings of generation. They are copied byte for byte.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace mtrain::interchange {

// Copies those that `from` has into `to`, unless `to` has a file of that name. Returns the names.
// Throws RunError.
std::vector<std::string> copy_side_files(const std::filesystem::path& from,
                                         const std::filesystem::path& to);

// Copies the file of a tokenizer, which may have any name, as `to`/tokenizer.json. Returns that
// name, or nothing if there is no such file. Throws RunError.
std::vector<std::string> copy_tokenizer(const std::filesystem::path& file,
                                        const std::filesystem::path& to);

}  // namespace mtrain::interchange
