// Brings values of parameters from the host to what this rank owns of them, through one buffer of
// the host: neither a whole parameter nor a rank's part of one need fit into memory twice.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "model/param/parameters.h"

namespace mtrain::model {

// Writes elements [first, first + count) of a layout-free tensor, in row-major order, to
// values[0, count).
using ReadElements = std::function<void(int64_t first, int64_t count, float* values)>;

class ParamUploader {
 public:
  // So small that values are still in the cache when the device, or a thread of the CPU, copies
  // them.
  static constexpr int64_t kBufferBytes = 16 << 20;

  explicit ParamUploader(Stream& stream, int64_t buffer_bytes = kBufferBytes);

  // Writes the weights that this rank owns of `p`. `read` is called for each run of elements that
  // it owns, and for no others, on the calling thread.
  void set_weights(const Parameter& p, const ReadElements& read);
  // The same for another tensor of each weight, such as a moment. `to` returns where the elements
  // of a part go, in fp32 or, rounded to nearest, in 16 bits.
  void set(const Parameter& p, const ReadElements& read,
           const std::function<Tensor(const OwnedPart&)>& to);

 private:
  // One is filled while the device copies from the other.
  struct Half {
    std::shared_ptr<float[]> values;
    Event copied;
  };
  void next_half();
  void copy(const float* values, const Tensor& to);

  Stream& stream_;
  const int64_t capacity_;  // elements of a half
  Half halves_[2];
  int current_ = 0;
  int64_t used_ = 0;  // elements of the current half
};

}  // namespace mtrain::model
