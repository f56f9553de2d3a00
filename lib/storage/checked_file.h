// A file whose bytes are checked before they are returned, if there are checksums of it.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "base/file.h"
#include "storage/block_cache.h"
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
  // Blocks are kept in `cache`, where this file has `number`.
  CheckedFile(const std::filesystem::path& path, const std::string& sums,
              std::shared_ptr<BlockCache> cache, int64_t number);

  const std::filesystem::path& path() const { return file_.path(); }
  int64_t size() const { return file_.size(); }
  // Returns a hash of the full content; empty for a file without checksums.
  const std::string& content() const { return content_; }
  // Reads like RandomAccessFile::read(). Throws DamagedFile, which names the block of 4 MiB, if the
  // bytes differ from those that were saved.
  void read(int64_t at, size_t bytes, void* to, std::string_view what,
            BlockCache::Use use = BlockCache::Use::now) const;

  // Reads a block before read() needs it. The file must have checksums.
  BlockCache::Hold read_ahead(int64_t block) const;
  bool has_sums() const { return sums_.has_value(); }

 private:
  size_t fill(int64_t block, std::byte* memory, std::string_view what) const;

  RandomAccessFile file_;
  std::optional<FileSums> sums_;
  std::string content_;
  // Readers copy from its blocks: the bytes that they get are those that were checked.
  std::shared_ptr<BlockCache> cache_;
  int64_t number_ = 0;
};

}  // namespace mtrain::storage
