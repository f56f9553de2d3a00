// A folder that appears under its name completely or not at all.
#pragma once
#include <filesystem>
#include <string_view>

namespace mtrain::storage {

// Files are written into path(), a temporary folder beside the new one; commit() syncs them and
// renames it. Without commit() it is removed. The constructor removes temporary folders that killed
// processes of this host have left, with a warning.
class NewFolder {
 public:
  // Throws UserError if the path exists and is not an empty folder. Throws RunError if the
  // temporary folder cannot be made, or an earlier one of this name cannot be removed.
  explicit NewFolder(const std::filesystem::path& final_path);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // In the name of the temporary folder, after that of the new one.
  static constexpr std::string_view kTemporary = ".tmp-";

  // Makes the folder and all files in it durable under the final name. Throws RunError, and changes
  // nothing under that name, if another file has got the name since, or the disk fails.
  void commit();

 private:
  std::filesystem::path final_, path_;
  bool committed_ = false;
};

// Makes the folder and its missing parents, and makes their names durable. Throws RunError.
void make_folders(const std::filesystem::path& folder);

// Throws UserError unless `path` does not exist or is an empty folder.
void require_absent(const std::filesystem::path& path);

}  // namespace mtrain::storage
