// Token files of NanoGPT (https://github.com/KellerJordan/modded-nanogpt): 256 32-bit integers,
// little endian, then the ids. The integers are 278895051 (or 20240520), version 1, the number of
// ids and, unless the first is 20240520, the bytes of an id: 2 or 4.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace mtrain::data {

// Returns the files that the patterns of the shell match, in order. Throws UserError, which begins
// with `name`, for one that matches none.
std::vector<std::filesystem::path> token_files(const std::vector<std::string>& patterns,
                                               const std::string& name);

// Writes the ids of the files as a pair of .bin and .idx, one document for each file. Throws
// UserError for a file of another form.
void convert_token_files(const std::vector<std::filesystem::path>& files,
                         const std::filesystem::path& prefix);

}  // namespace mtrain::data
