// Attention as callers ask cuDNN for it, and the work around its plans on the CPU. Both the tests
// of CudnnAttention and those of the frontend's graphs use it.
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/cudnn/attention.h"
#include "test/support/kernels_testing.h"

namespace mtrain::test {

namespace cudnn_testing {

using namespace mtrain::kernels;

struct Case {
  const char* name;
  int64_t B, Sq, Skv, A, G, D;
  bool causal = true;
  int64_t window = 0;
  std::vector<int32_t> borders = {};  // cu_seqlens of packed documents
  int64_t q_start = 0;
  float cap = 0;
  bool wide = false;    // out and gradients are fp32, and gradients are added to
  int64_t lse_gap = 0;  // elements after each head's rows of the lse
  int64_t longest_document = 0;
  int64_t Dv = 0;  // elements of a head of v; 0: D
  int64_t value_dim() const { return Dv > 0 ? Dv : D; }
};

// Elements between the tokens of fused rows, a different number in each tensor.
constexpr int64_t kGap = 8, kQueryGradientGap = 16, kKeyGradientGap = 24, kValueGap = 32,
                  kValueGradientGap = 40, kOutGradientGap = 48;
alignas(16) inline char aligned[32];
inline ConstSpan at(int64_t offset, DType type = DType::bf16) {
  return {aligned + offset, 0, type};
}

// Attention whose operands have the model's layout: q, k and v in one row of a token.
struct Operands {
  Case c;
  Array q, k, v, dout, out;
  Array merged;  // out as the backward reads it, in the operands' type
  Array lse, dq, dk, dv, borders;

  explicit Operands(const Case& of, DType type = DType::bf16)
      : c(of),
        q(Array::normal(type, queries(kGap), 1)),
        k(Array::normal(type, keys(kGap), 2)),
        v(Array::normal(type, c.B * c.Skv * value_row(kValueGap), 3)),
        dout(Array::normal(type, c.B * c.Sq * out_row(kOutGradientGap), 4)),
        out(c.wide ? DType::f32 : type, c.B * c.Sq * out_row(kGap)),
        merged(type, c.B * c.Sq * out_row(kGap)),
        lse(DType::f32, c.B * c.A * (c.Sq + c.lse_gap)),
        dq(c.wide ? DType::f32 : type, queries(kQueryGradientGap)),
        dk(c.wide ? DType::f32 : type, keys(kKeyGradientGap)),
        dv(c.wide ? DType::f32 : type, c.B * c.Skv * value_row(kValueGradientGap)),
        borders(Array::ids(c.borders)) {}
  int64_t query_row(int64_t gap) const { return c.A * c.D + gap; }
  int64_t key_row(int64_t gap) const { return c.G * c.D + gap; }
  int64_t value_row(int64_t gap) const { return c.G * c.value_dim() + gap; }
  int64_t out_row(int64_t gap) const { return c.A * c.value_dim() + gap; }
  int64_t queries(int64_t gap) const { return c.B * c.Sq * query_row(gap); }
  int64_t keys(int64_t gap) const { return c.B * c.Skv * key_row(gap); }

