#include <catch2/catch.hpp>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "attention_reference.h"
#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/attention_merge.h"
#include "kernels/cpu/matmul_backend.h"
#include "test/support/kernels_testing.h"

namespace kernels_attention_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

using Case = AttentionCase;
using Reference = AttentionReference;

AttentionShape shape_of(const Case& c, const Array& cu_seqlens) {
  const int32_t* bound = ConstSpan(cu_seqlens).as<int32_t>();
  const int64_t n = cu_seqlens.size() - 1;
  DocumentRows documents;
  if (n > 0) documents = {{bound, n, DType::i32}, {bound + 1, n, DType::i32}};
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
          .scale = c.scale_of(),
          .cap = float(c.cap)};
}

// Operands inside wider rows, like the parts of a fused qkv. Results, too, so that writes between
// them show.
struct Run {
  static constexpr int64_t kGap = 8;
  Array q, k, v, dout, out, lse, dq, dk, dv;
  int64_t q_stride, k_stride, v_stride, out_stride;

  // `change` may change operands before they are used.
  Run(const Case& c, DType type, Bf16Arithmetic bf16 = Bf16Arithmetic::widened,
      const std::function<void(Run&)>& change = {})
      : q(Array::normal(type, c.B * c.Sq * (c.A * c.D + kGap), 1)),
        k(Array::normal(type, c.B * c.Skv * (c.G * c.D + kGap), 2)),
        v(Array::normal(type, c.B * c.Skv * (c.G * c.value_dim() + kGap), 3)),
        dout(Array::normal(type, c.B * c.Sq * (c.A * c.value_dim() + kGap), 4)),
        out(type, dout.size()),
        lse(DType::f32, c.B * c.A * c.Sq),
        dq(type, q.size()),
        dk(type, k.size()),
        dv(type, v.size()),
        q_stride(c.A * c.D + kGap),
        k_stride(c.G * c.D + kGap),
        v_stride(c.G * c.value_dim() + kGap),
        out_stride(c.A * c.value_dim() + kGap) {
    if (change) change(*this);
    const Array cu = Array::ids(c.cu_seqlens);
    const AttentionShape shape = shape_of(c, cu);
    cpu::run(AttentionForward{.shape = shape,
                              .q = {q, q_stride},
                              .k = {k, k_stride},
                              .v = {v, v_stride},
                              .out = {out, out_stride},
                              .lse = lse,
                              .bf16 = bf16});
    cpu::run(AttentionBackward{.shape = shape,
                               .q = {q, q_stride},
                               .k = {k, k_stride},
                               .v = {v, v_stride},
                               .out = {out, out_stride},
                               .dout = {dout, out_stride},
                               .lse = lse,
                               .dq = {dq, q_stride},
                               .dk = {dk, k_stride},
                               .dv = {dv, v_stride},
                               .bf16 = bf16});
  }
  // Returns the elements without the gaps; `written` checks that nothing was written into the gaps.
  static Array dense(const Array& x, int64_t stride, bool written) {
    std::vector<double> values;
    for (int64_t t = 0; t * stride < x.size(); ++t)
      for (int64_t i = 0; i < stride; ++i)
        if (i < stride - kGap)
          values.push_back(x[t * stride + i]);
        else if (written)
          REQUIRE(x[t * stride + i] == 0);
    return Array(x.dtype(), values);
  }
};

