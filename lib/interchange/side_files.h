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

}  // namespace mtrain::interchange
