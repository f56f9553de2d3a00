// Every operation ends here: one launch, dispatched to the backend that the stream's device has.
// Only lib/ops includes this.
#pragma once
#include <utility>

#include "base/error.h"
#include "device/device.h"
#include "device/stream.h"
#include "kernels/workspace.h"
#include "ops/launch_workspace.h"
#include "tensor/tensor.h"

namespace mtrain::ops {

// MT_KERNEL below makes the kernels findable by argument-dependent lookup.
template <class Args>
void enqueue(Stream& stream, device::LaunchInfo info, const Args& args) {
  if (stream.device().is_cuda())
    stream.launch(std::move(info), [args, &stream](const device::LaunchContext& c) {
      LaunchWorkspace scratch(stream);
      const kernels::WorkspaceScope from(scratch);
      run_cuda(args, c.cuda);
    });
  else
    stream.launch(std::move(info), [args](const device::LaunchContext&) { run_cpu(args); });
}

}  // namespace mtrain::ops

// MT_KERNEL(RmsNormForward): lets enqueue() find the two definitions of a kernel by its argument
// struct.
#define MT_KERNEL(Args)                                                    \
  namespace mtrain::kernels {                                              \
  inline void run_cpu(const Args& a) { cpu::run(a); }                      \
  inline void run_cuda(const Args& a, CUstream_st* s) { cuda::run(a, s); } \
  }

// A shape or dtype that does not fit names the operation, the tensor and both shapes.
#define MT_SHAPE(op, tensor, ...)                                         \
  MT_CHECK((tensor).shape() == (::mtrain::Shape __VA_ARGS__),             \
           op ": " #tensor " is {}, expected {}", (tensor).shape().str(), \
           (::mtrain::Shape __VA_ARGS__).str())
#define MT_DTYPE(op, tensor, expected)                                            \
  MT_CHECK((tensor).dtype() == (expected), op ": " #tensor " is {}, expected {}", \
           dtype_name((tensor).dtype()), dtype_name(expected))
#define MT_FLOAT(op, tensor)                                                  \
  MT_CHECK((tensor).dtype() == DType::f32 || (tensor).dtype() == DType::bf16, \
           op ": " #tensor " is {}, expected fp32 or bf16", dtype_name((tensor).dtype()))