void check(const Case& c, DType type, Closeness& close,
           Bf16Arithmetic bf16 = Bf16Arithmetic::widened) {
  INFO(c.name << " " << dtype_name(type) << " B " << c.B << " Sq " << c.Sq << " Skv " << c.Skv
              << " A " << c.A << " G " << c.G << " D " << c.D);
  Run r(c, type, bf16);
  const Reference ref(c, Run::dense(r.q, r.q_stride, false).values(),
                      Run::dense(r.k, r.k_stride, false).values(),
                      Run::dense(r.v, r.v_stride, false).values(),
                      Run::dense(r.dout, r.out_stride, false).values());
  // Operands are normal of deviation 1. A probability carries the error of its score, a sum of D
  // products whose running value stays below 4 after the scale; sums over keys weighted by
  // probabilities are of size 1 (out), those over rows and their differences (gradients of scores,
  // times a value) up to 8.
  // A larger scale makes scores larger, and therefore their errors and gradients.
  const double D = double(std::max(c.D, c.value_dim())), rows = double(c.Sq * c.A / c.G),
               size = std::max(1.0, double(c.scale_of()) * std::sqrt(double(c.D)));
  const auto rule = [&](double terms, double scale) {
    return Rule{.dtype = type, .K = terms, .scale = scale, .sums = DType::f32};
  };
  // In bf16 the backward reads out as it was rounded: delta is off by eps(bf16) times a sum over D
  // of size 1 after the scale, in every row, and so is each term p ds k of dq (k below 4; the p of
  // a row add up to 1) and p ds q of dk (a key has as many rows as heads share it).
  // Tiles also round p and ds to bf16, each off by at most eps(bf16) / 2 of itself. Of out, where
  // the p of a row add up to 1 and v is below 4, that is eps(bf16) * 2. Of dv it is as much times
  // the root of a key's sum of p^2 over rows, below 4 for each head: the first row has 1, row i
  // about 1 / i^2, and a row that sees few keys of its own up to 1. Of dq and dk it is half of what
  // delta's rounding may add, since a ds is p times a number below 4 after the scale.
  const bool tiles = bf16 == Bf16Arithmetic::tiles;
  const auto gradient = [&](double terms, double heads) {
    return type == DType::f32
               ? rule(terms, 8 * size)
               : Rule{.dtype = type, .K = heads, .scale = (tiles ? 6.0 : 4.0) * size, .sums = type};
  };
  const auto rounded = [&](double terms) {
    return Rule{.dtype = type, .K = terms, .scale = 2, .sums = type};
  };
  REQUIRE(close(Run::dense(r.out, r.out_stride, true), ref.out,
                tiles ? rounded(1) : rule(D, 4 * size)) == "");
  for (int64_t i = 0; i < r.lse.size(); ++i)
    if (std::isinf(ref.lse[size_t(i)]))
      REQUIRE(r.lse[i] == ref.lse[size_t(i)]);
    else
      REQUIRE(std::abs(r.lse[i] - ref.lse[size_t(i)]) <=
              eps(DType::f32) * (4 + std::abs(ref.lse[size_t(i)])) * 4);
  REQUIRE(close(Run::dense(r.dv, r.v_stride, true), ref.dv,
                tiles ? rounded(4 * double(c.A / c.G)) : rule(D + rows, 8 * size)) == "");
  REQUIRE(close(Run::dense(r.dq, r.q_stride, true), ref.dq, gradient(D, 1)) == "");
  REQUIRE(close(Run::dense(r.dk, r.k_stride, true), ref.dk,
                gradient(D + rows, double(c.A / c.G))) == "");
  for (const Array* x : {&r.out, &r.lse, &r.dq, &r.dk, &r.dv}) REQUIRE(x->margin_untouched());
}

