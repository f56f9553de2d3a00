#include "ops/tuning.h"

#include "base/thread_pool.h"
#include "kernels/cpu/matmul_plan.h"
#include "kernels/cpu/openblas.h"
#include "kernels/cpu/peak.h"

namespace mtrain::ops {

namespace plan = kernels::cpu::matmul_plan;

void load_matmul_libraries() { kernels::cpu::openblas::load(); }
std::string matmul_choices() { return plan::save(); }
void restore_matmul_choices(std::string_view choices) { plan::load(choices); }
void fix_matmul_choices(bool fixed) { plan::use_static_rule(fixed); }

double measured_peak_flops(Device& device, DType dtype) {
  if (device.is_cuda()) return 0;
  double flops = 0;
  Stream& stream = device.stream("compute");  // its worker has the device's thread pool
  stream.launch({.name = "measure_peak"},
                [&](const LaunchContext&) { flops = kernels::cpu::measure_peak_flops(dtype); });
  stream.synchronize();
  return flops;
}

}  // namespace mtrain::ops
