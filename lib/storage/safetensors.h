// The safetensors format (https://huggingface.co/docs/safetensors): 8 bytes of header length
// (little endian), a JSON header, and the tensors' bytes without gaps. Files are read from a memory
// mapping and written as a stream.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/shape.h"
#include "base/span.h"
#include "tensor/tensor.h"

namespace mtrain::storage {

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;

  int64_t bytes() const { return shape.count() * dtype_size(dtype); }
};

using Metadata = std::map<std::string, std::string>;

// The constructor checks everything that the header says; a damaged file is a UserError that names
// the file and the tensor. The data itself is read when a caller touches a span.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(std::filesystem::path path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the file's order
  const Metadata& metadata() const { return metadata_; }

  bool contains(std::string_view name) const { return index_.find(name) != index_.end(); }
  // Throws UserError, which suggests the nearest name, if there is no such tensor.
  const TensorInfo& info(std::string_view name) const;

  // Returns the tensor's bytes, which are valid while the reader lives. They may be unaligned in
  // files of other programs: copy them instead of casting the pointer.
  ConstSpan span(std::string_view name) const;

 private:
  size_t find(std::string_view name) const;

  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> file_;
  std::vector<TensorInfo> tensors_;
  std::vector<int64_t> begins_;  // bytes from the file's start
  std::map<std::string, size_t, std::less<>> index_;
  Metadata metadata_;
};

// Takes the names, dtypes and shapes first, then the data in that order. The file appears whole at
// commit(), or not at all. Its data begins on a multiple of 8 bytes; wider dtypes must be declared
// before narrower ones, so that every tensor is aligned.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                    const Metadata& metadata = {});

  void write(std::string_view name, ConstSpan host);
  // Copies the tensor through the host piece by piece, and waits for the work on `stream`. Calls
  // `after_piece` after each piece of some MiB.
  void write(std::string_view name, const Tensor& tensor, Stream& stream,
             const std::function<void()>& after_piece = {});

  // Writes the next elements of a tensor, whose parts follow each other until it is whole.
  void write_part(std::string_view name, const Tensor& part, Stream& stream,
                  const std::function<void()>& after_piece = {});

  void commit();  // throws RunError (the disk is full, ...)

 private:
  void expect(std::string_view name, DType dtype, int64_t count);
  void copy(const Tensor& part, Stream& stream, const std::function<void()>& after_piece);
  // Begins the next tensor, which must have this name and type.
  void begin(std::string_view name, DType dtype);

  AtomicFile file_;
  std::vector<TensorInfo> tensors_;
  size_t next_ = 0;
  int64_t missing_ = 0;  // elements of the last tensor begun that write_part() has not been given
};

}  // namespace mtrain::storage
