// Values of mtrain's tensors from a Hugging Face folder, and the other way round, piece by piece.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "interchange/tensor_map.h"
#include "storage/value_source.h"

namespace mtrain::interchange {

// mtrain's tensors, from a source of theirs. A run of elements reads just those elements, except in
// a transposed tensor: its whole matrix is read, and the last such matrix is kept. A value that is
// not finite is a UserError naming its tensor.
class HfSource : public storage::ValueSource {
 public:
  HfSource(std::shared_ptr<const ValueSource> theirs, TensorMap map)
      : theirs_(std::move(theirs)), map_(std::move(map)) {}

  const TensorMap& map() const { return map_; }

  bool contains(std::string_view name) const override { return map_.find(name) != nullptr; }
  Shape shape(std::string_view name) const override { return tensor(name).shape; }
  std::string origin(std::string_view name) const override;
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override;

 private:
  const MappedTensor& tensor(std::string_view name) const;
  void read_piece(const TensorPiece& piece, int64_t first, int64_t count, float* values) const;

  std::shared_ptr<const ValueSource> theirs_;
  TensorMap map_;
  mutable std::mutex mutex_;
  mutable std::string kept_;               // the name of the transposed tensor below
  mutable std::vector<float> transposed_;  // in mtrain's order
};

// Their tensors, from a source of mtrain's: what an export writes.
class HfView : public storage::ValueSource {
 public:
  HfView(const ValueSource& ours, const TensorMap& map) : ours_(ours), map_(map) {}

  bool contains(std::string_view name) const override { return map_.find_theirs(name) != nullptr; }
  Shape shape(std::string_view name) const override { return piece(name).shape; }
  std::string origin(std::string_view name) const override {
    return ours_.origin(piece(name).ours);
  }
  // Reads the whole matrix for a run of a transposed tensor.
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override;

 private:
  const TensorPiece& piece(std::string_view name) const;

  const ValueSource& ours_;
  const TensorMap& map_;
};

}  // namespace mtrain::interchange
