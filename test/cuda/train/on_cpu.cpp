// A device that says it is a GPU, over cuda_emulator: every operation takes the CUDA way, and finds
// the kernels that this program has in place of the library's.
#include "../../cuda_emulator/grid.h"
#include "../../unit/graph_testing.h"
#include "device/backend.h"
#include "device_under_test.h"
#include "kernels/matmul.h"

using namespace mtrain;

namespace {

// The CPU's streams, which record graphs, and memory under a GPU's name. Kernels run on the
// stream's thread; the fibers' engine is for one thread at a time, as a rank's compute stream is.
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

std::unique_ptr<Device> device_under_test() {
  return Device::on(std::make_unique<GridBackend>(), {.stream_sanitizer = true});
}
uint64_t kernels_run() { return cpu_grid::grids_run(); }
bool scratch_is_of(const Device&) {  // as far as it goes here: that every launch has said whose
  const cpu_grid::ScratchTakes takes = cpu_grid::scratch_takes();
  return takes.said > 0 && takes.unsaid == 0;
}

// The one CUDA kernel that cuda_emulator cannot run: cuBLASLt's.
namespace mtrain::kernels::cuda {
void run(const Matmul& m, CUstream_st*) { cpu::run(m); }
}  // namespace mtrain::kernels::cuda
