// A folder that appears under its name whole or not at all.
#pragma once
#include <filesystem>

namespace mtrain::storage {

// Files are written into path(), a folder beside the new one; commit() syncs them and renames it.
// Without commit() it is removed. What killed processes of this host left of the same folder is
// removed at the start, with a warning.
class NewFolder {
 public:
  // Throws UserError if something is there already; an empty folder is replaced. Throws RunError if
  // the folder beside it cannot be made.
  explicit NewFolder(const std::filesystem::path& final_path);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // Makes the folder and all files in it durable under the final name. Throws RunError, and leaves
  // what is there, if something has come to that name since, or the disk fails.
  void commit();

 private:
  std::filesystem::path final_, path_;
  bool committed_ = false;
};

// Makes the folder and those above it that are missing, and makes their names durable. Throws
// RunError.
void make_folders(const std::filesystem::path& folder);

// Throws UserError unless nothing is at `path`, or an empty folder.
void require_absent(const std::filesystem::path& path);

}  // namespace mtrain::storage
