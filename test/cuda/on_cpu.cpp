#include <new>

#include "mirror.h"
#include "test/cuda_emulator/grid.h"

namespace mtrain::test {

void* device_take(size_t bytes) { return ::operator new(bytes, std::align_val_t(256)); }
void device_give(void* memory) { ::operator delete(memory, std::align_val_t(256)); }
void to_device(void* device, const void* host, size_t bytes) { std::memcpy(device, host, bytes); }
void to_host(void* host, const void* device, size_t bytes) { std::memcpy(host, device, bytes); }
CUstream_st* device_stream() { return nullptr; }
void for_each_order(const std::function<void()>& fn) {
  for (bool descending : {false, true}) {
    CAPTURE(descending);
    cpu_grid::set_descending(descending);
    fn();
  }
}
void for_each_shared_memory(const std::function<void()>& fn) {
  for (const size_t bytes : {cpu_grid::kSharedOfAda, cpu_grid::kSharedOfHopper}) {
    CAPTURE(bytes);
    cpu_grid::set_shared_limit(bytes);
    fn();
  }
}
int64_t size_of_test(int64_t on_cpu, int64_t) { return on_cpu; }

}  // namespace mtrain::test
