// Copies of a few tensors that the host reads later, while the device already does other work.
#pragma once
#include <memory>
#include <vector>

#include "tensor/tensor.h"

namespace mtrain::tensor {

class HostCopy {
 public:
  explicit HostCopy(Stream& stream) : stream_(stream) {}
  ~HostCopy();  // waits for copies that are still running
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  // Enqueues the copies on the stream, and drops earlier ones. Absent tensors have no values.
  void begin(const std::vector<Tensor>& tensors);
  bool ready() const { return ready_.ready(); }  // whether wait() would not block
  // Blocks until the copies are complete. The host does not wait for work that was enqueued later.
  void wait();
  // Returns the values of the tensor with this number. wait() must have been called.
  template <class T>
  std::vector<T> values(size_t number) const {
    const Part& part = parts_.at(number);
    MT_CHECK(!ready_, "the copies may still be running");
    MT_CHECK(!part.count || part.dtype == dtype_of<T>, "a tensor of {} is read as {}",
             dtype_name(part.dtype), dtype_name(dtype_of<T>));
    const auto* data =
        reinterpret_cast<const T*>(static_cast<const char*>(memory_.get()) + part.offset);
    return part.count ? std::vector<T>(data, data + part.count) : std::vector<T>();
  }

 private:
  struct Part {
    int64_t offset, count;
    DType dtype;
  };
  Stream& stream_;
  std::shared_ptr<void> memory_;
  int64_t bytes_ = 0;  // of memory_
  std::vector<Part> parts_;
  Event ready_;  // the end of the copies, until wait()
};

}  // namespace mtrain::tensor
