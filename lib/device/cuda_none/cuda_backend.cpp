// Stands in for cuda/ in builds without CUDA.
#include "base/error.h"
#include "device/backend.h"

namespace mtrain {

std::unique_ptr<DeviceBackend> make_cuda_backend(int) {
  throw UserError("this build has no CUDA",
                  "configure with -DMTRAIN_CUDA=ON on a machine with the CUDA Toolkit");
}

}  // namespace mtrain
