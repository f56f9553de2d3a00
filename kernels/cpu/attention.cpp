#include "kernels/attention.h"

#include <algorithm>

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_scratch.h"

namespace mtrain::kernels::cpu {
namespace {

void check_shape(const AttentionShape& s, const char* op) {
  MT_CHECK(s.B >= 0 && s.Sq >= 0 && s.Skv >= 0 && s.A > 0 && s.G > 0 && s.D > 0 && s.A % s.G == 0,
           "{}: B {} Sq {} Skv {} A {} G {} D {}", op, s.B, s.Sq, s.Skv, s.A, s.G, s.D);
  MT_CHECK(s.window >= 0, "{}: window {}", op, s.window);
  if (!s.cu_seqlens) return;
  MT_CHECK(s.B == 1 && s.Sq == s.Skv && s.q_start == 0,
           "{}: cu_seqlens with B {} Sq {} Skv {} q_start {}", op, s.B, s.Sq, s.Skv, s.q_start);
  check_dtype(op, "cu_seqlens", s.cu_seqlens, DType::i32);
  const int32_t* bound = s.cu_seqlens.as<int32_t>();
  const int64_t n = s.cu_seqlens.count;
  MT_CHECK(n >= 2 && bound[0] == 0 && bound[n - 1] == s.Sq, "{}: cu_seqlens must rise from 0 to {}",
           op, s.Sq);
  for (int64_t i = 1; i < n; ++i)
    MT_CHECK(bound[i] >= bound[i - 1], "{}: cu_seqlens[{}] = {} after {}", op, i, bound[i],
             bound[i - 1]);
}

void check_view(const char* op, const char* name, const ConstSpan& data, int64_t stride,
                int64_t rows, int64_t width, DType dtype) {
  MT_CHECK(stride >= width, "{}: {} has {} elements between tokens of {}", op, name, stride, width);
  check(op, name, data, rows > 0 ? (rows - 1) * stride + width : 0, dtype);
}

void check_forward(const AttentionForward& f) {
  const AttentionShape& s = f.shape;
  const char* op = "attention";
  check_shape(s, op);
  const DType dtype = f.q.data.dtype;
  MT_CHECK(dtype == DType::f32 || dtype == DType::bf16, "{}: q is {}", op, dtype_name(dtype));
  check_view(op, "q", f.q.data, f.q.token_stride, s.B * s.Sq, s.A * s.D, dtype);
  check_view(op, "k", f.k.data, f.k.token_stride, s.B * s.Skv, s.G * s.D, dtype);
  check_view(op, "v", f.v.data, f.v.token_stride, s.B * s.Skv, s.G * s.D, dtype);
  check_view(op, "out", f.out.data, f.out.token_stride, s.B * s.Sq, s.A * s.D, dtype);
  check(op, "lse", f.lse, s.B * s.A * s.Sq, DType::f32);
}

void check_backward(const AttentionBackward& b) {
  const AttentionShape& s = b.shape;
  const char* op = "attention backward";
  check_shape(s, op);
  const DType dtype = b.q.data.dtype;
  MT_CHECK(dtype == DType::f32 || dtype == DType::bf16, "{}: q is {}", op, dtype_name(dtype));
  for (const auto& [name, view] : {std::pair{"q", b.q}, {"out", b.out}, {"dout", b.dout}})
    check_view(op, name, view.data, view.token_stride, s.B * s.Sq, s.A * s.D, dtype);
  for (const auto& [name, view] : {std::pair{"k", b.k}, {"v", b.v}})
    check_view(op, name, view.data, view.token_stride, s.B * s.Skv, s.G * s.D, dtype);
  check_view(op, "dq", b.dq.data, b.dq.token_stride, s.B * s.Sq, s.A * s.D, dtype);
  check_view(op, "dk", b.dk.data, b.dk.token_stride, s.B * s.Skv, s.G * s.D, dtype);
  check_view(op, "dv", b.dv.data, b.dv.token_stride, s.B * s.Skv, s.G * s.D, dtype);
  check(op, "lse", b.lse, s.B * s.A * s.Sq, DType::f32);
}

}  // namespace

// Guards stand behind what was asked for: a tile that writes beyond its rows is found at the
// thread's next call, where it would otherwise change some other number in silence.
float* thread_scratch(int64_t floats) {
  constexpr int64_t kGuards = 16;
  constexpr float kUntouched = 0x1.badp+100f;
  thread_local Scratch scratch;
  thread_local float* guards = nullptr;
  if (guards)
    MT_CHECK(std::all_of(guards, guards + kGuards, [](float g) { return g == kUntouched; }),
             "attention wrote beyond its scratch memory");
  float* const memory = scratch.floats(size_t(floats + kGuards));
  guards = memory + floats;
  std::fill_n(guards, kGuards, kUntouched);
  return memory;
}

MT_DISPATCH(AttentionForward, check_forward)
MT_DISPATCH(AttentionBackward, check_backward)

}  // namespace mtrain::kernels::cpu
