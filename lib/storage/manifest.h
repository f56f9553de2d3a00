// The manifest of a checkpoint's folder: the step, every file with its size, and a hash of every
// .sums file. The key `checksum` holds a hash of the manifest itself, computed with zeros instead
// of its digits. It is manifest.json in format 1, and index.json in format 2, which lists tensors
// as well (checkpoint_index.h). Folders of earlier versions have only sizes.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace mtrain::storage {

inline constexpr const char *kManifest = "manifest.json", *kIndexJson = "index.json";
// A readable copy of the recipe; state.json has the recipe itself. The copy may be changed or lost,
// so neither its size nor its content is checked.
inline constexpr const char* kRecipeCopy = "recipe.yaml";
// The folder in a checkpoint with its model for transformers. No manifest lists its files.
inline constexpr const char* kConsolidated = "consolidated";
// Whether the folder has this name, or is the temporary one of such a folder.
bool is_consolidated(std::string_view name);

struct Manifest {
  int64_t step = 0;
  std::map<std::string, int64_t> sizes;     // by the path within the folder
  bool has_sums = false;                    // false: saved by an earlier version
  std::map<std::string, std::string> sums;  // a hash of each file's .sums file
};

// Returns the path of the folder's manifest. If it is missing, its format is known by the other
// files.
std::filesystem::path manifest_path(const std::filesystem::path& folder);

// Whether the folder has a manifest that mtrain wrote, damaged or not. Other programs use the name,
// too.
bool has_own_manifest(const std::filesystem::path& folder);

// Reads the manifest in the folder. Throws RunError, which names the file, if it is missing or
// damaged.
Manifest read_manifest(const std::filesystem::path& folder);

// Writes the manifest of the files in the folder, and the missing .sums files. The caller makes
// them durable by sync_tree(). Throws RunError.
void write_manifest(const std::filesystem::path& folder, int64_t step);

// Throws RunError if the file `name` of the folder is a link, or is in one: a save makes none, and
// the files of another folder are not those of the checkpoint.
void require_no_link(const std::filesystem::path& folder, const std::string& name);

// Returns the checked content of the .sums file of `name`, a file in the folder. Throws RunError if
// it is missing or damaged.
std::string checked_sums(const std::filesystem::path& folder, const Manifest& manifest,
                         const std::string& name);

}  // namespace mtrain::storage
