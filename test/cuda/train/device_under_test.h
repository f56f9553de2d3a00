// The device whose kernels a training test uses: a GPU, or cuda_emulator.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "device/device.h"

// Opens the device with the stream sanitizer.
std::unique_ptr<mtrain::device::Device> device_under_test(
    mtrain::device::DeviceOptions options = {});
// The number of calls of attention that asked cuDNN so far. A GPU does not count them.
std::optional<uint64_t> cudnn_calls();
// The number of kernels so far that were allowed to start before the previous one had ended. A GPU
// does not count them.
std::optional<uint64_t> dependent_launches();
uint64_t kernels_run();  // the number of CUDA kernels that have run
// Returns whether all kernels so far took their workspace from that of the launches on this device.
// Fails unless kernels have run, all of them on this device.
bool workspace_was_of(const mtrain::device::Device& device);
