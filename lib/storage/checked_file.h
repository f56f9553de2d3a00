// A file of which no byte is handed out before it is checked, where there are checksums of it.
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
// are read as they are. Several threads may read at once.
class CheckedFile {
 public:
  // Throws UserError if the file cannot be opened, RunError if its manifest or checksums are
  // damaged or it has another size.
  explicit CheckedFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  int64_t size() const { return file_.size(); }
  // Returns a hash of the whole content; empty for a file without checksums.
  const std::string& content() const { return content_; }
  // Does as RandomAccessFile::read(). Bytes that were not saved so are a RunError, which names the
  // file and the block of 4 MiB.
  void read(int64_t at, size_t bytes, void* to, std::string_view what) const;

 private:
  // A block in memory: its bytes are copied from here, so that what was checked is what is used.
  struct Block {
    int64_t index = 0;
    std::mutex reading;
    std::unique_ptr<std::byte[]> memory;  // of a whole block
    size_t bytes = 0;                     // 0 until they are read and checked
    int readers = 0;                      // guarded by mutex_
  };
  // A reader of one block, which nobody uses for another one as long as it lives.
  class Reader;

  RandomAccessFile file_;
  std::optional<FileSums> sums_;
  std::string content_;
  mutable std::mutex mutex_;
  // The blocks that are read now and those used last, the newest in front.
  mutable std::list<Block> kept_;
};

}  // namespace mtrain::storage
