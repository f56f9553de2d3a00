// The launcher's temporary folder.
#pragma once
#include <filesystem>

namespace mtrain::launch {

// A folder that this process owns while the object lives. It holds the ranks' error files.
class JobFolder {
 public:
  JobFolder();   // throws RunError
  ~JobFolder();  // removes it with its content
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int lock_;
};

// Removes the folders of this user's launchers that were killed.
void remove_stale_job_folders();

}  // namespace mtrain::launch
