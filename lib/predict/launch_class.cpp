#include "predict/launch_class.h"

#include "base/error.h"
#include "observe/launch_letters.h"

namespace mtrain::predict {

LaunchClass class_of(const LaunchWork& launch) {
  if (communicates(launch.stream.kind)) return LaunchClass::communication;
  if (launch.name.starts_with("matmul_muon")) return LaunchClass::optimizer;
  switch (observe::letter_of(launch.name)) {
    case 'o': return LaunchClass::optimizer;
    case 'q': return LaunchClass::conversion;
    case 'm':
    case 'e':
      if (launch.flops == 0) return LaunchClass::memory;  // such as expert_rows
      return is_float8(launch.dtype) ? LaunchClass::gemm8 : LaunchClass::gemm;
    case 'a': return launch.flops > 0 ? LaunchClass::attention : LaunchClass::memory;
    default:
      MT_CHECK(launch.flops == 0, "the launch {} has FLOPs, and no class", launch.name);
      return LaunchClass::memory;
  }
}

std::string_view class_name(LaunchClass c) {
  switch (c) {
    case LaunchClass::gemm: return "GEMMs";
    case LaunchClass::gemm8: return "8-bit GEMMs";
    case LaunchClass::attention: return "attention";
    case LaunchClass::conversion: return "8-bit conversions";
    case LaunchClass::optimizer: return "optimizer";
    case LaunchClass::memory: return "other passes";
    case LaunchClass::communication: return "communication";
  }
  throw BugError("unknown class of launches");
}

}  // namespace mtrain::predict
