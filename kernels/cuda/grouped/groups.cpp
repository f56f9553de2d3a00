#include "kernels/cuda/grouped/groups.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int64_t kPointers = 6;  // arrays of 8-byte elements, which come first

}  // namespace

GroupMemory::GroupMemory(void* memory, int groups) {
  const auto at = [&](int64_t array) {
    return static_cast<char*>(memory) + array * int64_t(sizeof(int64_t)) * groups;
  };
  arrays = {.groups = groups,
            .shape = reinterpret_cast<GroupShape*>(at(kPointers)),
            .a = reinterpret_cast<const void**>(at(0)),
            .b = reinterpret_cast<const void**>(at(1)),
            .c = reinterpret_cast<void**>(at(2)),
            .a_stride = reinterpret_cast<int64_t*>(at(3)),
            .b_stride = reinterpret_cast<int64_t*>(at(4)),
            .c_stride = reinterpret_cast<int64_t*>(at(5))};
  alpha = reinterpret_cast<float*>(arrays.shape + groups);
}

int64_t GroupMemory::bytes(int groups) {
  return groups * (kPointers * int64_t(sizeof(int64_t)) + int64_t(sizeof(GroupShape))) +
         int64_t(sizeof(float));
}

}  // namespace mtrain::kernels::cuda
