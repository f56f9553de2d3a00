// The device whose kernels a training test uses: a GPU, or cuda_emulator.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "device/device.h"

// Opens the device with the stream sanitizer. own_attention leaves cuDNN out.
std::unique_ptr<mtrain::device::Device> device_under_test(bool own_attention = false);
// The number of attentions for which cuDNN was asked so far. A GPU does not count them.
std::optional<uint64_t> cudnn_calls();
uint64_t kernels_run();  // the number of CUDA kernels that have run
// Returns whether the workspace of all kernels so far came from the launches' workspace on this
// device. Requires that some kernels have run, and on no other device.
bool workspace_was_of(const mtrain::device::Device& device);
