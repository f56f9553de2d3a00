#include "storage/fingerprint.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/hash.h"

namespace mtrain::storage {

namespace {

constexpr int64_t kEnds = 4096;  // bytes of a tensor that are hashed

void add_bytes(const SafetensorsReader& file, const StoredTensor& t, int64_t first, Fnv1a& hash) {
  std::string bytes(size_t(std::min(kEnds, t.bytes)), '\0');
  file.read_bytes(t.name, first, int64_t(bytes.size()), bytes.data());
  hash.add(bytes);
}

}  // namespace

std::string weights_fingerprint(const std::vector<const SafetensorsReader*>& files) {
  Fnv1a headers, ends;
  int64_t sum = 0;
  for (const SafetensorsReader* file : files) {
    headers.add(file->path().filename().string());
    for (const StoredTensor& t : file->tensors()) {
      headers.add(t.name).add(t.type).add(uint64_t(t.begin)).add(uint64_t(t.shape.size()));
      for (const int64_t dim : t.shape) headers.add(uint64_t(dim));
      sum += t.bytes;
    }
    if (file->tensors().empty()) continue;
    add_bytes(*file, file->tensors().front(), 0, ends);
    const StoredTensor& last = file->tensors().back();
    add_bytes(*file, last, last.bytes - std::min(kEnds, last.bytes), ends);
  }
  return fmt::format("{} file{} with {} bytes (headers hash to {:016x}, ends to {:016x})",
                     files.size(), files.size() == 1 ? "" : "s", sum, headers.value(),
                     ends.value());
}

}  // namespace mtrain::storage
