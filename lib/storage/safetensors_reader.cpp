#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/strings.h"
#include "storage/safetensors.h"
#include "storage/safetensors_header.h"

namespace mtrain::storage {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr int64_t kReadAtOnce = 128 << 10;  // read at a time for a conversion; fits in caches

std::string tensor_named(std::string_view name) { return fmt::format("tensor `{}`", name); }

SafetensorsHeader header_of(const CheckedFile& file) {
  const auto fail = [&](const std::string& what) { return unsound_safetensors(file.path(), what); };
  const int64_t rest = file.size() - kSafetensorsLengthBytes;
  if (rest < 0)
    throw fail(fmt::format("it has {} bytes, fewer than the {} of a header length", file.size(),
                           kSafetensorsLengthBytes));
  uint64_t length = 0;
  // No element is needed yet (BlockCache).
  constexpr auto kAhead = BlockCache::Use::ahead;
  file.read(0, sizeof(length), &length, "the header", kAhead);
  if (length > uint64_t(kLargestSafetensorsHeader))
    throw fail(fmt::format("its header claims {} bytes; the format allows {}", length,
                           kLargestSafetensorsHeader));
  if (length > uint64_t(rest))
    throw fail(fmt::format("its header claims {} bytes, but only {} follow", length, rest));
  std::string text(length, '\0');
  file.read(kSafetensorsLengthBytes, text.size(), text.data(), "the header", kAhead);
  return parse_safetensors_header(file.path(), text, rest - int64_t(length));
}

template <class T>
void widen(const std::byte* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    T value;  // the file's data may be unaligned
    std::memcpy(&value, from + i * int64_t(sizeof(T)), sizeof(T));
    to[i] = float(value);
  }
}

}  // namespace

int64_t StoredTensor::count() const {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : file_(path) {
  read_header();
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path, const std::string& sums,
                                     std::shared_ptr<BlockCache> cache, int64_t number)
    : file_(path, sums, std::move(cache), number) {
  read_header();
}

void SafetensorsReader::read_header() {
  SafetensorsHeader header = header_of(file_);
  metadata_ = std::move(header.metadata);
  tensors_ = std::move(header.tensors);
  for (size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
}

const StoredTensor& SafetensorsReader::info(std::string_view name) const {
  if (const auto it = index_.find(name); it != index_.end()) return tensors_[it->second];
  std::vector<std::string> names;
  for (const auto& t : tensors_) names.push_back(t.name);
  const std::string close = nearest(name, names);
  throw UserError(fmt::format("{} has no {}", path().string(), tensor_named(name)),
                  close.empty() ? fmt::format("it has {} tensors with other names", names.size())
                                : fmt::format("did it mean `{}`?", close));
}

Shape SafetensorsReader::shape(std::string_view name) const {
  const std::vector<int64_t>& dims = info(name).shape;
  switch (dims.size()) {
    case 0: return {};
    case 1: return {dims[0]};
    case 2: return {dims[0], dims[1]};
    case 3: return {dims[0], dims[1], dims[2]};
    case 4: return {dims[0], dims[1], dims[2], dims[3]};
    default:
      throw UserError(fmt::format("{} has {} dimensions ({}); mtrain computes with at most 4",
                                  origin(name), dims.size(), fmt::join(dims, ", ")));
  }
}

std::string SafetensorsReader::origin(std::string_view name) const {
  return fmt::format("{}: {}", path().string(), tensor_named(name));
}

void SafetensorsReader::read_data(const StoredTensor& t, int64_t first, int64_t bytes,
                                  void* to) const {
  file_.read(t.begin + first, size_t(bytes), to, tensor_named(t.name));
  bytes_read_ += bytes;
}

void SafetensorsReader::read_bytes(std::string_view name, int64_t first, int64_t bytes,
                                   void* to) const {
  const StoredTensor& t = info(name);
  MT_CHECK(first >= 0 && bytes >= 0 && bytes <= t.bytes - first,
           "bytes {} + {} of {}, which has {}", first, bytes, name, t.bytes);
  read_data(t, first, bytes, to);
}

void SafetensorsReader::read(std::string_view name, int64_t first, int64_t count,
                             float* values) const {
  read(info(name), first, count, values);
}

void SafetensorsReader::read(const StoredTensor& t, int64_t first, int64_t count,
                             float* values) const {
  MT_CHECK(first >= 0 && count >= 0 && count <= t.count() - first, "elements {} + {} of {} of {}",
           first, count, t.count(), t.name);
  const auto convert = [&]<class T>() {
    constexpr int64_t kSize = sizeof(T), kPiece = kReadAtOnce / kSize;
    alignas(64) std::byte piece[kReadAtOnce];
    for (int64_t done = 0; done < count; done += kPiece) {
      const int64_t n = std::min(kPiece, count - done);
      read_data(t, (first + done) * kSize, n * kSize, piece);
      widen<T>(piece, n, values + done);
    }
  };
  if (t.dtype == DType::f32) return read_data(t, first * 4, count * 4, values);
  if (t.dtype == DType::bf16) return convert.operator()<bf16>();
  if (t.dtype == DType::f16) return convert.operator()<f16>();
  if (t.dtype == DType::f64) return convert.operator()<double>();
  throw UserError(
      fmt::format("{} has dtype {}, which mtrain does not compute with", origin(t.name), t.type),
      "convert it to F32, BF16 or F16; a quantized model must be dequantized first");
}

}  // namespace mtrain::storage
