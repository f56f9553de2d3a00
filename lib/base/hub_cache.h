// Finds models in the cache that programs of the Hugging Face Hub fill. Nothing is downloaded.
//
// The cache's layout is huggingface_hub's: models--<organization>--<name>/ has refs/<branch>, a
// file with the hash of a commit, and snapshots/<hash>/ with links to blobs/.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain {

// A model's name on the Hub: `organization/name`, or `organization/name@revision`, where a revision
// is a branch, a tag or the hash of a commit. A few old models have no organization.
struct HubName {
  std::string repository;  // organization/name, or name
  std::string revision;    // empty: main
};

// Returns the parts of a name of the Hub; nothing if the text cannot be one.
std::optional<HubName> parse_hub_name(std::string_view text);

// Returns the folders in which models are looked for, in this order: $HF_HUB_CACHE, $HF_HOME/hub,
// $XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub. Variables that are not set are left
// out.
std::vector<std::filesystem::path> hub_cache_folders();

// Returns `path` if it exists or is not a name of the Hub; else the model's folder in the first
// cache that has it, or `path` if none has.
std::filesystem::path hub_model_folder(const std::filesystem::path& path);

// What is wrong with a name of the Hub that hub_model_folder() cannot use.
struct HubProblem {
  std::string message, hint;
};

// Returns why the model of this name cannot be read: it is in no cache, lacks the revision, or some
// of its files were not downloaded. Returns nothing if `path` exists, names a model that has all
// its files, or is more likely a folder: one below an existing folder, or without organization.
std::optional<HubProblem> hub_problem(const std::filesystem::path& path);

// Returns "`hf download org/name` fetches the files that are missing; or " for a folder of a
// cache's snapshot; "" for any other. Errors about an absent file begin their hint with it.
std::string hub_missing_files_hint(const std::filesystem::path& folder);

// These do the same for data sets, in datasets--<organization>--<name>/.
std::filesystem::path hub_dataset_folder(const std::filesystem::path& path);
std::optional<HubProblem> hub_dataset_problem(const std::filesystem::path& path);
// Returns the hint with the command that fetches the data set; "" if `path` exists or is not a name
// of the Hub.
std::string hub_dataset_hint(const std::filesystem::path& path);

}  // namespace mtrain
