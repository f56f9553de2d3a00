// Memory at addresses that the kernel accepts for reads and writes past the page cache (O_DIRECT).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace mtrain {

// Offsets, sizes and addresses of direct reads and writes are multiples of it. Disks need 512 or
// 4,096.
inline constexpr int64_t kDirectAlignment = 4096;

struct FreeAligned {
  void operator()(std::byte* memory) const {
    ::operator delete[](memory, std::align_val_t(kDirectAlignment));
  }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeAligned>;

// The memory is not initialized.
inline AlignedBytes aligned_bytes(size_t bytes) {
  return AlignedBytes(
      static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(kDirectAlignment))));
}

}  // namespace mtrain
