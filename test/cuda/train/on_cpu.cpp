// A device over cuda_emulator that claims to be a GPU: every operation takes the CUDA path, and
// calls the kernels that replace the library's in this program.
#include "device/backend.h"
#include "device_under_test.h"
#include "kernels/gemm_choices.h"
#include "kernels/matmul.h"
#include "test/cuda_emulator/grid.h"
#include "test/support/graph_testing.h"

using namespace mtrain;

namespace {

// A backend that claims to be a GPU, with CPU streams that capture graphs, and the CPU's memory.
// Kernels run on the thread of their stream. The emulator's fibers run on one thread at a time,
// which suffices since a rank computes on one stream.
class GridBackend : public device::DeviceBackend {
 public:
  std::string description() const override { return "a grid on the CPU"; }
  bool is_cuda() const override { return true; }
  int threads() const override { return 1; }
  std::unique_ptr<device::StreamBackend> make_stream(device::StreamId id) override {
    return cpu_->make_stream(id);
  }
  void* allocate(int64_t bytes) override { return cpu_->allocate(bytes); }
  void release(void* memory, int64_t bytes) override { cpu_->release(memory, bytes); }

 private:
  std::unique_ptr<device::DeviceBackend> cpu_ = std::make_unique<RecordingBackend>();
};

}  // namespace

std::unique_ptr<Device> device_under_test(device::DeviceOptions options) {
  options.stream_sanitizer = true;
  return Device::on(std::make_unique<GridBackend>(), options);
}
std::optional<uint64_t> dependent_launches() { return cpu_grid::dependent_launches(); }
std::optional<uint64_t> cudnn_calls() { return cpu_grid::cudnn_calls(); }
uint64_t kernels_run() { return cpu_grid::grids_run(); }
bool workspace_was_of(
    const Device&) {  // in this test every kernel runs in a launch that provides workspace
  const cpu_grid::WorkspaceCounts taken = cpu_grid::workspace_counts();
  return taken.in_scope > 0 && taken.outside == 0;
}

// cuda_emulator cannot run the kernels of cuBLASLt, so the CPU's matmul replaces them.
namespace mtrain::kernels::cuda {
void run(const Matmul& m, CUstream_st*) { cpu::run(m); }
std::string unchosen_gemms() { return ""; }
std::string time_gemms(const std::string&, double, CUstream_st*) { return ""; }
void use_gemm_choices(const std::string&) {}
std::string gemm_choices() { return ""; }
}  // namespace mtrain::kernels::cuda
