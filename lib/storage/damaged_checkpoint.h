// Confirms that a checkpoint is damaged, and sets it aside.
#pragma once
#include <filesystem>

#include "storage/checkpoint_dir.h"
#include "storage/file_sums.h"

namespace mtrain::storage {

// The newest checkpoint of a folder is damaged.
class DamagedCheckpoint : public RunError {
 public:
  DamagedCheckpoint(std::filesystem::path checkpoint, const DamagedFile& damage,
                    const std::string& message, const std::string& hint)
      : RunError(message, hint),
        checkpoint_(std::move(checkpoint)),
        file_(damage.file()),
        block_(damage.block()) {}
  const std::filesystem::path& checkpoint() const { return checkpoint_; }
  const std::filesystem::path& file() const { return file_; }
  int64_t block() const { return block_; }  // as in DamagedFile

 private:
  std::filesystem::path checkpoint_, file_;
  int64_t block_;
};

// Opens and checks the file again, past the caches of this host where the system allows it. `block`
// is the block whose checksum differed; -1 checks the checkpoint's small files and all sizes.
// Throws RunError if the file cannot be read.
bool is_damaged_again(const std::filesystem::path& file, int64_t block);

// Renames a damaged checkpoint to `<its name>.damaged`, or `.damaged-2`, ... if that exists.
// Nothing deletes or replaces such a folder. Returns the new path. Throws RunError.
std::filesystem::path set_aside_damaged(const std::filesystem::path& checkpoint);

// Whether the folder of checkpoints holds one that was set aside.
bool has_damaged(const std::filesystem::path& root);
bool is_set_aside(const std::string& name);  // whether this is the name of one

// Returns `<path><ending>`, or the first of `<path><ending>-2`, ... that does not exist.
std::filesystem::path free_name(const std::filesystem::path& path, const char* ending);

}  // namespace mtrain::storage
