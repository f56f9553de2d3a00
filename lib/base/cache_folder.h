// The user's folder for results that programs can recompute.
#pragma once
#include <filesystem>
#include <optional>

namespace mtrain {

// Returns mtrain's folder in the user's cache folder: $XDG_CACHE_HOME/mtrain, else ~/.cache/mtrain;
// nothing if neither variable is set. The folder may not exist.
std::optional<std::filesystem::path> cache_folder();

}  // namespace mtrain
