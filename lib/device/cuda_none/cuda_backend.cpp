// Replaces cuda/ in builds without CUDA.
#include "base/error.h"
#include "device/backend.h"

namespace mtrain::device {

std::unique_ptr<DeviceBackend> make_cuda_backend(int) {
  throw UserError(
      "this build has no CUDA",
      "set train.device=cpu and comm.backend=auto; or configure with -DMTRAIN_CUDA=ON on a "
      "machine with the CUDA Toolkit");
}

void copy_by_cuda(CUstream_st*, void*, const void*, int64_t) {
  throw BugError("a CUDA stream in a build without CUDA");
}

}  // namespace mtrain::device
