#include "interchange/hf_source.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/error.h"
#include "base/math.h"

namespace mtrain::interchange {

namespace {

constexpr int64_t kStrip = 4096;             // elements of a row that are read at a time
constexpr int64_t kBand = int64_t{1} << 22;  // elements of a transposed tensor that are cached

// A matrix within a tensor of `source`, which begins at element `begin` of the tensor.
struct StoredMatrix {
  const storage::ValueSource& source;
  const std::string& name;
  int64_t begin, rows, columns;
};

// Position `r` of row i of the transpose is its element i * rows + r. Returns the smallest i for
// which this element's index is at least `first`.
int64_t first_row_at(int64_t first, int64_t r, int64_t rows) {
  return first <= r ? 0 : ceil_div(first - r, rows);
}

// Writes elements [first, first + count) of the matrix's transpose to values[0, count). Reads only
// these elements, in strips of the matrix's rows. A strip goes to kStrip rows of the transpose, few
// enough that their cache lines stay in the cache for the next strip.
void read_transpose(const StoredMatrix& m, int64_t first, int64_t count, float* values) {
  float strip[kStrip];
  const int64_t last = first + count;
  for (int64_t band = first / m.rows; band * m.rows < last; band += kStrip)
    for (int64_t r = 0; r < m.rows; ++r) {
      const int64_t begin = std::max(band, first_row_at(first, r, m.rows)),
                    end = std::min(band + kStrip, first_row_at(last, r, m.rows));
      if (begin >= end) continue;
      m.source.read(m.name, m.begin + r * m.columns + begin, end - begin, strip);
      for (int64_t c = begin; c < end; ++c) values[c * m.rows + r - first] = strip[c - begin];
    }
}

}  // namespace

const MappedTensor& HfSource::tensor(std::string_view name) const {
  const MappedTensor* found = map_.find(name);
  if (!found) throw UserError(fmt::format("the model of the folder has no tensor {}", name));
  return *found;
}

std::string HfSource::origin(std::string_view name) const {
  return source_->origin(tensor(name).pieces.front().hf_name);
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
  if (!p.transposed) return finite_.read(p.hf_name, first, count, values);
  const int64_t inputs = p.shape[0], row = first / inputs;  // in mtrain's matrix (outputs, inputs)
  if (first + count <= (row + 1) * inputs)
    return read_in_row(p, row, first - row * inputs, count, values);
  read_transpose({finite_, p.hf_name, 0, inputs, p.shape[1]}, first, count, values);
}

// Under tensor parallelism a rank may own a part of each row, and requests these parts one by one.
// In the folder's matrix their elements are not adjacent. Therefore many rows are read at once.
void HfSource::read_in_row(const TensorPiece& p, int64_t row, int64_t first, int64_t count,
                           float* values) const {
  const std::lock_guard lock(mutex_);
  Band& b = band_;
  if (b.hf_name != p.hf_name || row < b.row || row >= b.row + b.rows || first < b.first ||
      first + count > b.first + b.count) {
    b.hf_name.clear();  // nothing is cached if reading fails
    const int64_t outputs = p.shape[1];
    b.row = row, b.first = first, b.count = count;
    b.rows = std::clamp<int64_t>(kBand / count, 1, outputs - row);
    b.values.resize(size_t(b.rows * count));
    std::vector<float> strip(size_t(b.rows));
    for (int64_t i = 0; i < count; ++i) {
      finite_.read(p.hf_name, (first + i) * outputs + row, b.rows, strip.data());
      for (int64_t r = 0; r < b.rows; ++r) b.values[size_t(r * count + i)] = strip[size_t(r)];
    }
    b.hf_name = p.hf_name;
  }
  std::copy_n(b.values.begin() + (row - b.row) * b.count + (first - b.first), count, values);
}

const TensorPiece& HfView::piece(std::string_view name) const {
  const TensorPiece* found = map_.find_hf(name);
  if (!found) throw UserError(fmt::format("an export of the model has no tensor {}", name));
  return *found;
}

void HfView::read(std::string_view name, int64_t first, int64_t count, float* values) const {
  const TensorPiece& p = piece(name);
  MT_CHECK(first >= 0 && count >= 0 && first + count <= p.count(), "{} [{}, {}) of {}", name, first,
           first + count, p.shape.str());
  if (!p.transposed) return source_.read(p.name, p.first + first, count, values);
  read_transpose({source_, p.name, p.first, p.shape[1], p.shape[0]}, first, count, values);
}

}  // namespace mtrain::interchange
