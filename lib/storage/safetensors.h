// The safetensors format (https://huggingface.co/docs/safetensors): 8 bytes of header length
// (little endian), a JSON header, and the tensors' bytes without gaps. Files are read piece by
// piece and written as a stream.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/shape.h"
#include "base/span.h"
#include "storage/block_writer.h"
#include "storage/checked_file.h"
#include "storage/value_source.h"
#include "tensor/tensor.h"

namespace mtrain::storage {

// A tensor to write.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;

  int64_t bytes() const { return shape.count() * dtype_size(dtype); }
};

using Metadata = std::map<std::string, std::string>;

// A tensor as the header of a file describes it.
struct StoredTensor {
  std::string name;
  std::string_view type;         // the format's name of the element type: "BF16", "F8_E4M3", "I16"
  std::optional<DType> dtype;    // the same type in mtrain; absent if there is none
  std::vector<int64_t> shape;    // of any rank
  int64_t begin = 0, bytes = 0;  // bytes from the file's start, and of its data

  int64_t count() const;  // elements
};

// The constructor checks the full header. A damaged file is a UserError that names the file and the
// tensor. It accepts every type and rank of the format; read() refuses those that mtrain cannot
// compute with. A checkpoint's file is checked by its checksums (CheckedFile). Several threads may
// read at the same time.
class SafetensorsReader : public ValueSource {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);
  // The same with the content of the file's .sums file, and blocks in `cache` under `number`
  // (CheckedFile).
  SafetensorsReader(const std::filesystem::path& path, const std::string& sums,
                    std::shared_ptr<BlockCache> cache, int64_t number);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in the file's order
  const Metadata& metadata() const { return metadata_; }
  // Returns a hash of the file's content; empty if it has no checksums.
  const std::string& content() const { return file_.content(); }

  bool contains(std::string_view name) const override { return index_.contains(name); }
  // Throws UserError, which suggests the nearest name, if there is no such tensor.
  const StoredTensor& info(std::string_view name) const;
  Shape shape(std::string_view name) const override;
  std::string origin(std::string_view name) const override;
  // Accepts tensors of F32, BF16, F16 and F64; F64 is rounded to fp32.
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override;
  // The same for a tensor of this file that info() has returned.
  void read(const StoredTensor& tensor, int64_t first, int64_t count, float* values) const;
  // The file and its blocks.
  const CheckedFile& file() const { return file_; }
  // Copies bytes [first, first + bytes) of the tensor's data, of any type.
  void read_bytes(std::string_view name, int64_t first, int64_t bytes, void* to) const;

  // Returns how many bytes of data were read so far, without the header.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  void read_header();
  void read_data(const StoredTensor& tensor, int64_t first, int64_t bytes, void* to) const;

  CheckedFile file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  Metadata metadata_;
  mutable std::atomic<int64_t> bytes_read_{0};
};

// Takes the names, dtypes and shapes first, then the data in that order. The file appears
// completely at commit(), or not at all. Its data begins on a multiple of 8 bytes. To align every
// tensor, wider dtypes must be declared before narrower ones.
class SafetensorsWriter {
 public:
  enum class Sums { none, beside };
  static constexpr int64_t kCopiedAtOnce = 16ll << 20;  // bytes, from the device to the host

  // With Sums::beside, commit() also writes the checksums of the file, beside it. `io_threads`
  // write while the caller copies (BlockWriter).
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                    const Metadata& metadata = {}, Sums sums = Sums::none,
                    int io_threads = kIoThreads);

  void write(std::string_view name, ConstSpan host);
  // Copies the tensor through the host piece by piece, and waits for the work on `stream`. Calls
  // `after_piece` after each piece of 16 MiB.
  void write(std::string_view name, const Tensor& tensor, Stream& stream,
             const std::function<void()>& after_piece = {});

  // Writes the next elements of a tensor. The parts of a tensor must follow each other until it is
  // complete.
  void write_part(std::string_view name, const Tensor& part, Stream& stream,
                  const std::function<void()>& after_piece = {});
  void write_part(std::string_view name, ConstSpan host);

  // Throws RunError (the disk is full, ...). The caller syncs the folder.
  void commit();

 private:
  SafetensorsWriter(const std::string& header, const std::filesystem::path& path,
                    std::vector<TensorInfo> tensors, Sums sums, int io_threads);
  void expect(std::string_view name, DType dtype, int64_t count);
  void copy(const Tensor& part, Stream& stream, const std::function<void()>& after_piece);
  // Counts the next elements of a tensor, which has this name and type.
  void expect_part(std::string_view name, DType dtype, int64_t count);
  // Begins the next tensor, which must have this name and type.
  void begin(std::string_view name, DType dtype);

  const std::filesystem::path path_;
  const Sums sums_;
  std::vector<TensorInfo> tensors_;
  BlockWriter file_;
  size_t next_ = 0;
  int64_t missing_ = 0;  // elements of the current tensor that write_part() has not got yet
};

}  // namespace mtrain::storage
