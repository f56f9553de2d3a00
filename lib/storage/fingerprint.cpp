#include "storage/fingerprint.h"

#include <algorithm>
#include <map>
#include <vector>

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

// Returns a hash of blocks of the tensor's data, the first and the last ones among them; of all of
// a small tensor.
std::string blocks_content(const SafetensorsReader& file, const StoredTensor& t, int64_t blocks) {
  constexpr int64_t kBlock = 4096;
  ContentHash hash;
  std::string bytes;
  const auto add = [&](int64_t first, int64_t count) {
    bytes.resize(size_t(count));
    file.read_bytes(t.name, first, count, bytes.data());
    hash.add(bytes);
  };
  if (t.bytes <= blocks * kBlock) {
    add(0, t.bytes);
    return hash.hex();
  }
  for (int64_t i = 0; i < blocks; ++i) {
    const double share = double(i) / double(blocks - 1);
    add(int64_t(share * double(t.bytes - kBlock)), kBlock);
  }
  return hash.hex();
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
  constexpr int64_t kAllBlocks = 4096, kMost = 16;
  std::map<std::string, std::string> by_name;
  int64_t tensors = 0;
  for (const SafetensorsReader* file : files) tensors += int64_t(file->tensors().size());
  const int64_t blocks = std::clamp<int64_t>(kAllBlocks / std::max<int64_t>(tensors, 1), 2, kMost);
  for (const SafetensorsReader* file : files) {
    std::vector<const StoredTensor*> in_order;
    for (const StoredTensor& t : file->tensors()) in_order.push_back(&t);
    std::ranges::sort(in_order, {}, &StoredTensor::begin);
    for (const StoredTensor* t : in_order)
      by_name[t->name] = fmt::format("{} [{}] {}", t->type, fmt::join(t->shape, ", "),
                                     blocks_content(*file, *t, blocks));
  }
  ContentHash hash;
  for (const auto& [name, content] : by_name) hash.add(fmt::format("{} {}\n", name, content));
  return hash.hex();
}

}  // namespace mtrain::storage
