#include "interchange/hf_source.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "base/error.h"

namespace mtrain::interchange {

namespace {

// from (rows, columns) -> to (columns, rows)
void transpose(const std::vector<float>& from, int64_t rows, int64_t columns,
               std::vector<float>& to) {
  to.resize(from.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) to[size_t(j * rows + i)] = from[size_t(i * columns + j)];
}

}  // namespace

const MappedTensor& HfSource::tensor(std::string_view name) const {
  const MappedTensor* found = map_.find(name);
  if (!found) throw UserError(fmt::format("the model of the folder has no tensor {}", name));
  return *found;
}

std::string HfSource::origin(std::string_view name) const {
  return theirs_->origin(tensor(name).pieces.front().theirs);
}

void HfSource::read(std::string_view name, int64_t first, int64_t count, float* values) const {
  const MappedTensor& t = tensor(name);
  MT_CHECK(first >= 0 && count >= 0 && first + count <= t.shape.count(), "{} [{}, {}) of {}", name,
           first, first + count, t.shape.str());
  for (const TensorPiece& p : t.pieces) {
    const int64_t begin = std::max(first, p.first),
                  end = std::min(first + count, p.first + p.count());
    if (begin < end) read_piece(p, begin - p.first, end - begin, values + (begin - first));
  }
}

void HfSource::read_piece(const TensorPiece& p, int64_t first, int64_t count, float* values) const {
  if (!p.transposed) {
    theirs_->read(p.theirs, first, count, values);
  } else {
    const std::lock_guard lock(mutex_);
    if (kept_ != p.theirs) {
      kept_.clear();  // nothing is kept if reading fails
      std::vector<float> whole(size_t(p.count()));
      theirs_->read(p.theirs, 0, p.count(), whole.data());
      transpose(whole, p.shape[0], p.shape[1], transposed_);
      kept_ = p.theirs;
    }
    std::copy_n(transposed_.begin() + first, count, values);
  }
  for (int64_t i = 0; i < count; ++i)
    if (!std::isfinite(values[i]))
      throw UserError(fmt::format("{} has a value that is not finite: {}",
                                  theirs_->origin(p.theirs), values[i]),
                      "the weights are damaged: download or export the folder again");
}

const TensorPiece& HfView::piece(std::string_view name) const {
  const TensorPiece* found = map_.find_theirs(name);
  if (!found) throw UserError(fmt::format("an export of the model has no tensor {}", name));
  return *found;
}

void HfView::read(std::string_view name, int64_t first, int64_t count, float* values) const {
  const TensorPiece& p = piece(name);
  MT_CHECK(first >= 0 && count >= 0 && first + count <= p.count(), "{} [{}, {}) of {}", name, first,
           first + count, p.shape.str());
  if (!p.transposed) return ours_.read(p.ours, p.first + first, count, values);
  std::vector<float> whole(size_t(p.count())), theirs;
  ours_.read(p.ours, p.first, p.count(), whole.data());
  transpose(whole, p.shape[1], p.shape[0], theirs);
  std::copy_n(theirs.begin() + first, count, values);
}

}  // namespace mtrain::interchange
