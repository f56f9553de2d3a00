// The device whose kernels a training test is about.
#pragma once
#include <cstdint>
#include <memory>

#include "device/device.h"

// With the stream sanitizer on.
std::unique_ptr<mtrain::device::Device> device_under_test();
uint64_t kernels_run();  // so far
// Whether what kernels took for their launches' time, some of them having run on this device alone,
// was its memory.
bool scratch_is_of(const mtrain::device::Device& device);
