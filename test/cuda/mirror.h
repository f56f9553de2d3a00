// Arrays that lie on the host and on the device, for tests that compare a CUDA kernel with the CPU
// kernel. The tests are built twice: for a GPU, and over cuda_emulator, where the memory of the
// device is the host's.
#pragma once
#include <catch2/catch.hpp>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "test/support/kernels_testing.h"

struct CUstream_st;

namespace mtrain::test {

// --- on_gpu.cpp and on_cpu.cpp each define these functions ---
void* device_take(size_t bytes);
void device_give(void* memory);
void to_device(void* device, const void* host, size_t bytes);
void to_host(void* host, const void* device, size_t bytes);  // waits for all work first
CUstream_st* device_stream();
// Calls fn() often enough to expose results that depend on the order of threads.
void for_each_order(const std::function<void()>& fn);
// Calls fn() with the shared memory of each kind of GPU, or on the GPU that there is.
void for_each_shared_memory(const std::function<void()>& fn);
// Returns a size that keeps the test short: `on_cpu` if kernels run on the CPU, else `on_gpu`.
int64_t size_of_test(int64_t on_cpu, int64_t on_gpu);

class Mirror {
 public:
  // The device's array begins `offset` elements after an aligned address.
  Mirror(Array array, int64_t offset = 0)
      : host_(std::move(array)), size_(size_t(dtype_size(host_.dtype()))) {
    before_ = kMargin + size_t(offset) * size_;
    bytes_ = before_ + size_t(host_.size()) * size_ + kMargin;
    memory_ = device_take(bytes_);
    std::vector<unsigned char> image(bytes_, kFiller);
    if (host_.size() > 0)
      std::memcpy(image.data() + before_, host_.span().data, size_t(host_.size()) * size_);
    to_device(memory_, image.data(), bytes_);
  }
  ~Mirror() { device_give(memory_); }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  Array& host() { return host_; }
  Span device() { return {static_cast<char*>(memory_) + before_, host_.size(), host_.dtype()}; }
  // Returns the device's array. Fails if something was written around it.
  Array result() const {
    std::vector<unsigned char> image(bytes_);
    to_host(image.data(), memory_, bytes_);
    for (size_t i = 0; i < bytes_; ++i)
      if (i < before_ || i >= bytes_ - kMargin) REQUIRE(image[i] == kFiller);
    Array got(host_.dtype(), host_.size());
    if (host_.size() > 0)
      std::memcpy(got.span().data, image.data() + before_, size_t(host_.size()) * size_);
    return got;
  }
  // Compares the device's result with the CPU's, as Closeness does.
  std::string compare(Closeness& close, const Rule& rule) const {
    return close(result(), host_.values(), rule);
  }
  bool same() const {
    const Array got = result();
    return host_.size() == 0 ||
           std::memcmp(got.span().data, host_.span().data, size_t(host_.size()) * size_) == 0;
  }

 private:
  static constexpr size_t kMargin = 256;
  static constexpr unsigned char kFiller = 0x5a;
  Array host_;
  size_t size_, before_, bytes_;
  void* memory_;
};

// Calls fn(offset) for operands on and off 16-byte borders, in every order of threads.
inline void for_each_way(const std::function<void(int64_t)>& fn) {
  for (int64_t offset : {0, 1}) {
    CAPTURE(offset);
    for_each_order([&] { fn(offset); });
  }
}

}  // namespace mtrain::test
