// Sorts launches by what bounds their time. Cost models and reports use the same classes.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "predict/launch_costs.h"

namespace mtrain::predict {

enum class LaunchClass : uint8_t {
  gemm,        // of 16 or more bits, those of experts, too
  gemm8,       // of 8-bit operands
  attention,   // its GEMMs and softmax
  conversion,  // to and from 8 bits, with scales and transposed copies
  optimizer,   // the update, norms of gradients, and Muon's GEMMs
  memory,      // all other passes over memory
  communication
};
inline constexpr size_t kLaunchClasses = 7;
using ByClass = std::array<double, kLaunchClasses>;

// Whether a stream communicates, as reports of measured exposure count (observe/exposure.h).
constexpr bool communicates(device::StreamKind kind) {
  return kind != device::StreamKind::compute && kind != device::StreamKind::copy;
}

// Whether ranks that share layers communicate on such streams: their computations soon wait for it.
constexpr bool inside_layers(device::StreamKind kind) {
  return kind == device::StreamKind::cp || kind == device::StreamKind::ep ||
         kind == device::StreamKind::tp;
}

// The class follows from the launch's name, by its letter in a trace (observe/launch_letters.h),
// and from the type of its operands.
LaunchClass class_of(const LaunchWork& launch);
std::string_view class_name(LaunchClass c);  // "GEMMs", "attention", ...

}  // namespace mtrain::predict
