// What carries messages between ranks.
#pragma once
#include <array>

#include "base/enum_name.h"

namespace mtrain {

// automatic is nccl between GPUs; on CPUs shared memory where one host runs all ranks, else gloo.
// thread is for ranks that are threads of one process.
enum class CommBackend { automatic, gloo, nccl, thread };
constexpr auto enum_names(CommBackend) {
  return std::array{EnumName{CommBackend::automatic, "auto"}, EnumName{CommBackend::gloo, "gloo"},
                    EnumName{CommBackend::nccl, "nccl"}, EnumName{CommBackend::thread, "thread"}};
}

}  // namespace mtrain
