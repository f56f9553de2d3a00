#include "storage/new_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

// Returns a path whose last part is a name: "out" of "out/".
fs::path without_slash(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

RunError cannot(const char* verb, const fs::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  return RunError(fmt::format("cannot {} {}: {}", verb, path.string(), std::strerror(error)),
                  full ? "free some space or choose another folder" : "");
}

// Removes the temporary folders of `final_path` that dead processes of this host have left.
void remove_stale_folders(const fs::path& final_path) {
  const std::string begin =
                        fmt::format("{}{}", final_path.filename().string(), NewFolder::kTemporary),
                    end = "-" + host_name();
  std::vector<fs::path> stale;
  std::error_code error;
  for (fs::directory_iterator it(folder_of(final_path), error), last; !error && it != last;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(end)) continue;
    const int64_t pid = std::atoll(name.c_str() + begin.size());
    if (pid > 0 && pid != ::getpid() && !process_lives(pid)) stale.push_back(it->path());
  }
  for (const fs::path& folder : stale) {
    fs::remove_all(folder, error);
    log::warn(error ? fmt::format("cannot remove {}, which a killed process left: {}",
                                  folder.string(), error.message())
                    : fmt::format("removed {}, which a killed process left", folder.string()));
  }
}

}  // namespace

void make_folders(const fs::path& folder) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path at = folder; !fs::exists(at, error) && at != folder_of(at); at = folder_of(at))
    missing.push_back(at);
  fs::create_directories(folder, error);
  if (error) throw cannot("create", folder, error.value());
  for (const fs::path& made : missing) sync_directory(folder_of(made));
}

void require_absent(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::exists(status) || (fs::is_directory(status) && fs::is_empty(path, error) && !error))
    return;
  throw UserError(fmt::format("{} exists already", path.string()), "give the name of a new folder");
}

NewFolder::NewFolder(const fs::path& final_path)
    : final_(without_slash(final_path)),
      path_(fmt::format("{}{}{}-{}", final_.string(), kTemporary, ::getpid(), host_name())) {
  require_absent(final_);
  make_folders(folder_of(final_));
  remove_stale_folders(final_);  // first, since their space may be needed
  std::error_code error;
  fs::remove_all(path_, error);  // left by an earlier process with this id
  // Files that cannot be removed must not get the new folder's name.
  const bool created = fs::create_directory(path_, error);
  if (error || !created) throw cannot("create", path_, error ? error.value() : EEXIST);
}

NewFolder::~NewFolder() {
  std::error_code error;
  if (!committed_) fs::remove_all(path_, error);
  if (error) log::warn(fmt::format("cannot remove {}: {}", path_.string(), error.message()));
}

void NewFolder::commit() {
  MT_CHECK(!committed_, "commit() called twice");
  sync_tree(path_);
  // Renaming a folder replaces only an empty folder.
  if (std::rename(path_.c_str(), final_.c_str()) != 0) throw cannot("make", final_, errno);
  committed_ = true;
  sync_directory(folder_of(final_));
}

}  // namespace mtrain::storage