  AttentionShape shape() {
    DocumentRows documents;
    if (!c.borders.empty()) {
      const ConstSpan all = borders;
      const int64_t n = all.count - 1;
      documents = {{all.as<int32_t>(), n, all.dtype}, {all.as<int32_t>() + 1, n, all.dtype}};
    }
    return {.B = c.B,
            .Sq = c.Sq,
            .Skv = c.Skv,
            .A = c.A,
            .G = c.G,
            .D = c.D,
            .Dv = c.Dv,
            .causal = c.causal,
            .q_start = c.q_start,
            .window = c.window,
            .q_documents = documents,
            .kv_documents = documents,
            .longest_document = c.longest_document,
            .scale = 1 / std::sqrt(float(c.D)),
            .cap = c.cap,
            .lse_stride = c.lse_gap > 0 ? c.Sq + c.lse_gap : 0};
  }
  AttentionForward forward() {
    return {.shape = shape(),
            .q = {q, query_row(kGap)},
            .k = {k, key_row(kGap)},
            .v = {v, value_row(kValueGap)},
            .out = {out, out_row(kGap)},
            .lse = lse};
  }
  // Reads the forward's out.
  AttentionBackward backward(bool fixed_order = true) {
    for (int64_t i = 0; i < merged.size(); ++i) merged.set(i, out[i]);
    return {.shape = shape(),
            .q = {q, query_row(kGap)},
            .k = {k, key_row(kGap)},
            .v = {v, value_row(kValueGap)},
            .out = {merged, out_row(kGap)},
            .dout = {dout, out_row(kOutGradientGap)},
            .lse = lse,
            .dq = {dq, query_row(kQueryGradientGap)},
            .dk = {dk, key_row(kKeyGradientGap)},
            .dv = {dv, value_row(kValueGradientGap)},
            .add_dq = c.wide,
            .add_dkv = c.wide,
            .fixed_order = fixed_order};
  }
};

inline int taken = 0;
inline int64_t bytes_taken = 0;  // by all calls
inline int64_t most_taken = 0;   // by one call
inline void* take(size_t bytes, CUstream_st*) {
  ++taken;
  bytes_taken += int64_t(bytes);
  most_taken = std::max(most_taken, int64_t(bytes));
  auto* memory = new std::vector<unsigned char>(bytes + sizeof(void*) + 256, 0xff);
  auto address = (reinterpret_cast<uintptr_t>(memory->data()) + sizeof(void*) + 255) / 256 * 256;
  std::memcpy(reinterpret_cast<void*>(address - sizeof(void*)), &memory, sizeof memory);
  return reinterpret_cast<void*>(address);
}
inline void give(void* memory, CUstream_st*) noexcept {
  --taken;
  std::vector<unsigned char>* whole = nullptr;
  std::memcpy(&whole, static_cast<char*>(memory) - sizeof(void*), sizeof whole);
  delete whole;
}

inline void fill(const cuda::DocumentTable& t, CUstream_st*) {
  for (int64_t d = 0; d <= t.room; ++d) {
    const int32_t begin = d < t.documents ? t.begin[d] : t.end[t.documents - 1];
    if (d < t.room) t.lengths[d] = d < t.documents ? t.end[d] - begin : 0;
    for (int64_t i = 0; i < t.tensors; ++i)
      t.offsets[i * t.pitch + d] = int32_t(begin * t.strides[i]);
  }
}
inline void copy(const CopyBlocks& c, CUstream_st*) { cpu::run(c); }
inline void spread(const cuda::SpreadRows& s, CUstream_st*) {
  with_float(s.to_type, [&]<class To>() {
    with_float(s.from_type, [&]<class From>() {
      for (int64_t row = 0; row < s.rows; ++row)
        for (int64_t i = 0; i < s.columns; ++i) {
          To& to = static_cast<To*>(s.to)[row * s.to_stride + i];
          const float from = float(static_cast<const From*>(s.from)[row * s.from_stride + i]);
          to = To(s.add ? float(to) + from : from);
        }
    });
  });
}

inline bool captures = false, gpu_has_failed = false;
inline bool capturing(CUstream_st*) { return captures; }
inline void require_healthy(CUstream_st*) {
  if (gpu_has_failed) throw RunError("an illegal memory access");
}

inline const cuda::CudnnAttention::Device kDevice{take,   give,      fill,           copy,
                                                  spread, capturing, require_healthy};

inline const std::vector<Case> kCases = {
    {"square", 2, 16, 16, 2, 2, 8},
    {"grouped", 1, 12, 12, 6, 2, 16},
    {"one kv head", 2, 9, 9, 4, 1, 8},
    {"all keys", 2, 7, 7, 2, 1, 8, false},
    {"more keys", 1, 5, 11, 4, 2, 8, false},
    {"more keys, causal", 2, 5, 11, 2, 1, 8},
    {"window", 2, 17, 17, 4, 2, 8, true, 5},
    {"narrow values", 2, 8, 8, 3, 3, 192, true, 0, {}, 0, 0, false, 0, 0, 128}};

// Blocks of keys, as context parallelism asks for them, and capped scores.
inline const std::vector<Case> kBlocks = {
    {"last keys", 2, 6, 14, 4, 2, 8, true, 0, {}, 8},
    {"last keys, same heads", 1, 8, 20, 2, 2, 16, true, 0, {}, 12, 0, true, 4},
    {"last keys, shared heads", 2, 6, 14, 4, 2, 8, true, 0, {}, 8, 0, true, 5},
    {"window", 1, 8, 20, 4, 2, 8, true, 9, {}, 12, 0, true},
    {"short window", 2, 8, 20, 2, 1, 8, true, 3, {}, 12, 0, true, 3},
    {"earlier keys", 2, 10, 5, 4, 2, 8, false, 0, {}, 0, 0, true, 1},
    {"cap", 2, 12, 12, 4, 2, 8, true, 0, {}, 0, 1.5f},
    {"cap, window", 1, 12, 12, 2, 2, 8, true, 5, {}, 0, 1.5f},
    {"cap, all keys", 1, 8, 6, 2, 1, 8, false, 0, {}, 0, 2},
    {"cap, block, window", 1, 8, 20, 4, 2, 8, true, 9, {}, 12, 1.5f, true, 2}};
// cuDNN is used if documents have 128 rows or more on average.
inline const std::vector<Case> kPacks = {
    {"grouped", 1, 256, 256, 2, 1, 16, true, 0, {0, 9, 256}},
    {"an empty one", 1, 256, 256, 1, 1, 16, true, 0, {0, 256, 256}},
    {"window", 1, 256, 256, 1, 1, 16, true, 30, {0, 199, 256}},
    {"all keys", 1, 256, 256, 1, 1, 16, false, 0, {0, 140, 256}},
    {"room for one more", 1, 384, 384, 1, 1, 16, true, 0, {0, 1, 9, 384}},
    {"one document", 1, 128, 128, 2, 2, 16, true, 0, {0, 128}},
    {"half as long", 1, 256, 256, 4, 2, 16, true, 0, {0, 128, 256}, 0, 0, false, 0, 128},
    {"longest of 200", 1, 512, 512, 2, 1, 16, true, 30, {0, 100, 300, 512}, 0, 0, false, 0, 212}};

inline void require_gradients(Operands& got, Operands& want, DType type) {
  static Closeness close("gradients by cuDNN's graphs");
  const Case& c = got.c;
  const Rule sums{.dtype = type, .K = double(c.D + c.A / c.G), .scale = 3};
  REQUIRE(close(got.dq, want.dq.values(), sums) == "");
  REQUIRE(close(got.dk, want.dk.values(), sums) == "");
  REQUIRE(close(got.dv, want.dv.values(), sums) == "");
}

// Runs forward and backward through `attention`, and compares them with the CPU kernels.
inline void compare(cuda::CudnnAttention& attention, const Case& c, bool deterministic,
                    DType type = DType::bf16) {
  static Closeness close("cuDNN's attention");
  Operands got(c, type), want(c, type);
  REQUIRE(attention.run(got.forward(), nullptr));
  cpu::run(want.forward());
  // Probabilities and the scores' gradients are operands of 16 bits; K of them add up to about 1.
  const Rule rule{.dtype = got.out.dtype(), .K = 1, .scale = 1, .sums = type};
  REQUIRE(close(got.out, want.out.values(), rule) == "");
  for (int64_t i = 0; i < want.lse.size(); ++i)  // natural logarithms
    REQUIRE(std::abs(got.lse[i] - want.lse[i]) <= 1e-5 * (4 + std::abs(want.lse[i])));
  if (c.wide)
    for (Operands* o : {&got, &want})
      for (Array* x : {&o->dq, &o->dk, &o->dv})
        for (int64_t i = 0; i < x->size(); ++i) x->set(i, double(i % 7));
  REQUIRE(attention.run(got.backward(deterministic), nullptr));
  cpu::run(want.backward());
  require_gradients(got, want, type);
  // No tensor owns the gaps between tokens.
  REQUIRE((got.dk.margin_untouched() && got.out.margin_untouched()));
  for (int64_t i = got.out_row(0); i < got.out_row(kGap); ++i) REQUIRE(got.out[i] == 0);
}

}  // namespace cudnn_testing

}  // namespace mtrain::test