const std::vector<Case> kCases = {
    {"one", 1, 1, 1, 1, 1, 64},
    {"seven", 2, 7, 7, 4, 2, 32},
    {"square", 2, 64, 64, 2, 2, 64},
    {"grouped", 1, 130, 130, 8, 2, 80},
    {"several blocks", 1, 257, 257, 2, 1, 128},
    {"many blocks", 1, 600, 600, 1, 1, 16},
    {"odd head", 2, 33, 33, 3, 1, 37},
    {"tiny head", 1, 40, 40, 2, 2, 3},
    {"large head", 1, 70, 70, 1, 1, 300},
    {"all keys", 2, 130, 130, 2, 1, 64, false},
    {"more keys, all", 2, 30, 290, 4, 2, 32, false},
    {"more keys", 1, 64, 257, 2, 2, 64, true, 193},
    {"keys of an earlier block", 1, 64, 64, 2, 1, 64, true, 64},
    {"some rows see nothing", 1, 130, 64, 2, 1, 64, true, -50},
    {"no row sees a key", 1, 20, 20, 2, 1, 32, true, -20},
    {"window", 2, 257, 257, 2, 1, 32, true, 0, 40},
    {"window of one", 1, 70, 70, 1, 1, 64, true, 0, 1},
    {"window beyond the keys", 1, 70, 40, 1, 1, 64, true, 40, 30},
    {"documents", 1, 257, 257, 4, 2, 64, true, 0, 0, {0, 1, 100, 100, 131, 257}},
    {"documents, all keys", 1, 130, 130, 2, 1, 32, false, 0, 0, {0, 64, 130}},
    {"documents and window", 1, 257, 257, 2, 1, 32, true, 0, 20, {0, 50, 250, 257}},
    // Panels of queries whose document begins beyond the block of keys that other rows still see.
    {"a document from within a block", 1, 384, 384, 2, 1, 32, true, 0, 0, {0, 306, 384}},
    {"a short document at the end", 1, 2100, 2100, 1, 1, 16, true, 0, 0, {0, 2000, 2100}},
    {"another scale", 1, 70, 70, 4, 2, 32, true, 0, 0, {}, 0, 0.0625},
    // Most scores lie far within a cap, about at it, and beyond.
    {"a high cap", 1, 130, 130, 2, 1, 37, true, 0, 0, {}, 50},
    {"a cap", 2, 130, 130, 4, 2, 64, true, 0, 0, {}, 1.5},
    {"a low cap, another scale", 1, 257, 257, 2, 2, 32, true, 0, 0, {}, 0.5, 0.375},
    {"a cap and a window", 1, 257, 257, 4, 2, 32, true, 0, 40, {}, 2, 0.375},
    {"a cap, more keys, all", 2, 30, 290, 4, 2, 80, false, 0, 0, {}, 1},
    {"a cap, some rows see nothing", 1, 130, 64, 2, 1, 64, true, -50, 0, {}, 1},
    {"a cap over documents", 1, 257, 257, 4, 2, 64, true, 0, 20, {0, 1, 100, 100, 131, 257}, 1},
    // Rows whose keys begin within a later block, or that see a part of one.
    {"window, several blocks", 1, 600, 600, 2, 1, 64, true, 0, 300},
    {"a cap, a window and documents, several blocks",
     1,
     600,
     600,
     4,
     2,
     32,
     true,
     0,
     300,
     {0, 10, 290, 600},
     1},
    // Values with heads of another size, as in latent attention.
    {"narrow values, window, several blocks", 1, 600, 600, 1, 1, 192, true, 0, 300, {}, 0, 0, 128},
    {"narrow values", 2, 257, 257, 2, 2, 192, true, 0, 0, {}, 0, 0, 128},
    {"narrow values, shared", 1, 130, 130, 6, 2, 48, true, 0, 0, {}, 0, 0, 32},
    {"odd narrow values", 2, 70, 70, 3, 3, 37, true, 0, 0, {}, 0, 0, 5},
    {"wide values", 2, 130, 130, 4, 2, 24, true, 0, 0, {}, 0, 0, 80},
    {"narrow values, more keys, all", 2, 30, 290, 2, 2, 96, false, 0, 0, {}, 0, 0, 64},
    {"narrow values, an earlier block", 1, 64, 130, 2, 1, 40, true, 64, 0, {}, 0, 0, 16},
    {"narrow values, no row sees a key", 1, 20, 20, 2, 1, 48, true, -20, 0, {}, 0, 0, 16},
    {"narrow values, window and documents",
     1,
     257,
     257,
     2,
     2,
     48,
     true,
     0,
     20,
     {0, 50, 250, 257},
     0,
     0,
     32},
    {"narrow values, a cap", 1, 257, 257, 2, 2, 48, true, 0, 0, {}, 1.5, 0, 32}};

}  // namespace

