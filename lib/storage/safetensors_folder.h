// The weights in a Hugging Face folder: one model.safetensors, or shards and
// model.safetensors.index.json, which maps each tensor to its shard
// (https://huggingface.co/docs/transformers/main/big_models).
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "storage/safetensors.h"

namespace mtrain::storage {

inline constexpr const char *kModelFile = "model.safetensors",
                            *kIndexFile = "model.safetensors.index.json";

// The constructor reads the headers of all files. It throws UserError if a shard is absent, if the
// index does not name a shard, or if index and shards disagree about a tensor; it lists all
// disagreements. Folders of adapters, and of weights in other formats than safetensors, are
// refused; the error names a conversion. Several threads may read at the same time.
class SafetensorsFolder : public ValueSource {
 public:
  explicit SafetensorsFolder(std::filesystem::path folder);

  const std::filesystem::path& path() const { return path_; }
  // All tensors, file by file, in the order of their data.
  const std::vector<const StoredTensor*>& tensors() const { return tensors_; }
  // The files that hold the weights, by name.
  const std::vector<std::unique_ptr<SafetensorsReader>>& files() const { return files_; }

  bool contains(std::string_view name) const override { return file_of_.contains(name); }
  // Throws UserError, which suggests the nearest name, if there is no such tensor.
  const StoredTensor& info(std::string_view name) const { return file(name).info(name); }
  Shape shape(std::string_view name) const override { return file(name).shape(name); }
  std::string origin(std::string_view name) const override { return file(name).origin(name); }
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override {
    file(name).read(name, first, count, values);
  }
  // Copies bytes [first, first + bytes) of the tensor's data, of any type.
  void read_bytes(std::string_view name, int64_t first, int64_t bytes, void* to) const {
    file(name).read_bytes(name, first, bytes, to);
  }

  // Returns how many bytes of data were read so far, without headers.
  int64_t bytes_read() const;

 private:
  const SafetensorsReader& file(std::string_view name) const;
  void open_single();
  void open_shards();

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  std::vector<const StoredTensor*> tensors_;
  std::map<std::string, const SafetensorsReader*, std::less<>> file_of_;
};

// Parses the text of model.safetensors.index.json, and returns the file of each tensor. Throws
// UserError, which names `path`.
std::map<std::string, std::string> parse_safetensors_index(const std::filesystem::path& path,
                                                           std::string_view text);

}  // namespace mtrain::storage
