#include "ops/tuning.h"

#include "base/gpu_facts.h"
#include "base/thread_pool.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/matmul_backend.h"
#include "kernels/cpu/peak.h"
#include "kernels/gemm_choices.h"
#include "ops/kept_peak.h"
#include "ops/launch_workspace.h"

namespace mtrain::ops {

bool supports(Bf16Arithmetic arithmetic) { return kernels::cpu::supports(arithmetic); }
Bf16Arithmetic fastest_bf16_arithmetic() { return kernels::cpu::fastest_bf16_arithmetic(); }

bool built_for_narrower_cpu(const Device& device) {
  return !device.is_cuda() && kernels::cpu::build_lacks_wider_isa();
}

double measured_peak_flops(Device& device, DType dtype) {
  // A GPU's clocks vary too much to measure: the data sheet's.
  if (device.is_cuda()) return rated_flops(device.description(), dtype);
  double flops = 0;
  // The worker of the compute stream has the device's thread pool.
  Stream& stream = device.stream(device::StreamKind::compute);
  stream.launch({.name = "measure_peak"}, [&](const device::LaunchContext&) {
    flops = kernels::cpu::measure_peak_flops(dtype);
  });
  stream.synchronize();
  // fp16 is computed as fp32.
  const DType measured = dtype == DType::bf16 ? DType::bf16 : DType::f32;
  return keep_peak(kept_peaks_file(), peak_key(device.threads(), measured), flops);
}

namespace {

class CublasTuner final : public GemmTuner {
 public:
  explicit CublasTuner(Stream& stream) : stream_(stream) {}
  std::string unchosen() override {
    return in_launch("unchosen_gemms", [](auto*) { return kernels::cuda::unchosen_gemms(); });
  }
  std::string time(const std::string& gemms, double seconds) override {
    return in_launch("time_gemms", [&](auto* stream) {
      return kernels::cuda::time_gemms(gemms, seconds, stream);
    });
  }
  void use(const std::string& choices) override {
    in_launch("use_gemm_choices", [&](auto*) {
      kernels::cuda::use_gemm_choices(choices);
      return "";
    });
  }
  std::string choices() override {
    return in_launch("gemm_choices", [](auto*) { return kernels::cuda::gemm_choices(); });
  }

 private:
  // A launch makes the stream's GPU the current one. The work of a CUDA launch runs immediately.
  template <class Work>
  std::string in_launch(const char* name, const Work& work) {
    std::string text;
    stream_.launch({.name = name}, [&](const device::LaunchContext& c) {
      LaunchWorkspace workspace(stream_);
      const kernels::WorkspaceScope scope(workspace);
      text = work(c.cuda);
    });
    return text;
  }
  Stream& stream_;
};

}  // namespace

std::unique_ptr<GemmTuner> gemm_tuner(Device& device) {
  if (!device.is_cuda()) return nullptr;
  return std::make_unique<CublasTuner>(device.stream(device::StreamKind::compute));
}

}  // namespace mtrain::ops