TEST_CASE(
    "attention: forward and backward agree with float64, every mask, type and instruction set") {
  ThreadPool pool(2);
  const ThreadPool::Scope scope(&pool);
  for_each_isa([&](const char* isa) {
    for (DType type : kFloats) {
      Closeness close(fmt::format("attention {} {}", isa, dtype_name(type)));
      for (const Case& c : kCases) check(c, type, close);
    }
  });
}

TEST_CASE(
    "attention on tiles: agrees with float64, and any number of threads gives the same bits") {
  if (!cpu::supports(Bf16Arithmetic::tiles)) return;
  const auto tiles = Bf16Arithmetic::tiles;
  Closeness close("attention on tiles");
  for (const Case& c : kCases) {
    INFO(c.name);
    const Run alone(c, DType::bf16, tiles);
    {
      ThreadPool pool(2);
      const ThreadPool::Scope scope(&pool);
      check(c, DType::bf16, close, tiles);
    }
    for (int threads : {2, 5}) {
      ThreadPool pool(threads);
      const ThreadPool::Scope scope(&pool);
      const Run many(c, DType::bf16, tiles);
      REQUIRE((many.out == alone.out && many.lse == alone.lse));
      REQUIRE((many.dq == alone.dq && many.dk == alone.dk && many.dv == alone.dv));
    }
  }
}

TEST_CASE("attention on tiles: fp32 results, adding to gradients, and NaN") {
  if (!cpu::supports(Bf16Arithmetic::tiles)) return;
  const Case c{"grouped", 1, 70, 70, 4, 2, 37};
  const Run plain(c, DType::bf16, Bf16Arithmetic::tiles);
  const Array no_documents = Array::ids({0});
  const AttentionShape shape = shape_of(c, no_documents);
  Array out(DType::f32, plain.out.size()), lse(DType::f32, plain.lse.size());
  AttentionForward f{.shape = shape,
                     .q = {plain.q, plain.q_stride},
                     .k = {plain.k, plain.k_stride},
                     .v = {plain.v, plain.k_stride},
                     .out = {out, plain.q_stride},
                     .lse = lse,
                     .bf16 = Bf16Arithmetic::tiles};
  cpu::run(f);
  REQUIRE(lse == plain.lse);
  REQUIRE(Array(DType::bf16, out.values()) == plain.out);

  Array dq = Array::normal(DType::f32, plain.dq.size(), 5),
        dk = Array::normal(DType::f32, plain.dk.size(), 6);
  Array dv = Array::normal(DType::f32, plain.dv.size(), 7);
  const Array dq0 = dq, dk0 = dk, dv0 = dv;
  cpu::run(AttentionBackward{.shape = shape,
                             .q = {plain.q, plain.q_stride},
                             .k = {plain.k, plain.k_stride},
                             .v = {plain.v, plain.k_stride},
                             .out = {plain.out, plain.q_stride},
                             .dout = {plain.dout, plain.q_stride},
                             .lse = plain.lse,
                             .dq = {dq, plain.q_stride},
                             .dk = {dk, plain.k_stride},
                             .dv = {dv, plain.k_stride},
                             .add_dq = true,
                             .add_dkv = true,
                             .bf16 = Bf16Arithmetic::tiles});
  const auto added = [&](const Array& now, const Array& before, const Array& alone, int64_t width) {
    for (int64_t i = 0; i < now.size(); ++i)
      if (i % (width + Run::kGap) < width)
        // The rounding of the added result to bf16, and that of the sum.
        REQUIRE(std::abs(now[i] - before[i] - alone[i]) <=
                eps(DType::bf16) / 2 * std::abs(alone[i]) + 4 * eps(DType::f32) * 8);
      else
        REQUIRE(now[i] == before[i]);
  };
  added(dq, dq0, plain.dq, c.A * c.D);
  added(dk, dk0, plain.dk, c.G * c.D);
  added(dv, dv0, plain.dv, c.G * c.D);

  Array q = plain.q;
  q.set(20 * plain.q_stride + 3, NAN);
  f.q = {q, plain.q_stride};
  cpu::run(f);
  REQUIRE((std::isnan(out[20 * plain.q_stride]) && std::isnan(lse[20])));
  REQUIRE((!std::isnan(out[19 * plain.q_stride]) && !std::isnan(out[21 * plain.q_stride])));
}

