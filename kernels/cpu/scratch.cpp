#include "kernels/cpu/scratch.h"

#include <sys/mman.h>

#include "base/error.h"
#include "base/math.h"

namespace mtrain::kernels::cpu {

Scratch::~Scratch() {
  if (data_) munmap(data_, size_);
}

void* Scratch::bytes(size_t count) {
  if (count <= size_) return data_;
  constexpr size_t kHugePage = 2 << 20;
  // Allocates a quarter more than requested: slowly growing shapes then do not map new memory each
  // time.
  const size_t grown = size_t(round_up(int64_t(count + (size_ ? count / 4 : 0)),
                                       count < kHugePage ? 4096 : int64_t(kHugePage)));
  void* fresh = mmap(nullptr, grown, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED)
    throw RunError(fmt::format("no memory for {} bytes of kernel scratch", grown),
                   "use a smaller micro-batch or sequence length");
  if (grown >= kHugePage) madvise(fresh, grown, MADV_HUGEPAGE);  // best effort: saves TLB misses
  if (data_) munmap(data_, size_);
  data_ = fresh;
  size_ = grown;
  return data_;
}

}  // namespace mtrain::kernels::cpu
