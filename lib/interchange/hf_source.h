// Converts values between the tensors of a Hugging Face folder and mtrain's, piece by piece.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "interchange/tensor_map.h"
#include "storage/finite_values.h"
#include "storage/value_source.h"

namespace mtrain::interchange {

// mtrain's tensors, read from a source of Hugging Face tensors. read() reads only the requested
// elements, with one exception. A part of one row of a transposed tensor is read together with the
// same columns of the next rows; a few MiB of them are cached. A value that is not finite is a
// UserError, which names the Hugging Face tensor.
class HfSource : public storage::ValueSource {
 public:
  HfSource(std::shared_ptr<const ValueSource> source, TensorMap map)
      : source_(std::move(source)), finite_(*source_), map_(std::move(map)) {}

  const TensorMap& map() const { return map_; }

  bool contains(std::string_view name) const override { return map_.find(name) != nullptr; }
  Shape shape(std::string_view name) const override { return tensor(name).shape; }
  std::string origin(std::string_view name) const override;
  bool finite() const override { return true; }
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override;

 private:
  // The columns [first, first + count) of rows [row, row + rows) of a transposed tensor.
  struct Band {
    std::string hf_name;  // the tensor's name; empty if nothing is cached
    int64_t row = 0, rows = 0, first = 0, count = 0;
    std::vector<float> values;
  };
  const MappedTensor& tensor(std::string_view name) const;
  void read_piece(const TensorPiece& piece, int64_t first, int64_t count, float* values) const;
  void read_in_row(const TensorPiece& piece, int64_t row, int64_t first, int64_t count,
                   float* values) const;

  std::shared_ptr<const ValueSource> source_;
  storage::FiniteValues finite_;  // checks the values of source_
  TensorMap map_;
  mutable std::mutex mutex_;
  mutable Band band_;
};

// Hugging Face tensors, read from a source of mtrain's tensors. An export writes them.
class HfView : public storage::ValueSource {
 public:
  HfView(const ValueSource& source, const TensorMap& map) : source_(source), map_(map) {}

  bool contains(std::string_view name) const override { return map_.find_hf(name) != nullptr; }
  Shape shape(std::string_view name) const override { return piece(name).shape; }
  std::string origin(std::string_view name) const override {
    return source_.origin(piece(name).name);
  }
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override;

 private:
  const TensorPiece& piece(std::string_view name) const;

  const ValueSource& source_;
  const TensorMap& map_;
};

}  // namespace mtrain::interchange
