// Writes a file in the blocks of its checksums. Threads hash and write full blocks while the caller
// fills the next one.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/aligned_bytes.h"
#include "base/file.h"

namespace mtrain::storage {

// How many requests of a rank a disk has at once. Disks and parallel file systems need several; the
// ranks of a host have threads each. One thread works as well.
inline constexpr int kIoThreads = 4;

// The file appears completely at commit(), or not at all. Full blocks go to the disk past the page
// cache, where the file system can. Holds at most `threads` + 2 blocks in memory.
class BlockWriter {
 public:
  // `bytes` is the size that the file will have. Throws RunError if the disk lacks the space.
  BlockWriter(const std::filesystem::path& path, int64_t bytes, int threads, bool hashes);
  ~BlockWriter();
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  // Returns memory for the next bytes of the file: the rest of a block. The caller fills a part of
  // it, and calls advance(). Waits for a free block. Throws RunError if a write has failed.
  std::span<std::byte> space();
  void advance(size_t bytes);
  void write(const void* data, size_t bytes);  // copies the bytes

  // Writes the rest, waits for all writes, syncs the file and gives it its name. The caller syncs
  // the folder. Throws RunError.
  void commit();
  // Returns the content of the .sums file. Call it after commit(), if there are hashes.
  std::string sums() const;

 private:
  struct Block {
    AlignedBytes memory;
    int64_t at = 0;
    size_t bytes = 0;
  };
  void hand_over();
  void store(const Block& block);
  void work();
  void stop();

  AtomicFile file_;
  const int64_t bytes_;
  const int threads_;
  const bool hashes_;
  int64_t written_ = 0;  // bytes that the caller has filled
  Block current_;
  int blocks_ = 0;  // that exist

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<AlignedBytes> free_;
  std::deque<Block> full_;
  std::vector<std::string> digests_;
  std::exception_ptr failure_;
  int writing_ = 0;  // blocks that threads write
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace mtrain::storage
