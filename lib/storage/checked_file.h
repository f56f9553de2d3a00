// A file whose bytes are checked before they are returned, if there are checksums of it.
#pragma once
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/file.h"
#include "storage/file_sums.h"

namespace mtrain::storage {

// A file in the folder of a checkpoint is checked by its .sums file and the manifest. Other files
// are read without checks. Several threads may read at the same time.
class CheckedFile {
 public:
  // Throws UserError if the file cannot be opened, RunError if it is one of a checkpoint. Throws
  // DamagedFile if its manifest or checksums are damaged, or if its size differs.
  explicit CheckedFile(const std::filesystem::path& path);
  // The same with the content of the .sums file, which is not looked for; empty: without checks.
  CheckedFile(const std::filesystem::path& path, const std::string& sums);

  const std::filesystem::path& path() const { return file_.path(); }
  int64_t size() const { return file_.size(); }
  // Returns a hash of the full content; empty for a file without checksums.
  const std::string& content() const { return content_; }
  // Reads like RandomAccessFile::read(). Throws DamagedFile, which names the block of 4 MiB, if the
  // bytes differ from those that were saved.
  void read(int64_t at, size_t bytes, void* to, std::string_view what) const;

 private:
  // A block in memory. Readers copy from it: the bytes that they get are those that were checked.
  struct Block {
    int64_t index = 0;
    std::mutex reading;
    std::unique_ptr<std::byte[]> memory;  // of a full block
    size_t bytes = 0;                     // 0 until they are read and checked
    int readers = 0;                      // guarded by mutex_
  };
  // A reader of one block. While it lives, the block's memory is not reused for another block.
  class Reader;

  RandomAccessFile file_;
  std::optional<FileSums> sums_;
  std::string content_;
  mutable std::mutex mutex_;
  // The blocks that are in use and those used recently, the most recent in front.
  mutable std::list<Block> kept_;
};

}  // namespace mtrain::storage
