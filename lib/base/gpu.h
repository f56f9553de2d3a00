// The kinds of GPUs whose facts are known (base/gpu_facts.h).
#pragma once
#include <array>

#include "base/enum_name.h"

namespace mtrain {

enum class Gpu { a100, h100, h200, b200, b300, gb200, gb300, gh200, l40s };
constexpr auto enum_names(Gpu) {
  return std::array{
      EnumName{Gpu::a100, "a100"},   EnumName{Gpu::h100, "h100"},   EnumName{Gpu::h200, "h200"},
      EnumName{Gpu::b200, "b200"},   EnumName{Gpu::b300, "b300"},   EnumName{Gpu::gb200, "gb200"},
      EnumName{Gpu::gb300, "gb300"}, EnumName{Gpu::gh200, "gh200"}, EnumName{Gpu::l40s, "l40s"}};
}

}  // namespace mtrain
