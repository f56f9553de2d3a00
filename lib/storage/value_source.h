// Named tensors whose values are read piece by piece, as fp32: a source of a model's weights, such
// as a checkpoint or a Hugging Face folder.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "base/shape.h"
#include "base/strided_run.h"

namespace mtrain::storage {

// Elements of a tensor that will be read.
struct ExpectedRun {
  std::string tensor;
  StridedRun run;
};

class ValueSource {
 public:
  ValueSource() = default;
  virtual ~ValueSource() = default;
  ValueSource(const ValueSource&) = delete;
  ValueSource& operator=(const ValueSource&) = delete;

  virtual bool contains(std::string_view name) const = 0;
  // Throws UserError for an unknown name, and for more dimensions than a Shape has.
  virtual Shape shape(std::string_view name) const = 0;
  // Returns the tensor's name in messages: its file, and its name in that file.
  virtual std::string origin(std::string_view name) const {
    return fmt::format("tensor `{}`", name);
  }
  // Whether read() throws UserError for a value that is not finite.
  virtual bool finite() const { return false; }
  // Announces what read() will be asked for, in this order. A source of files reads it ahead, by
  // several threads. Other elements may be read as well. It replaces what was announced before.
  virtual void expect(std::vector<ExpectedRun>) const {}
  // Writes elements [first, first + count) of the tensor, in row-major order, to values[0, count).
  // Throws UserError for an unknown name and for a type that cannot become fp32, RunError for data
  // that cannot be read; both name the tensor and its file. Several threads may read at the same
  // time.
  virtual void read(std::string_view name, int64_t first, int64_t count, float* values) const = 0;
};

}  // namespace mtrain::storage
