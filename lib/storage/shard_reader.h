// Reads the tensors of a checkpoint of format 2, whose pieces are in the files of several ranks.
#pragma once
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "storage/checkpoint_tensors.h"
#include "storage/read_ahead.h"

namespace mtrain::storage {

// Opens files when they are needed, and keeps those of a few rows of a matrix open. Reads only the
// blocks that meet the elements that are asked for, and those of expect() ahead.
class ShardReader : public CheckpointTensors {
 public:
  ShardReader(std::filesystem::path folder, TensorSet set, ReadOptions options = {});

  const std::vector<Entry>& entries() const override { return entries_; }
  const std::filesystem::path& path() const override { return path_; }
  const Metadata& metadata() const override;  // of the file that has the first tensor
  std::string fingerprint() const override;
  bool contains(std::string_view name) const override;
  Shape shape(std::string_view name) const override { return tensor(name).shape; }
  std::string origin(std::string_view name) const override;
  void expect(std::vector<ExpectedRun> runs) const override;
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override;

  // Returns how many blocks were read from files so far.
  int64_t blocks_read() const { return cache_->blocks_read(); }

 private:
  using File = std::shared_ptr<const SafetensorsReader>;
  // A file that is open, or that a thread opens.
  struct OpenFile {
    std::mutex opening;
    File file;
  };
  // The pieces of a tensor, by their first element.
  struct SortedPieces {
    const PiecedTensor* tensor;
    std::vector<const Piece*> pieces;
    std::vector<int64_t> ends;  // the largest end of this piece and those before it
  };
  // Elements [begin, end) of a piece, counted in the piece.
  struct Part {
    const Piece* piece;
    int64_t begin, end;
  };
  // Walks through the runs of expect(), and lists the blocks that they meet.
  class Blocks;

  const PiecedTensor& tensor(std::string_view name) const;
  std::shared_ptr<const SortedPieces> sorted_pieces(std::string_view name) const;
  // Returns the parts of pieces that have elements [first, first + count).
  static std::vector<Part> parts_of(const SortedPieces& sorted, int64_t first, int64_t count);
  void require_once(std::string_view name, const std::vector<Part>& parts, int64_t first,
                    int64_t count) const;
  File file(int32_t number) const;
  // Returns the tensor of a file that the piece is.
  const StoredTensor& stored(const SafetensorsReader& file, std::string_view name,
                             const PiecedTensor& tensor, const Piece& piece) const;
  void read_part(std::string_view name, const PiecedTensor& tensor, const Part& part, int64_t first,
                 float* values) const;

  std::filesystem::path folder_, path_;
  TensorSet set_;
  Manifest manifest_;
  CheckpointIndex index_;
  std::vector<Entry> entries_;
  mutable std::optional<Metadata> metadata_;  // once it was asked for
  const int io_threads_;
  const size_t open_files_;  // that are kept open
  std::shared_ptr<BlockCache> cache_;
  mutable std::mutex mutex_;
  // The most recently used ones, the last one used in front.
  mutable std::list<std::pair<int32_t, std::shared_ptr<OpenFile>>> open_;
  mutable std::list<std::pair<std::string, std::shared_ptr<const SortedPieces>>> known_;
  mutable std::atomic<ReadAhead*> needed_{nullptr};  // gets the blocks that are needed; or null
  mutable std::unique_ptr<ReadAhead> ahead_;         // last: its threads use the members above
};

}  // namespace mtrain::storage
