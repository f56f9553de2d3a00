#include "kernels/attention.h"

#include "base/error.h"
#include "kernels/cuda/device/attention_kernels.h"
#include "kernels/cuda/device/scratch.h"

namespace mtrain::kernels::cuda {
namespace {

void check(const AttentionShape& s) {
  if (s.D > kMaxHeadDim)
    throw UserError(fmt::format("attention on a GPU: heads of {} elements", s.D),
                    fmt::format("use heads of at most {}, or the CPU", kMaxHeadDim));
  if (s.value_dim() != s.D)
    throw UserError(fmt::format("attention on a GPU: values of {} elements, and keys of {}",
                                s.value_dim(), s.D),
                    "latent attention does not run on CUDA yet: set train.device: cpu");
  MT_CHECK(s.B * s.A * s.Sq < INT32_MAX && s.B * s.A * s.Skv < INT32_MAX,
           "attention: B {} A {} S {}", s.B, s.A, s.Sq);
}

template <class Args>
std::string engine(const Args& args) {
  if (std::string cudnn = cudnn_engine(args); !cudnn.empty()) return cudnn;
  return tensor_cores_can(args) ? "own kernel, tensor cores" : "own kernel, fp32";
}

}  // namespace

std::string attention_engine(const AttentionForward& f) { return engine(f); }
std::string attention_engine(const AttentionBackward& b) { return engine(b); }

void run(const AttentionForward& f, CUstream_st* stream) {
  check(f.shape);
  if (f.shape.B * f.shape.Sq == 0) return;
  MT_CHECK(f.shape.own_kernels || (!f.amax && !f.quantized), "attention: cuDNN finds no maximum");
  if (!f.shape.own_kernels && attention_by_cudnn(f, stream)) return;
  tensor_cores_can(f) ? attention_on_tensor_cores(f, stream) : attention_plain(f, stream);
}

void run(const AttentionBackward& b, CUstream_st* stream) {
  check(b.shape);
  const AttentionShape& s = b.shape;
  if (s.B == 0) return;
  MT_CHECK(s.own_kernels || (!b.dqk_amax && !b.dv_amax), "attention: cuDNN finds no maximum");
  if (!s.own_kernels && attention_by_cudnn(b, stream)) return;
  const Scratch<float> delta(s.B * s.A * s.Sq, stream);
  if (s.Sq > 0) attention_delta(b, delta.get(), stream);
  if (tensor_cores_can(b))
    attention_on_tensor_cores(b, delta.get(), stream);
  else
    attention_plain(b, delta.get(), stream);
}

}  // namespace mtrain::kernels::cuda
