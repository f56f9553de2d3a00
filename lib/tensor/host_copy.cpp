#include "tensor/host_copy.h"

#include "base/math.h"
#include "device/device.h"

namespace mtrain::tensor {

namespace {
constexpr int64_t kAlignment = 64;  // bytes
}  // namespace

HostCopy::~HostCopy() {
  try {
    wait();
  } catch (...) {  // a failure is reported to the code that waits for the values
  }
}

void HostCopy::begin(const std::vector<Tensor>& tensors) {
  wait();
  parts_.clear();
  int64_t end = 0;
  for (const Tensor& t : tensors) {
    parts_.push_back({end, t.count(), t.dtype()});
    end += round_up(t.bytes(), kAlignment);
  }
  if (end > bytes_) {
    memory_ = stream_.device().host_memory(end);
    bytes_ = end;
  }
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i])
      stream_.download_later(static_cast<char*>(memory_.get()) + parts_[i].offset, tensors[i]);
  ready_ = stream_.record();
}

void HostCopy::wait() {
  if (!ready_) return;
  const Event ready = std::exchange(ready_, {});
  stream_.synchronize(ready);
}

}  // namespace mtrain::tensor
