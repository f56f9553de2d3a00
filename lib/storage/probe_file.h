// Shows that several hosts see the same folder.
#pragma once
#include <chrono>
#include <filesystem>
#include <string>

namespace mtrain::storage {

// A file with a random name and content, which exists while the object lives.
class ProbeFile {
 public:
  // Removes old probes that killed processes have left. Throws RunError.
  explicit ProbeFile(const std::filesystem::path& folder);
  ~ProbeFile();
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

  const std::string& name() const { return name_; }
  const std::string& content() const { return content_; }

 private:
  std::filesystem::path folder_;
  std::string name_, content_;
};

// Returns whether the file in the folder has this content. Network file systems show new files
// late, so it tries again until `patience` is over.
bool sees_probe(const std::filesystem::path& folder, const std::string& name,
                const std::string& content, std::chrono::milliseconds patience);

}  // namespace mtrain::storage
