#include "storage/fingerprint.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/content_hash.h"
#include "base/hash.h"

namespace mtrain::storage {

namespace {

constexpr int64_t kEnd = 256;  // bytes at each end of a tensor that are hashed

// Adds the first and the last bytes of the tensor's data; all of a small one.
void add_ends(const SafetensorsReader& file, const StoredTensor& t, Fnv1a& hash) {
  std::string bytes(size_t(std::min(2 * kEnd, t.bytes)), '\0');
  const auto size = int64_t(bytes.size()), half = size / 2;
  if (t.bytes <= size) {
    file.read_bytes(t.name, 0, size, bytes.data());
  } else {
    file.read_bytes(t.name, 0, half, bytes.data());
    file.read_bytes(t.name, t.bytes - half, half, bytes.data() + half);
  }
  hash.add(bytes);
}

// Adds blocks of the tensor's data, the first and the last ones among them; all of a small tensor.
void add_blocks(const SafetensorsReader& file, const StoredTensor& t, ContentHash& hash) {
  constexpr int64_t kBlocks = 16, kBlock = 4096;
  std::string bytes;
  const auto add = [&](int64_t first, int64_t count) {
    bytes.resize(size_t(count));
    file.read_bytes(t.name, first, count, bytes.data());
    hash.add(bytes);
  };
  if (t.bytes <= kBlocks * kBlock) return add(0, t.bytes);
  for (int64_t i = 0; i < kBlocks; ++i) {
    const double share = double(i) / double(kBlocks - 1);
    add(int64_t(share * double(t.bytes - kBlock)), kBlock);
  }
}

}  // namespace

std::string weights_fingerprint(const std::vector<const SafetensorsReader*>& files) {
  Fnv1a headers, ends;
  int64_t sum = 0;
  for (const SafetensorsReader* file : files) {
    headers.add(file->path().filename().string());
    ends.add(file->content());
    for (const StoredTensor& t : file->tensors()) {
      headers.add(t.name).add(t.type).add(uint64_t(t.begin)).add(uint64_t(t.shape.size()));
      for (const int64_t dim : t.shape) headers.add(uint64_t(dim));
      sum += t.bytes;
      if (file->content().empty()) add_ends(*file, t, ends);
    }
  }
  return fmt::format("{} file{} with {} bytes (headers hash to {:016x}, ends to {:016x})",
                     files.size(), files.size() == 1 ? "" : "s", sum, headers.value(),
                     ends.value());
}

std::string tensors_content(const std::vector<const SafetensorsReader*>& files) {
  std::map<std::string, std::pair<const SafetensorsReader*, const StoredTensor*>> by_name;
  for (const SafetensorsReader* file : files)
    for (const StoredTensor& t : file->tensors()) by_name[t.name] = {file, &t};
  ContentHash hash;
  for (const auto& [name, at] : by_name) {
    hash.add(fmt::format("{} {} [{}]\n", name, at.second->type, fmt::join(at.second->shape, ", ")));
    add_blocks(*at.first, *at.second, hash);
  }
  return hash.hex();
}

}  // namespace mtrain::storage
