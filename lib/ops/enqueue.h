// Every operation ends in enqueue(): one launch of a kernel on the stream's device, a CPU or a GPU.
// Only lib/ops includes this header.
#pragma once
#include <utility>

#include "base/error.h"
#include "device/device.h"
#include "device/stream.h"
#include "kernels/workspace.h"
#include "ops/launch_workspace.h"
#include "tensor/tensor.h"

namespace mtrain::ops {

// Returns how the kernels that a CPU's stream launches multiply two bf16 operands.
inline Bf16Arithmetic bf16_of(const device::Device& device) {
  return device.bf16_arithmetic().value_or(Bf16Arithmetic::widened);
}

// Launches the kernel whose argument struct is Args. Argument-dependent lookup finds run_cpu() and
// run_cuda(), which MT_KERNEL below defines for each struct.
template <class Args>
void enqueue(Stream& stream, device::LaunchInfo info, const Args& args) {
  if (stream.device().is_cuda())
    stream.launch(std::move(info), [args, &stream](const device::LaunchContext& c) {
      LaunchWorkspace workspace(stream);
      const kernels::WorkspaceScope scope(workspace);
      run_cuda(args, c.cuda);
    });
  else
    stream.launch(std::move(info), [args](const device::LaunchContext&) { run_cpu(args); });
}

}  // namespace mtrain::ops

// MT_KERNEL(NormForward) makes the CPU and the CUDA definition of that kernel known to enqueue().
#define MT_KERNEL(Args)                                                    \
  namespace mtrain::kernels {                                              \
  inline void run_cpu(const Args& a) { cpu::run(a); }                      \
  inline void run_cuda(const Args& a, CUstream_st* s) { cuda::run(a, s); } \
  }

// Checks of a tensor's shape and dtype. They throw BugError, whose message names the operation, the
// tensor, what it is and what was expected.
#define MT_SHAPE(op, tensor, ...)                                         \
  MT_CHECK((tensor).shape() == (::mtrain::Shape __VA_ARGS__),             \
           op ": " #tensor " is {}, expected {}", (tensor).shape().str(), \
           (::mtrain::Shape __VA_ARGS__).str())
#define MT_DTYPE(op, tensor, expected)                                            \
  MT_CHECK((tensor).dtype() == (expected), op ": " #tensor " is {}, expected {}", \
           dtype_name((tensor).dtype()), dtype_name(expected))
#define MT_FLOAT(op, tensor)                                                                  \
  MT_CHECK(is_float((tensor).dtype()), op ": " #tensor " is {}, expected fp32, bf16 or fp16", \
           dtype_name((tensor).dtype()))
