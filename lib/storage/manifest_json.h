// What the two forms of a manifest share: manifest.json of format 1, index.json of format 2. Only
// lib/storage includes this header.
#pragma once
#include <filesystem>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

namespace mtrain::storage {

inline constexpr int kManifestFormat = 1, kIndexFormat = 2;
inline constexpr const char* kIndexNeeds = "0.1.0";  // the first version that reads kIndexFormat

// Returns the step, the files in the folder with their sizes, and the hashes of their .sums files;
// writes the missing .sums files. Hashes in `known` are not computed again.
nlohmann::json describe_files(const std::filesystem::path& folder, int64_t step,
                              const std::map<std::string, std::string>& known = {});

// Writes the manifest with its own checksum.
void write_with_checksum(const std::filesystem::path& path, nlohmann::json manifest);

// Throws RunError unless the manifest's text has the checksum that it names.
void check_own_checksum(const std::filesystem::path& file, const std::string& text);

}  // namespace mtrain::storage
