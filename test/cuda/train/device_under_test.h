// The device whose kernels a training test is about.
#pragma once
#include <cstdint>
#include <memory>

#include "device/device.h"

// With the stream sanitizer on.
std::unique_ptr<mtrain::Device> device_under_test();
uint64_t kernels_run();  // so far
