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

fs::path single_file(const fs::path& folder, TensorSet set) {
  return folder / (set == TensorSet::weights ? "model.safetensors" : "optimizer.safetensors");
}

}  // namespace

std::unique_ptr<CheckpointTensors> open_checkpoint_tensors(const fs::path& folder, TensorSet set,
                                                           ReadOptions options) {
  if (manifest_path(folder).filename() == kIndexJson)
    return std::make_unique<ShardReader>(folder, set, options);
  return std::make_unique<SingleFile>(single_file(folder, set));
}

std::map<TensorSet, std::unique_ptr<CheckpointTensors>> open_all_checkpoint_tensors(
    const fs::path& folder) {
  std::map<TensorSet, std::unique_ptr<CheckpointTensors>> all;
  std::error_code error;
  const bool of_format_2 = manifest_path(folder).filename() == kIndexJson;
  for (const TensorSet set : {TensorSet::weights, TensorSet::optimizer}) {
    if (!of_format_2 && !fs::exists(single_file(folder, set), error)) continue;
    auto tensors = open_checkpoint_tensors(folder, set);
    if (!tensors->entries().empty()) all[set] = std::move(tensors);
  }
  return all;
}

}  // namespace mtrain::storage
