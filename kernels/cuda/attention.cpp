#include "kernels/attention.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/device/attention_kernels.h"
#include "kernels/cuda/device/attention_padding.h"
#include "kernels/cuda/device/scratch.h"

namespace mtrain::kernels::cuda {
namespace {

void check(const AttentionShape& s) {
  if (const int64_t D = std::max(s.D, s.value_dim()); D > kMaxHeadDim)
    throw UserError(fmt::format("attention on a GPU: heads of {} elements", D),
                    fmt::format("use heads of at most {}, or the CPU", kMaxHeadDim));
  MT_CHECK(s.B * s.A * s.Sq < INT32_MAX && s.B * s.A * s.Skv < INT32_MAX,
           "attention: B {} A {} S {}", s.B, s.A, s.Sq);
}

// Heads of an operand or a result, in memory of their own, where zeros end each head. If `D` is
// the size that kernels take, they stay in the caller's memory.
class PaddedHeads {
 public:
  PaddedHeads(const HeadSpan& heads, int64_t count, int64_t D, int64_t to_D, int64_t rows,
              CUstream_st* stream)
      : heads_(heads),
        count_(count),
        D_(D),
        to_D_(to_D),
        rows_(rows),
        stream_(stream),
        memory_(D == to_D ? 0 : rows * count * to_D * dtype_size(heads.data.dtype), stream) {}
  PaddedHeads(const HeadView& heads, int64_t count, int64_t D, int64_t to_D, int64_t rows,
              CUstream_st* stream)
      : PaddedHeads(
            HeadSpan{{const_cast<void*>(heads.data.data), heads.data.count, heads.data.dtype},
                     heads.token_stride},
            count, D, to_D, rows, stream) {
    read();
  }
  HeadSpan get() const {
    if (D_ == to_D_) return heads_;
    const int64_t width = count_ * to_D_;
    return {{memory_.get(), rows_ * width, heads_.data.dtype}, width};
  }
  HeadView view() const { return {get().data, get().token_stride}; }
  // Copy from the caller's memory, and to it.
  void read() const {
    if (D_ != to_D_) copy_heads(view_of(heads_), D_, get(), to_D_, rows_, count_, stream_);
  }
  void write() const {
    if (D_ != to_D_) copy_heads(view(), to_D_, heads_, D_, rows_, count_, stream_);
  }

 private:
  static HeadView view_of(const HeadSpan& heads) { return {heads.data, heads.token_stride}; }

  const HeadSpan heads_;
  const int64_t count_, D_, to_D_, rows_;
  CUstream_st* stream_;
  const Scratch<unsigned char> memory_;
};

void run_padded(const AttentionForward& f, CUstream_st* stream) {
  const AttentionShape& s = f.shape;
  MT_CHECK(!f.amax && !f.quantized, "attention: 8-bit results of values with a size of their own");
  const int64_t D = std::max(s.D, s.value_dim()), rows = s.B * s.Sq, keys = s.B * s.Skv;
  const PaddedHeads q(f.q, s.A, s.D, D, rows, stream), k(f.k, s.G, s.D, D, keys, stream),
      v(f.v, s.G, s.value_dim(), D, keys, stream), out(f.out, s.A, s.value_dim(), D, rows, stream);
  AttentionForward padded = f;
  padded.shape.D = D, padded.shape.Dv = 0;
  padded.q = q.view(), padded.k = k.view(), padded.v = v.view(), padded.out = out.get();
  run(padded, stream);
  out.write();
}

void run_padded(const AttentionBackward& b, CUstream_st* stream) {
  const AttentionShape& s = b.shape;
  MT_CHECK(!b.dqk_amax && !b.dv_amax, "attention: maxima of values with a size of their own");
  const int64_t D = std::max(s.D, s.value_dim()), rows = s.B * s.Sq, keys = s.B * s.Skv;
  const PaddedHeads q(b.q, s.A, s.D, D, rows, stream), k(b.k, s.G, s.D, D, keys, stream),
      v(b.v, s.G, s.value_dim(), D, keys, stream), out(b.out, s.A, s.value_dim(), D, rows, stream),
      dout(b.dout, s.A, s.value_dim(), D, rows, stream);
  const PaddedHeads dq(b.dq, s.A, s.D, D, rows, stream), dk(b.dk, s.G, s.D, D, keys, stream),
      dv(b.dv, s.G, s.value_dim(), D, keys, stream);
  if (b.add_dq) dq.read();
  if (b.add_dkv) dk.read(), dv.read();
  AttentionBackward padded = b;
  padded.shape.D = D, padded.shape.Dv = 0;
  padded.q = q.view(), padded.k = k.view(), padded.v = v.view();
  padded.out = out.view(), padded.dout = dout.view();
  padded.dq = dq.get(), padded.dk = dk.get(), padded.dv = dv.get();
  run(padded, stream);
  for (const PaddedHeads* gradient : {&dq, &dk, &dv}) gradient->write();
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
  if (f.shape.value_dim() != f.shape.D) return run_padded(f, stream);
  tensor_cores_can(f) ? attention_on_tensor_cores(f, stream) : attention_plain(f, stream);
}

void run(const AttentionBackward& b, CUstream_st* stream) {
  check(b.shape);
  const AttentionShape& s = b.shape;
  if (s.B == 0) return;
  MT_CHECK(s.own_kernels || (!b.dqk_amax && !b.dv_amax), "attention: cuDNN finds no maximum");
  if (!s.own_kernels && attention_by_cudnn(b, stream)) return;
  if (s.value_dim() != s.D) return run_padded(b, stream);
  const Scratch<float> delta(s.B * s.A * s.Sq, stream);
  if (s.Sq > 0) attention_delta(b, delta.get(), stream);
  if (tensor_cores_can(b))
    attention_on_tensor_cores(b, delta.get(), stream);
  else
    attention_plain(b, delta.get(), stream);
}

}  // namespace mtrain::kernels::cuda
