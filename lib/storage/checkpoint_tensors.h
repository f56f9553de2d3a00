// The tensors of a checkpoint of any format. All users of saved weights and moments open them here.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage/checkpoint_index.h"
#include "storage/safetensors.h"
#include "storage/value_source.h"

namespace mtrain::storage {

// Several threads may read at the same time. Every byte is checked before it is used, if the
// checkpoint has checksums.
class CheckpointTensors : public ValueSource {
 public:
  struct Entry {
    std::string name;
    std::string type;            // the format's name of the element type: "BF16"
    std::optional<DType> dtype;  // the same type in mtrain; absent if there is none
  };
  virtual const std::vector<Entry>& entries() const = 0;
  // The file that lists the tensors, for messages.
  virtual const std::filesystem::path& path() const = 0;
  virtual const Metadata& metadata() const = 0;
  // Returns a text that is the same for the same files, as weights_fingerprint() does.
  virtual std::string fingerprint() const = 0;
};

// How a checkpoint of format 2 is read.
struct ReadOptions {
  int io_threads = kIoThreads;  // that read ahead, if the reader announces what it needs
  // Reads past the page cache. That is fastest, but each reader of the same blocks reads the disk.
  bool direct = false;
};

// Opens the weights, or the optimizer's state, of the checkpoint in `folder`, which may be of
// format 1 or 2. Throws UserError if the folder has none, RunError for damaged files; both name the
// file.
std::unique_ptr<CheckpointTensors> open_checkpoint_tensors(const std::filesystem::path& folder,
                                                           TensorSet set, ReadOptions options = {});
// Opens the weights, and the optimizer's state if the checkpoint has any: imported weights have
// none.
std::map<TensorSet, std::unique_ptr<CheckpointTensors>> open_all_checkpoint_tensors(
    const std::filesystem::path& folder);

}  // namespace mtrain::storage
