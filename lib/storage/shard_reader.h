// Reads the tensors of a checkpoint of format 2, whose pieces are in the files of several ranks.
#pragma once
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "storage/checkpoint_tensors.h"

namespace mtrain::storage {

// Opens files when they are needed, and keeps a few of them open. Reads only the blocks that meet
// the elements that are asked for.
class ShardReader : public CheckpointTensors {
 public:
  ShardReader(std::filesystem::path folder, TensorSet set);

  const std::vector<Entry>& entries() const override { return entries_; }
  const std::filesystem::path& path() const override { return path_; }
  const Metadata& metadata() const override;  // of the file that has the first tensor
  std::string fingerprint() const override;
  bool contains(std::string_view name) const override;
  Shape shape(std::string_view name) const override { return tensor(name).shape; }
  std::string origin(std::string_view name) const override;
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override;

 private:
  // Elements [first, first + count) of a tensor, which are in piece `piece` from its element
  // `in_piece` on.
  struct Range {
    int64_t first, count, in_piece;
    size_t piece;
  };
  // All ranges of a tensor, by their first element.
  using Ranges = std::vector<Range>;
  using File = std::shared_ptr<const SafetensorsReader>;

  const PiecedTensor& tensor(std::string_view name) const;
  std::shared_ptr<const Ranges> ranges(std::string_view name) const;
  File file(int32_t number) const;

  std::filesystem::path folder_, path_;
  TensorSet set_;
  Manifest manifest_;
  CheckpointIndex index_;
  std::vector<Entry> entries_;
  mutable std::optional<Metadata> metadata_;  // once it was asked for
  mutable std::mutex mutex_;
  // The most recently used ones, the last one used in front.
  mutable std::list<std::pair<int32_t, File>> open_;
  mutable std::list<std::pair<std::string, std::shared_ptr<const Ranges>>> known_;
};

}  // namespace mtrain::storage
