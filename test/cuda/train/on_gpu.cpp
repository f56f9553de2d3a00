#include "device_under_test.h"

using namespace mtrain;

std::unique_ptr<Device> device_under_test(device::DeviceOptions options) {
  options.stream_sanitizer = true;
  return Device::cuda(0, options);
}
std::optional<uint64_t> dependent_launches() { return std::nullopt; }
std::optional<uint64_t> cudnn_calls() { return std::nullopt; }
bool workspace_was_of(const Device& device) {
  const device::MemoryUsage workspace = device.allocator().usage(device::MemoryCategory::workspace);
  return workspace.peak > 0 && workspace.current == 0;
}
// No other kernels can run on a GPU's memory.
uint64_t kernels_run() {
  static uint64_t n = 0;
  return n += 1 << 20;
}
