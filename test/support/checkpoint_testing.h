// Reads all tensors of a checkpoint, and makes checkpoints of format 1 from those of format 2.
#pragma once
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "storage/checkpoint_tensors.h"
#include "test/support/damage_testing.h"

namespace mtrain {

using SavedTensors = std::map<std::string, std::vector<float>>;

inline SavedTensors saved_tensors(const std::filesystem::path& checkpoint, storage::TensorSet set) {
  const auto file = open_checkpoint_tensors(checkpoint, set);
  SavedTensors all;
  for (const auto& t : file->entries()) {
    std::vector<float>& values = all[t.name];
    values.resize(size_t(file->shape(t.name).count()));
    file->read(t.name, 0, int64_t(values.size()), values.data());
  }
  return all;
}

// Whether both checkpoints have the same tensors, bit by bit.
inline bool same_tensors(const std::filesystem::path& a, const std::filesystem::path& b,
                         storage::TensorSet set) {
  const SavedTensors one = saved_tensors(a, set), other = saved_tensors(b, set);
  return one.size() == other.size() &&
         std::equal(one.begin(), one.end(), other.begin(), [](const auto& x, const auto& y) {
           return x.first == y.first && x.second.size() == y.second.size() &&
                  std::memcmp(x.second.data(), y.second.data(), x.second.size() * 4) == 0;
         });
}

// Writes one set of a checkpoint as a file of full tensors in fp32.
inline void write_full_tensors(const std::filesystem::path& checkpoint, storage::TensorSet set,
                               const std::filesystem::path& path) {
  const auto from = open_checkpoint_tensors(checkpoint, set);
  std::vector<storage::TensorInfo> infos;
  for (const auto& t : from->entries()) infos.push_back({t.name, DType::f32, from->shape(t.name)});
  storage::SafetensorsWriter file(path, infos);
  for (const auto& [name, values] : saved_tensors(checkpoint, set))
    file.write(name, {values.data(), int64_t(values.size()), DType::f32});
  file.commit();
}

// Replaces the files of a checkpoint of format 2 by those of format 1.
inline void make_format_1(const std::filesystem::path& checkpoint, int64_t step) {
  using storage::TensorSet;
  const storage::CheckpointIndex index = read_index(checkpoint, storage::read_manifest(checkpoint));
  write_full_tensors(checkpoint, TensorSet::weights, checkpoint / "model.safetensors");
  write_full_tensors(checkpoint, TensorSet::optimizer, checkpoint / "optimizer.safetensors");
  for (const std::string& name : index.files) std::filesystem::remove(checkpoint / name);
  std::filesystem::remove(checkpoint / storage::kIndexJson);
  seal_again(checkpoint, step);
}

}  // namespace mtrain
