#include "storage/checkpoint_tensors.h"

#include <system_error>

#include "storage/fingerprint.h"
#include "storage/shard_reader.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

// Format 1 has one file for each set, with full tensors.
class SingleFile : public CheckpointTensors {
 public:
  explicit SingleFile(const fs::path& path) : file_(path) {
    for (const StoredTensor& t : file_.tensors())
      entries_.push_back({t.name, std::string(t.type), t.dtype});
  }

  const std::vector<Entry>& entries() const override { return entries_; }
  const fs::path& path() const override { return file_.path(); }
  const Metadata& metadata() const override { return file_.metadata(); }
  std::string fingerprint() const override { return weights_fingerprint({&file_}); }
  bool contains(std::string_view name) const override { return file_.contains(name); }
  Shape shape(std::string_view name) const override { return file_.shape(name); }
  std::string origin(std::string_view name) const override { return file_.origin(name); }
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override {
    file_.read(name, first, count, values);
  }

 private:
  const SafetensorsReader file_;
  std::vector<Entry> entries_;
};

}  // namespace

std::unique_ptr<CheckpointTensors> open_checkpoint_tensors(const fs::path& folder, TensorSet set) {
  if (manifest_path(folder).filename() == kIndexJson)
    return std::make_unique<ShardReader>(folder, set);
  return std::make_unique<SingleFile>(
      folder / (set == TensorSet::weights ? "model.safetensors" : "optimizer.safetensors"));
}

}  // namespace mtrain::storage
