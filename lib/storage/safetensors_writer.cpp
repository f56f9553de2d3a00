#include <algorithm>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/math.h"
#include "storage/safetensors.h"
#include "storage/safetensors_dtype.h"
#include "storage/safetensors_header.h"

namespace mtrain::storage {
namespace {

std::string make_header(const std::vector<TensorInfo>& tensors, const Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string_view> names;
  int64_t at = 0;
  for (const TensorInfo& t : tensors) {
    MT_CHECK(t.name != "__metadata__" && names.insert(t.name).second, "tensor name `{}`", t.name);
    MT_CHECK(at % dtype_size(t.dtype) == 0,
             "`{}` of {} would be unaligned at byte {}: declare wider dtypes first", t.name,
             dtype_name(t.dtype), at);
    std::vector<int64_t> dims;
    for (int i = 0; i < t.shape.rank(); ++i) dims.push_back(t.shape[i]);
    header[t.name] = {{"dtype", safetensors_name(t.dtype)},
                      {"shape", dims},
                      {"data_offsets", {at, at + t.bytes()}}};
    at += t.bytes();
  }
  std::string text = header.dump();
  text.resize(size_t(round_up(int64_t(text.size()), 8)), ' ');
  return text;
}

int64_t file_bytes(const std::vector<TensorInfo>& tensors, const std::string& header) {
  int64_t bytes = kSafetensorsLengthBytes + int64_t(header.size());
  for (const TensorInfo& t : tensors) bytes += t.bytes();
  return bytes;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorInfo> tensors, const Metadata& metadata,
                                     Sums sums, int io_threads)
    : SafetensorsWriter(make_header(tensors, metadata), path, tensors, sums, io_threads) {}

SafetensorsWriter::SafetensorsWriter(const std::string& header, const std::filesystem::path& path,
                                     std::vector<TensorInfo> tensors, Sums sums, int io_threads)
    : path_(path),
      sums_(sums),
      tensors_(std::move(tensors)),
      file_(path, file_bytes(tensors_, header), io_threads, sums == Sums::beside) {
  const uint64_t length = header.size();
  file_.write(&length, sizeof(length));
  file_.write(header.data(), header.size());
}

void SafetensorsWriter::begin(std::string_view name, DType dtype) {
  MT_CHECK(missing_ == 0, "`{}` was written before the {} last elements of `{}`", name, missing_,
           tensors_[next_ - 1].name);
  MT_CHECK(next_ < tensors_.size(), "`{}` follows the last declared tensor", name);
  const TensorInfo& t = tensors_[next_++];
  MT_CHECK(t.name == name, "`{}` was written where `{}` was declared", name, t.name);
  MT_CHECK(t.dtype == dtype, "`{}`: {} written, {} declared", name, dtype_name(dtype),
           dtype_name(t.dtype));
}

void SafetensorsWriter::expect(std::string_view name, DType dtype, int64_t count) {
  begin(name, dtype);
  const TensorInfo& t = tensors_[next_ - 1];
  MT_CHECK(t.shape.count() == count, "`{}`: {} elements of {} written, {} of {} declared", name,
           count, dtype_name(dtype), t.shape.str(), dtype_name(t.dtype));
}

void SafetensorsWriter::write(std::string_view name, ConstSpan host) {
  expect(name, host.dtype, host.count);
  file_.write(host.data, size_t(host.bytes()));
}

void SafetensorsWriter::write(std::string_view name, const Tensor& tensor, Stream& stream,
                              const std::function<void()>& after_piece) {
  expect(name, tensor.dtype(), tensor.count());
  copy(tensor, stream, after_piece);
}

void SafetensorsWriter::expect_part(std::string_view name, DType dtype, int64_t count) {
  if (missing_ == 0) {
    begin(name, dtype);
    missing_ = tensors_[next_ - 1].shape.count();
  }
  const TensorInfo& t = tensors_[next_ - 1];
  MT_CHECK(t.name == name && t.dtype == dtype && count <= missing_,
           "{} elements of `{}` follow, where `{}` lacks {}", count, name, t.name, missing_);
  missing_ -= count;
}

void SafetensorsWriter::write_part(std::string_view name, const Tensor& part, Stream& stream,
                                   const std::function<void()>& after_piece) {
  expect_part(name, part.dtype(), part.count());
  copy(part, stream, after_piece);
}

void SafetensorsWriter::write_part(std::string_view name, ConstSpan host) {
  expect_part(name, host.dtype, host.count);
  file_.write(host.data, size_t(host.bytes()));
}

void SafetensorsWriter::copy(const Tensor& part, Stream& stream,
                             const std::function<void()>& after_piece) {
  const int64_t size = dtype_size(part.dtype()), piece = kCopiedAtOnce / size;
  // Tensors are aligned in the file, so a block ends between two elements.
  for (int64_t first = 0; first < part.count(); first += piece) {
    const int64_t end = std::min(first + piece, part.count());
    for (int64_t at = first, n = 0; at < end; at += n) {
      const std::span<std::byte> to = file_.space();
      n = std::min(end - at, int64_t(to.size()) / size);
      stream.download(to.data(), part.flat(at, Shape{n}));
      file_.advance(size_t(n * size));
    }
    if (after_piece) after_piece();
  }
}

void SafetensorsWriter::commit() {
  MT_CHECK(next_ == tensors_.size(), "`{}` was declared but not written", tensors_[next_].name);
  MT_CHECK(missing_ == 0, "{} elements of `{}` were not written", missing_,
           tensors_[next_ - 1].name);
  file_.commit();
  if (sums_ == Sums::beside) write_file_atomic(sums_path(path_), file_.sums(), Durable::content);
}

}  // namespace mtrain::storage