TEST_CASE("attention: the backward is the slope of the forward") {
  const double cap = GENERATE(0.0, 0.7), scale = cap > 0 ? 0.8 : 0.0;
  const int64_t window = cap > 0 ? 3 : 0;
  const Case c{"small", 1, 5, 6, 2, 1, 4, true, 1, window, {}, cap, scale};
  const auto q = Array::normal(DType::f64, c.Sq * c.A * c.D, 1).values();
  const auto k = Array::normal(DType::f64, c.Skv * c.G * c.D, 2).values();
  const auto v = Array::normal(DType::f64, c.Skv * c.G * c.D, 3).values();
  const auto dout = Array::normal(DType::f64, c.Sq * c.A * c.D, 4).values();
  const auto loss = [&](const auto& at_q, const auto& at_k, const auto& at_v) {
    const Reference moved(c, at_q, at_k, at_v, dout);
    double sum = 0;
    for (size_t i = 0; i < dout.size(); ++i) sum += moved.out[i] * dout[i];
    return sum;
  };
  // The reference of the other tests is itself compared with differences of its forward.
  const Reference r(c, q, k, v, dout);
  const Rule rule{.dtype = DType::f32, .K = 1, .scale = 1};
  Closeness close("attention, finite differences");
  REQUIRE(close(Array(DType::f64, r.dq),
                finite_difference(q, [&](const auto& x) { return loss(x, k, v); }), rule) == "");
  REQUIRE(close(Array(DType::f64, r.dk),
                finite_difference(k, [&](const auto& x) { return loss(q, x, v); }), rule) == "");
  REQUIRE(close(Array(DType::f64, r.dv),
                finite_difference(v, [&](const auto& x) { return loss(q, k, x); }), rule) == "");
}

TEST_CASE("attention: any number of threads gives the same bits") {
  for (const Case& c :
       {Case{"grouped", 2, 300, 300, 4, 2, 64}, Case{"all", 1, 130, 290, 2, 2, 80, false},
        Case{"capped", 1, 300, 300, 4, 2, 64, true, 0, 70, {}, 1},
        Case{"narrow values", 1, 600, 600, 2, 2, 48, true, 0, 0, {}, 0, 0, 32},
        Case{"documents", 1, 600, 600, 4, 1, 32, true, 0, 0, {0, 290, 600}}})
    for (DType type : kFloats) {
      const Run alone(c, type);
      for (int threads : {2, 3}) {
        ThreadPool pool(threads);
        const ThreadPool::Scope scope(&pool);
        const Run many(c, type);
        REQUIRE(many.out == alone.out);
        REQUIRE(many.lse == alone.lse);
        REQUIRE(many.dq == alone.dq);
        REQUIRE(many.dk == alone.dk);
        REQUIRE(many.dv == alone.dv);
      }
    }
}

