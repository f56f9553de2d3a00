#include "base/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

#include <fmt/core.h>

namespace mtrain {

namespace fs = std::filesystem;

namespace {

bool is_hub_part(std::string_view part) {
  return !part.empty() && std::isalnum(static_cast<unsigned char>(part.front())) &&
         std::ranges::all_of(part, [](unsigned char c) {
           return std::isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

// A branch may have slashes, as refs/pr/1. It must not lead out of the cache.
bool is_revision(std::string_view text) {
  if (text.empty() || text.find("..") != std::string_view::npos) return false;
  return std::isalnum(static_cast<unsigned char>(text.front())) &&
         std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) || c == '.' || c == '_' || c == '-' || c == '/';
         });
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// What a repository of the Hub holds.
struct Kind {
  const char *folder, *noun, *option;
};
constexpr Kind kModel{"models--", "model", ""},
    kDataset{"datasets--", "data set", " --repo-type dataset"};

// Returns the repository's folder in a cache.
fs::path repository_folder(const fs::path& cache, const HubName& name, const Kind& kind) {
  std::string folder = kind.folder + name.repository;
  if (const size_t slash = folder.find('/'); slash != std::string::npos)
    folder.replace(slash, 1, "--");
  return cache / folder;
}

// Returns the first line of refs/<revision>, the hash of a commit.
std::string commit_of(const fs::path& repository, const std::string& revision) {
  std::ifstream file(repository / "refs" / revision);
  std::string commit;
  file >> commit;
  return is_hub_part(commit) ? commit : "";
}

// Returns the folder of the revision's files, or an empty path. A revision may also be a commit's
// hash, or its beginning of 7 digits or more.
fs::path snapshot_folder(const fs::path& repository, const HubName& name) {
  const fs::path snapshots = repository / "snapshots";
  const std::string revision = name.revision.empty() ? "main" : name.revision;
  if (const std::string commit = commit_of(repository, revision); !commit.empty())
    return is_there(snapshots / commit) ? snapshots / commit : fs::path();
  constexpr size_t kShortest = 7;
  if (!is_hub_part(revision) || revision.size() < kShortest) return {};
  fs::path found;
  std::error_code error;
  for (fs::directory_iterator it(snapshots, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().starts_with(revision)) {
      if (!found.empty()) return {};  // two commits begin alike
      found = it->path();
    }
  return found;
}

// Returns the first file of a snapshot whose link leads nowhere, or an empty path.
fs::path absent_file(const fs::path& snapshot) {
  std::error_code error;
  std::vector<fs::path> absent;
  for (fs::recursive_directory_iterator it(snapshot, error), end; !error && it != end;
       it.increment(error))
    if (!is_there(it->path())) absent.push_back(it->path());
  return absent.empty() ? fs::path() : std::ranges::min(absent);
}

std::string download_command(const HubName& name, const Kind& kind) {
  return fmt::format("`hf download {}{}{}`", name.repository, kind.option,
                     name.revision.empty() ? "" : " --revision " + name.revision);
}

}  // namespace

std::optional<HubName> parse_hub_name(std::string_view text) {
  HubName name;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    if (!is_revision(name.revision)) return {};
    text = text.substr(0, at);
  }
  if (text.ends_with(".json") || text.ends_with(".model")) return {};  // a file
  const size_t slash = text.find('/');
  if (!is_hub_part(text.substr(0, slash))) return {};
  if (slash != std::string_view::npos && !is_hub_part(text.substr(slash + 1))) return {};
  name.repository = text;
  return name;
}

std::vector<fs::path> hub_cache_folders() {
  std::vector<fs::path> folders;
  const auto add = [&](const char* variable, const char* below) {
    const char* value = std::getenv(variable);
    if (!value || !*value) return;
    const fs::path folder = *below ? fs::path(value) / below : fs::path(value);
    if (std::ranges::find(folders, folder) == folders.end()) folders.push_back(folder);
  };
  add("HF_HUB_CACHE", "");
  add("HF_HOME", "hub");
  add("XDG_CACHE_HOME", "huggingface/hub");
  add("HOME", ".cache/huggingface/hub");
  return folders;
}

namespace {

fs::path folder_of(const fs::path& path, const Kind& kind) {
  if (is_there(path)) return path;
  const std::optional<HubName> name = parse_hub_name(path.string());
  if (!name) return path;
  for (const fs::path& cache : hub_cache_folders())
    if (const fs::path found = snapshot_folder(repository_folder(cache, *name, kind), *name);
        !found.empty())
      return found;
  return path;
}

std::string hint_of(const HubName& name, const Kind& kind) {
  return fmt::format("nothing is downloaded here: {} fetches a {} of the Hub",
                     download_command(name, kind), kind.noun);
}

std::optional<HubProblem> problem_of(const fs::path& path, const Kind& kind) {
  if (is_there(path)) return {};
  const std::optional<HubName> name = parse_hub_name(path.string());
  if (!name) return {};
  const std::string hint = hint_of(*name, kind);
  if (const fs::path folder = folder_of(path, kind); folder != path) {
    const fs::path absent = absent_file(folder);
    if (absent.empty()) return {};
    return HubProblem{
        fmt::format("{} is incomplete: {} leads to no file", path.string(), absent.string()), hint};
  }
  std::string looked_in;
  for (const fs::path& cache : hub_cache_folders()) {
    looked_in += (looked_in.empty() ? "" : ", ") + cache.string();
    const fs::path repository = repository_folder(cache, *name, kind);
    if (is_there(repository))
      return HubProblem{
          fmt::format("{} has no revision {} of {}", repository.string(),
                      name->revision.empty() ? "main" : name->revision, name->repository),
          hint};
  }
  // More likely a folder that does not exist: one below an existing folder, or without
  // organization.
  if (is_there(*path.begin()) || name->repository.find('/') == std::string::npos) return {};
  return HubProblem{
      fmt::format("{} is neither a file nor a folder, and no {} in the caches of the Hugging Face "
                  "Hub ({})",
                  path.string(), kind.noun, looked_in.empty() ? "none is set" : looked_in),
      hint};
}

}  // namespace

fs::path hub_model_folder(const fs::path& path) { return folder_of(path, kModel); }
std::optional<HubProblem> hub_problem(const fs::path& path) { return problem_of(path, kModel); }
std::string hub_missing_files_hint(const fs::path& folder) {
  const fs::path at = folder.has_filename() ? folder : folder.parent_path(),
                 repository = at.parent_path().parent_path();
  HubName name{.repository = repository.filename().string()};
  if (at.parent_path().filename() != "snapshots" || !name.repository.starts_with(kModel.folder))
    return "";
  name.repository.erase(0, std::string_view(kModel.folder).size());
  if (const size_t dashes = name.repository.find("--"); dashes != std::string::npos)
    name.repository.replace(dashes, 2, "/");
  if (commit_of(repository, "main") != at.filename()) name.revision = at.filename().string();
  return fmt::format("{} fetches the files that are missing; or ", download_command(name, kModel));
}
fs::path hub_dataset_folder(const fs::path& path) { return folder_of(path, kDataset); }
std::optional<HubProblem> hub_dataset_problem(const fs::path& path) {
  return problem_of(path, kDataset);
}
std::string hub_dataset_hint(const fs::path& path) {
  const std::optional<HubName> name = is_there(path) ? std::nullopt : parse_hub_name(path.string());
  return name ? hint_of(*name, kDataset) : "";
}

}  // namespace mtrain
