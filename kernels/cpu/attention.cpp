#include "kernels/attention.h"

#include <algorithm>

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"
#include "kernels/cpu/float8_result.h"
#include "kernels/cpu/matmul_backend.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_scratch.h"

namespace mtrain::kernels::cpu {

#ifdef MTRAIN_HAS_AVX512AMX
namespace avx512amx {
void run(const AttentionForward&);
void run(const AttentionBackward&);
}  // namespace avx512amx
#endif

namespace {

void check_documents(const char* op, const char* name, const DocumentRows& d, int64_t n,
                     int64_t rows, const AttentionShape& s) {
  const bool gaps = s.document_gaps;
  check(op, name, d.begin, n, DType::i32);
  check(op, name, d.end, n, DType::i32);
  int32_t before = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t begin = d.begin.as<int32_t>()[i], end = d.end.as<int32_t>()[i];
    MT_CHECK((gaps ? before <= begin : before == begin) && begin <= end && end <= rows,
             "{}: {}[{}] is [{}, {}) after {}, of {}", op, name, i, begin, end, before, rows);
    MT_CHECK(s.longest_document == 0 || end - begin <= s.longest_document,
             "{}: {}[{}] has {} rows, but the longest document {}", op, name, i, end - begin,
             s.longest_document);
    before = end;
  }
  MT_CHECK(gaps || before == rows, "{}: {} end at {}, rows at {}", op, name, before, rows);
}

void check_shape(const AttentionShape& s, const char* op) {
  MT_CHECK(s.B >= 0 && s.Sq >= 0 && s.Skv >= 0 && s.A > 0 && s.G > 0 && s.D > 0 && s.Dv >= 0 &&
               s.A % s.G == 0,
           "{}: B {} Sq {} Skv {} A {} G {} D {} Dv {}", op, s.B, s.Sq, s.Skv, s.A, s.G, s.D, s.Dv);
  MT_CHECK(s.window >= 0 && s.cap >= 0, "{}: window {} cap {}", op, s.window, s.cap);
  MT_CHECK(s.lse_stride == 0 || s.lse_stride >= s.Sq, "{}: lse has {} elements a head, rows {}", op,
           s.lse_stride, s.Sq);
  if (!s.q_documents.begin) return;
  MT_CHECK(s.B == 1 && s.q_start == 0, "{}: documents with B {} q_start {}", op, s.B, s.q_start);
  check_documents(op, "q_documents", s.q_documents, s.q_documents.begin.count, s.Sq, s);
  check_documents(op, "kv_documents", s.kv_documents, s.q_documents.begin.count, s.Skv, s);
}

int64_t lse_count(const AttentionShape& s) {
  return s.B * s.Sq == 0 ? 0 : (s.B * s.A - 1) * (s.lse_stride ? s.lse_stride : s.Sq) + s.Sq;
}

void check_view(const char* op, const char* name, const ConstSpan& data, int64_t stride,
                int64_t rows, int64_t width, DType dtype) {
  MT_CHECK(stride >= width, "{}: {} has {} elements between tokens of {}", op, name, stride, width);
  check(op, name, data, rows > 0 ? (rows - 1) * stride + width : 0, dtype);
}

// Results that are added to other sums may be fp32 although the operands are bf16 or fp16.
void check_wide(const char* op, const char* name, const HeadSpan& view, int64_t rows, int64_t width,
                DType dtype) {
  const bool wide = view.data.dtype == DType::f32;
  check_view(op, name, view.data, view.token_stride, rows, width, wide ? DType::f32 : dtype);
}

void check_forward(const AttentionForward& f) {
  const AttentionShape& s = f.shape;
  const char* op = "attention";
  check_shape(s, op);
  const DType dtype = f.q.data.dtype;
  MT_CHECK(is_float(dtype), "{}: q is {}", op, dtype_name(dtype));
  check_view(op, "q", f.q.data, f.q.token_stride, s.B * s.Sq, s.A * s.D, dtype);
  check_view(op, "k", f.k.data, f.k.token_stride, s.B * s.Skv, s.G * s.D, dtype);
  check_view(op, "v", f.v.data, f.v.token_stride, s.B * s.Skv, s.G * s.value_dim(), dtype);
  check_wide(op, "out", f.out, s.B * s.Sq, s.A * s.value_dim(), dtype);
  check(op, "lse", f.lse, lse_count(s), DType::f32);
  if (f.amax) check(op, "amax", f.amax, 1, DType::f32);
  MT_CHECK((!f.amax && !f.quantized) || f.out.data.dtype == dtype, "{}: out is {}", op,
           dtype_name(f.out.data.dtype));
  if (!f.quantized) return;
  check_result(op, "the 8-bit out", f.quantized, s.B * s.Sq * s.A * s.value_dim(), dtype, f.scale);
  MT_CHECK(f.scale && f.out.token_stride == s.A * s.value_dim(),
           "{}: an 8-bit out needs a scale and contiguous rows", op);
}

void check_backward(const AttentionBackward& b) {
  const AttentionShape& s = b.shape;
  const char* op = "attention backward";
  check_shape(s, op);
  const DType dtype = b.q.data.dtype;
  MT_CHECK(is_float(dtype), "{}: q is {}", op, dtype_name(dtype));
  check_view(op, "q", b.q.data, b.q.token_stride, s.B * s.Sq, s.A * s.D, dtype);
  check_view(op, "k", b.k.data, b.k.token_stride, s.B * s.Skv, s.G * s.D, dtype);
  check_view(op, "v", b.v.data, b.v.token_stride, s.B * s.Skv, s.G * s.value_dim(), dtype);
  for (const auto& [name, view] : {std::pair{"out", b.out}, {"dout", b.dout}})
    check_view(op, name, view.data, view.token_stride, s.B * s.Sq, s.A * s.value_dim(), dtype);
  check_wide(op, "dq", b.dq, s.B * s.Sq, s.A * s.D, dtype);
  check_wide(op, "dk", b.dk, s.B * s.Skv, s.G * s.D, dtype);
  check_wide(op, "dv", b.dv, s.B * s.Skv, s.G * s.value_dim(), dtype);
  MT_CHECK(b.dk.data.dtype == b.dv.data.dtype, "{}: dk is {}, dv {}", op,
           dtype_name(b.dk.data.dtype), dtype_name(b.dv.data.dtype));
  check(op, "lse", b.lse, lse_count(s), DType::f32);
  for (const Span& amax : {b.dqk_amax, b.dv_amax})
    if (amax) check(op, "amax", amax, 1, DType::f32);
  MT_CHECK((!b.dqk_amax && !b.dv_amax) ||
               (b.dq.data.dtype == dtype && b.dk.data.dtype == dtype && !b.add_dq && !b.add_dkv),
           "{}: a maximum of gradients that are added to, or are {}", op,
           dtype_name(b.dq.data.dtype));
}

// If the call requests an amax or an 8-bit result, computes the float result and then these in
// separate passes. Returns false if it does not.
bool with_extras(const AttentionForward& f) {
  if (!f.amax && !f.quantized) return false;
  const AttentionShape& s = f.shape;
  AttentionForward args = f;
  args.amax = {}, args.quantized = {}, args.scale = {};
  run(args);
  if (f.quantized)
    run(Quantize{.x_TN = f.out.data,
                 .scale = f.scale,
                 .y_TN = f.quantized,
                 .amax = f.amax,
                 .T = s.B * s.Sq,
                 .N = s.A * s.value_dim()});
  else
    raise_amax(f.amax, f.out.data, s.B * s.Sq, s.A * s.value_dim(), f.out.token_stride);
  return true;
}
bool with_extras(const AttentionBackward& b) {
  if (!b.dqk_amax && !b.dv_amax) return false;
  const AttentionShape& s = b.shape;
  AttentionBackward args = b;
  args.dqk_amax = {}, args.dv_amax = {};
  run(args);
  raise_amax(b.dqk_amax, b.dq.data, s.B * s.Sq, s.A * s.D, b.dq.token_stride);
  raise_amax(b.dqk_amax, b.dk.data, s.B * s.Skv, s.G * s.D, b.dk.token_stride);
  raise_amax(b.dv_amax, b.dv.data, s.B * s.Skv, s.G * s.value_dim(), b.dv.token_stride);
  return true;
}

// bf16 operands are multiplied by tiles if the run uses tiles for GEMMs. Dot products are not used:
// on CPUs without tiles they gain little for sums as short as a head.
template <class Args>
bool computed_in_another_way(const Args& args) {
  if (with_extras(args)) return true;
  if (args.q.data.dtype != DType::bf16 || args.bf16 != Bf16Arithmetic::tiles) return false;
  MT_CHECK(supports(args.bf16), "this CPU cannot multiply bf16 by tiles");
#ifdef MTRAIN_HAS_AVX512AMX
  avx512amx::run(args);
#endif
  return true;
}

}  // namespace

// Guard values follow the memory. The thread's next call then detects a tile that wrote beyond its
// rows, which would otherwise silently change other numbers.
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

MT_DISPATCH_UNLESS(AttentionForward, check_forward, computed_in_another_way)
MT_DISPATCH_UNLESS(AttentionBackward, check_backward, computed_in_another_way)

}  // namespace mtrain::kernels::cpu