TEST_CASE("attention: any number of threads gives the same bits of operands that are not finite") {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto check_threads = [&](const Case& c, DType type, Bf16Arithmetic bf16) {
    for (const double value : {double(NAN), infinity, -infinity})
      for (const auto& [name, operand] :
           {std::pair{"q", &Run::q}, {"k", &Run::k}, {"v", &Run::v}, {"dout", &Run::dout}}) {
        INFO(c.name << " " << dtype_name(type) << " " << name << " " << value);
        const auto change = [&, operand = operand](Run& run) {
          Array& x = run.*operand;
          // A full row, and one element of another row.
          const int64_t stride = x.size() / (c.B * c.Sq);
          for (int64_t i = 0; i < stride - Run::kGap; ++i) x.set(137 * c.B * stride + i, value);
          x.set(205 * c.B * stride + 3, value);
        };
        const Run alone(c, type, bf16, change);
        for (int threads : {2, 3}) {
          INFO(threads << " threads");
          ThreadPool pool(threads);
          const ThreadPool::Scope scope(&pool);
          const Run many(c, type, bf16, change);
          REQUIRE(many.out == alone.out);
          REQUIRE(many.lse == alone.lse);
          REQUIRE(many.dq == alone.dq);
          REQUIRE(many.dk == alone.dk);
          REQUIRE(many.dv == alone.dv);
        }
      }
  };
  // More rows than a thread's task has, if there are several threads.
  for (const Case& c :
       {Case{"causal", 1, 300, 300, 2, 1, 20}, Case{"window", 2, 280, 280, 1, 1, 16, true, 0, 40},
        Case{"capped", 1, 300, 300, 1, 1, 16, true, 0, 0, {}, 1},
        Case{"documents", 1, 300, 300, 1, 1, 16, true, 0, 0, {0, 110, 201, 300}}}) {
    for_each_isa([&](const char* isa) {
      INFO(isa);
      check_threads(c, DType::f32, Bf16Arithmetic::widened);
    });
    check_threads(c, DType::bf16, Bf16Arithmetic::widened);
    if (cpu::supports(Bf16Arithmetic::tiles)) check_threads(c, DType::bf16, Bf16Arithmetic::tiles);
  }
}

TEST_CASE("attention: a NaN among the operands stays visible") {
  // NaN with a payload, too, which unwritten memory may hold: its low bits must not be used as the
  // integer that 2^x reads from them.
  const double nan = GENERATE(std::bit_cast<double>(0x7ff8000000000000),
                              std::bit_cast<double>(0x7ff8000000000000 | (uint64_t(0x123) << 29)));
  const float cap = GENERATE(0.0f, 2.0f);
  for_each_isa([&](const char* isa) {
    INFO(isa << " cap " << cap);
    Array q = Array::normal(DType::f32, 40 * 16, 1), k = Array::normal(DType::f32, 40 * 16, 2);
    Array out(DType::f32, 40 * 16), lse(DType::f32, 40);
    q.set(20 * 16 + 3, nan);
    cpu::run(AttentionForward{
        .shape = {.B = 1, .Sq = 40, .Skv = 40, .A = 1, .G = 1, .D = 16, .scale = 0.25f, .cap = cap},
        .q = {q, 16},
        .k = {k, 16},
        .v = {k, 16},
        .out = {out, 16},
        .lse = lse});
    REQUIRE(std::isnan(out[20 * 16]));
    REQUIRE(std::isnan(lse[20]));
    REQUIRE(!std::isnan(out[19 * 16]));
    REQUIRE(!std::isnan(out[21 * 16]));
  });
}

