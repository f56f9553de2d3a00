// Attention through cuDNN on the current GPU, if cuDNN is installed.
#include <array>
#include <memory>
#include <mutex>

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "base/log.h"
#include "kernels/cuda/cudnn/attention.h"
#include "kernels/cuda/device/attention_kernels.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/scratch.h"

namespace mtrain::kernels::cuda {
namespace {

struct OfDevice {
  bool asked = false;
  std::unique_ptr<CudnnAttention> attention;  // null: no cuDNN
};

int attribute_of(int device, cudaDeviceAttr attribute) {
  int value = 0;
  MT_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

std::unique_ptr<CudnnAttention> open(int device) {
  const CudnnLibrary& lib = cudnn_library();
  std::string problem = lib.problem;
  cudnnContext* handle = nullptr;  // never destroyed
  if (problem.empty()) problem = why_no_cudnn_frontend();
  if (problem.empty())
    if (const int status = lib.api.create(&handle); status != 0)
      problem = fmt::format("cudnnCreate: {}", lib.api.error_string(status));
  if (!problem.empty()) {
    log::info("attention: mtrain's own kernels, without cuDNN: " + problem);
    return nullptr;
  }
  const CudnnTarget target{
      .version = lib.api.version(),
      .architecture = 10 * attribute_of(device, cudaDevAttrComputeCapabilityMajor) +
                      attribute_of(device, cudaDevAttrComputeCapabilityMinor)};
  return std::make_unique<CudnnAttention>(
      lib.api, handle, target,
      CudnnAttention::Device{take_scratch, give_scratch, run, run, run, is_capturing,
                             require_healthy});
}

CudnnAttention* here() {
  constexpr int kMaxDevices = 64;
  static std::mutex mutex;
  // These are never destroyed: at the end of the process the driver may already be unloaded.
  static auto& devices = *new std::array<OfDevice, kMaxDevices>;
  int device = 0;
  MT_CUDA(cudaGetDevice(&device));
  MT_CHECK(device < kMaxDevices, "CUDA device {}", device);
  std::lock_guard lock(mutex);
  OfDevice& d = devices[size_t(device)];
  if (!d.asked) d.attention = open(device);
  d.asked = true;
  return d.attention.get();
}

}  // namespace

bool attention_by_cudnn(const AttentionForward& f, CUstream_st* stream) {
  CudnnAttention* const cudnn = here();
  return cudnn && cudnn->run(f, stream);
}
bool attention_by_cudnn(const AttentionBackward& b, CUstream_st* stream) {
  CudnnAttention* const cudnn = here();
  return cudnn && cudnn->run(b, stream);
}

std::string cudnn_engine(const AttentionForward& f) {
  CudnnAttention* const cudnn = here();
  return cudnn ? cudnn->engine_of(f) : "";
}
std::string cudnn_engine(const AttentionBackward& b) {
  CudnnAttention* const cudnn = here();
  return cudnn ? cudnn->engine_of(b) : "";
}

}  // namespace mtrain::kernels::cuda
