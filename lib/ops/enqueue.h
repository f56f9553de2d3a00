// Every operation ends in enqueue(): one launch of a kernel on the stream's device, a CPU or a GPU.
// Only lib/ops and its tests include this header.
#pragma once
#include <algorithm>

#include "base/error.h"
#include "device/device.h"
#include "device/stream.h"
#include "kernels/flops.h"
#include "kernels/workspace.h"
#include "ops/launch_spans.h"
#include "ops/launch_workspace.h"
#include "tensor/tensor.h"

namespace mtrain::ops {

// Returns how the kernels that a CPU's stream launches multiply two bf16 operands.
inline Bf16Arithmetic bf16_of(const device::Device& device) {
  return device.bf16_arithmetic().value_or(Bf16Arithmetic::widened);
}

// Returns the elements of x that start with number `first`; none if x is shorter.
inline Span elements_from(const Tensor& x, int64_t first) {
  first = std::min(first, x.count());
  return x.flat(first, {x.count() - first});
}

// Returns the memory of a result that keeps parts of its old values, or has infinities on purpose.
inline Span partly_written(Span result) {
  result.use = SpanUse::write_part;
  return result;
}

// Launches the kernel whose argument struct is Args. The launch reads and writes the struct's spans
// (ops/launch_spans.h); `name` is a string literal. Argument-dependent lookup finds run_cpu() and
// run_cuda(), which MT_KERNEL below defines for each struct.
template <class Args>
void enqueue(Stream& stream, const char* name, const Args& args) {
  if (stream.device().is_cuda())
    stream.launch(launch_of(name, args), [args, &stream](const device::LaunchContext& c) {
      LaunchWorkspace workspace(stream);
      const kernels::WorkspaceScope scope(workspace);
      run_cuda(args, c.cuda);
    });
  else
    stream.launch(launch_of(name, args), [args](const device::LaunchContext&) { run_cpu(args); });
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