TEST_CASE("attention merge: the definition in float64, also where either side saw no key") {
  ThreadPool pool(2);
  const ThreadPool::Scope scope(&pool);
  const double inf = std::numeric_limits<double>::infinity();
  for (DType type : kFloats) {
    Closeness close(fmt::format("attention merge {}", dtype_name(type)));
    for (int64_t D : {3, 64, 100}) {
      const int64_t B = 2, S = 300, A = 3, first = 7, whole = S + 20, N = A * D;
      const Array block_out = Array::normal(type, S * B * N, 1);
      Array block_lse = Array::normal(DType::f32, B * A * S, 2, 4);
      const Array out_before = Array::normal(DType::f32, S * B * N, 3);
      Array lse_before = Array::normal(DType::f32, B * A * whole, 4, 4);
      for (int64_t h = 0; h < B * A; ++h) {
        const double pairs[][2] = {{-inf, 1}, {1, -inf}, {-inf, -inf}, {200, -200}, {-200, 200}};
        for (int64_t i = 0; i < 5; ++i) {
          block_lse.set(h * S + i, pairs[i][0]);
          lse_before.set(h * whole + first + i, pairs[i][1]);
        }
        block_lse.set(h * S + 6, 1);
      }
      std::vector<double> want_out = out_before.values(), want_lse = lse_before.values();
      for (int64_t h = 0; h < B * A; ++h)
        for (int64_t s = 0; s < S; ++s) {
          const double block = block_lse[h * S + s];
          double& lse = want_lse[size_t(h * whole + first + s)];
          if (block == -inf) continue;
          const double top = std::max(block, lse);
          const double sum = top + std::log(std::exp(block - top) + std::exp(lse - top));
          for (int64_t d = 0; d < D; ++d) {
            const int64_t i = ((s * B + h / A) * A + h % A) * D + d;
            want_out[size_t(i)] =
                want_out[size_t(i)] * std::exp(lse - sum) + block_out[i] * std::exp(block - sum);
          }
          lse = sum;
        }
      for_each_isa([&](const char* isa) {
        INFO(isa << " D " << D);
        Array out = out_before, lse = lse_before;
        cpu::run(
            AttentionMerge{.block_out_TN = block_out,
                           .block_lse = block_lse,
                           .out_TN = out,
                           .lse = {lse.span().as<float>() + first, lse.size() - first, DType::f32},
                           .B = B,
                           .S = S,
                           .A = A,
                           .D = D,
                           .lse_stride = whole});
        // A weight carries the relative error of a difference of two numbers of up to 16.
        REQUIRE(close(out, want_out, {.K = 1, .scale = 16}) == "");
        for (int64_t i = 0; i < lse.size(); ++i)
          if (std::isinf(want_lse[size_t(i)]))
            REQUIRE(lse[i] == want_lse[size_t(i)]);
          else
            REQUIRE(std::abs(lse[i] - want_lse[size_t(i)]) <=
                    eps(DType::f32) * (4 + std::abs(want_lse[size_t(i)])));
        REQUIRE((out.margin_untouched() && lse.margin_untouched()));
        block_lse.set(6, NAN);
        Array bad_out = out_before, bad_lse = lse_before;
        cpu::run(AttentionMerge{
            .block_out_TN = block_out,
            .block_lse = block_lse,
            .out_TN = bad_out,
            .lse = {bad_lse.span().as<float>() + first, bad_lse.size() - first, DType::f32},
            .B = B,
            .S = S,
            .A = A,
            .D = D,
            .lse_stride = whole});
        REQUIRE((std::isnan(bad_lse[first + 6]) && std::isnan(bad_out[6 * B * N])));
        block_lse.set(6, 1);
      });
    }
  }
}

TEST_CASE("attention: arguments that cannot be right are refused") {
  Array x(DType::f32, 64), lse(DType::f32, 4);
  const Array begin = Array::ids({0}), end = Array::ids({3});
  AttentionForward f{.shape = {.B = 1, .Sq = 4, .Skv = 4, .A = 1, .G = 1, .D = 16, .scale = 1},
                     .q = {x, 16},
                     .k = {x, 16},
                     .v = {x, 16},
                     .out = {x, 16},
                     .lse = lse};
  f.shape.q_documents = f.shape.kv_documents = {begin, end};  // the last row belongs to no document
  REQUIRE_THROWS_AS(cpu::run(f), BugError);
  f.shape.document_gaps = true;
  REQUIRE_NOTHROW(cpu::run(f));
  const Array late = Array::ids({5});
  f.shape.kv_documents = {begin, late};
  REQUIRE_THROWS_AS(cpu::run(f), BugError);
  f.shape.kv_documents = {begin, ConstSpan{}};
  REQUIRE_THROWS_AS(cpu::run(f), BugError);
  f.shape.q_documents = f.shape.kv_documents = {};
  f.shape.lse_stride = 3;
  REQUIRE_THROWS_AS(cpu::run(f), BugError);
  f.shape.lse_stride = 0;
  f.shape.Skv = 5;
  REQUIRE_THROWS_AS(cpu::run(f), BugError);
}

}  // namespace kernels_attention_test
