// Kernels that write their result in 8 bits give the bits of two passes: the float result, and
// Quantize of that. On the CPU and on the device, one pass is compared with two.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/fp8.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

const std::vector<DType> kFloat8s{DType::f8e4m3, DType::f8e5m2};

// Says where arrays lie and kernels run.
struct OnCpu {
  static Span of(Mirror& m) { return m.host().span(); }
  static Array result(Mirror& m) { return m.host(); }
  template <class Args>
  static void run(const Args& a) {
    cpu::run(a);
  }
};
struct OnDevice {
  static Span of(Mirror& m) { return m.device(); }
  static Array result(Mirror& m) { return m.result(); }
  template <class Args>
  static void run(const Args& a) {
    cuda::run(a, device_stream());
  }
};
template <class Test>
void on_both(const Test& test) {
  test(OnCpu{});
  test(OnDevice{});
}

bool same_bytes(const Array& a, const Array& b) {
  return a.size() == b.size() &&
         std::memcmp(a.span().data, b.span().data, size_t(a.size() * dtype_size(a.dtype()))) == 0;
}

// Random numbers; some overflow the 8 bits, and some are not finite.
Array numbers(DType type, int64_t n, uint64_t seed) {
  Array x = Array::normal(type, n, seed);
  if (n > 40) x.set(3, INFINITY), x.set(7, -INFINITY), x.set(n - 2, NAN);
  return x;
}

// A (T, N) result as floats, in 8 bits by a pass over it, and in 8 bits by its kernel.
struct Result {
  Result(DType type, DType float8, int64_t rows, int64_t columns, int64_t offset, float factor)
      : floats(Array(type, rows * columns), offset),
        apart(Array(float8, rows * columns), offset),
        written(Array(float8, rows * columns), offset),
        scale(Array::one(DType::f32, factor)),
        amax_apart(Array::one(DType::f32, 0.25)),
        amax(Array::one(DType::f32, 0.25)),
        T(rows),
        N(columns) {}
  template <class On>
  void quantize(On on) {
    on.run(Quantize{.x_TN = on.of(floats),
                    .scale = on.of(scale),
                    .y_TN = on.of(apart),
                    .amax = on.of(amax_apart),
                    .T = T,
                    .N = N});
  }
  template <class On>
  void require_same(On on) {
    REQUIRE(same_bytes(on.result(apart), on.result(written)));
    REQUIRE(same_bytes(on.result(amax_apart), on.result(amax)));
  }
  Mirror floats, apart, written, scale, amax_apart, amax;
  int64_t T, N;
};

struct Sizes {
  int64_t T, H;
};
const std::vector<Sizes> kSizes{{1, 8}, {40, 64}, {9, 768}, {3, 1001}, {2, 4104}, {2, 20000}};
constexpr float kScale = 300;  // some of normal numbers are beyond e4m3's range

}  // namespace

TEST_CASE("a norm in 8 bits has the bits of the norm that is quantized") {
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (DType type : kFloats)
      for (const Sizes& s : kSizes)
        for (bool residual : {false, true})
          for_each_way([&](int64_t offset) {
            CAPTURE(s.T, s.H, type, residual, offset);
            const int64_t n = s.T * s.H;
            Mirror x(numbers(type, n, 1), offset), more(Array::normal(type, n, 4), offset),
                sum(Array(type, n), offset), w(Array::normal(type, s.H, 2), offset),
                rstd(Array(DType::f32, s.T));
            Result y(type, DType::f8e4m3, s.T, s.H, offset, kScale);
            on_both([&](auto on) {
              NormForward f{.kind = kind, .x_TH = on.of(x)};
              if (residual) f.residual_TH = on.of(more), f.sum_TH = on.of(sum);
              f.w_H = on.of(w), f.y_TH = on.of(y.floats), f.rstd_T = on.of(rstd);
              f.T = s.T, f.H = s.H;
              on.run(f);
              y.quantize(on);
              f.y_TH = on.of(y.written), f.scale = on.of(y.scale), f.amax = on.of(y.amax);
              on.run(f);
              y.require_same(on);
            });
          });
}

TEST_CASE("a norm's gradient is written as floats, and has the same bits in 8 bits") {
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (DType type : kFloats)
      for (DType float8 : kFloat8s)
        for (const Sizes& s : kSizes)
          for_each_way([&](int64_t offset) {
            CAPTURE(s.T, s.H, type, float8, offset);
            const int64_t n = s.T * s.H;
            Mirror x(numbers(type, n, 1), offset), dy(Array::normal(type, n, 3), offset),
                more(Array::normal(type, n, 4), offset), w(Array::normal(type, s.H, 2), offset),
                rstd(Array::normal(DType::f32, s.T, 5)), mean(Array::normal(DType::f32, s.T, 6)),
                dw(Array(DType::f32, s.H)), db(Array(DType::f32, s.H)),
                again(Array(type, n), offset);
            Result dx(type, float8, s.T, s.H, offset, kScale);
            on_both([&](auto on) {
              NormBackward b{.kind = kind,
                             .dy_TH = on.of(dy),
                             .x_TH = on.of(x),
                             .w_H = on.of(w),
                             .rstd_T = on.of(rstd),
                             .dresidual_TH = on.of(more),
                             .dx_TH = on.of(dx.floats),
                             .dw_H = on.of(dw),
                             .T = s.T,
                             .H = s.H};
              if (kind == NormKind::layer) b.mean_T = on.of(mean), b.db_H = on.of(db);
              on.run(b);
              dx.quantize(on);
              b.dx_TH = on.of(again), b.quantized_TH = on.of(dx.written);
              b.scale = on.of(dx.scale), b.amax = on.of(dx.amax);
              on.run(b);
              dx.require_same(on);
              REQUIRE(same_bytes(on.result(again), on.result(dx.floats)));
            });
          });
}

TEST_CASE("swiglu and geglu in 8 bits have the bits of those that are quantized") {
  for (DType type : kFloats)
    for (const GateFunction gate : {GateFunction::silu, GateFunction::gelu_tanh})
      for (int64_t F :
           {int64_t(1), int64_t(7), int64_t(64), int64_t(1000), size_of_test(4100, 70000)})
        for_each_way([&](int64_t offset) {
          const int64_t T = 3;
          CAPTURE(F, type, offset, int(gate));
          Mirror x(numbers(type, 2 * T * F, 1), offset);
          Result y(type, DType::f8e4m3, T, F, offset, kScale);
          on_both([&](auto on) {
            on.run(SwigluForward{on.of(x), on.of(y.floats), T, F, {}, {}, gate});
            y.quantize(on);
            on.run(SwigluForward{on.of(x), on.of(y.written), T, F, on.of(y.amax), on.of(y.scale),
                                 gate});
            y.require_same(on);
          });
        });
}

TEST_CASE("swiglu's and geglu's gradient and recomputed output are in 8 bits, each on request") {
  for (DType type : kFloats)
    for (const GateFunction gate : {GateFunction::silu, GateFunction::gelu_tanh})
      for (DType float8 : kFloat8s)
        for (int64_t F :
             {int64_t(1), int64_t(7), int64_t(64), int64_t(1000), size_of_test(4100, 70000)})
          for_each_way([&](int64_t offset) {
            const int64_t T = 3;
            CAPTURE(F, type, float8, offset, int(gate));
            Mirror x(numbers(type, 2 * T * F, 1), offset),
                dy(Array::normal(type, T * F, 2), offset), d_again(Array(type, 2 * T * F), offset),
                y_again(Array(type, T * F), offset);
            Result d(type, float8, T, 2 * F, offset, kScale),
                y(type, DType::f8e4m3, T, F, offset, kScale);
            on_both([&](auto on) {
              on.run(SwigluBackward{
                  on.of(x), on.of(dy), on.of(d.floats), on.of(y.floats), T, F, {}, {}, {}, gate});
              d.quantize(on);
              y.quantize(on);
              on.run(SwigluBackward{on.of(x),
                                    on.of(dy),
                                    on.of(d.written),
                                    on.of(y_again),
                                    T,
                                    F,
                                    on.of(d.amax),
                                    on.of(d.scale),
                                    {},
                                    gate});
              d.require_same(on);
              REQUIRE(same_bytes(on.result(y_again), on.result(y.floats)));
              on.run(SwigluBackward{on.of(x),
                                    on.of(dy),
                                    on.of(d_again),
                                    on.of(y.written),
                                    T,
                                    F,
                                    {},
                                    {},
                                    on.of(y.scale),
                                    gate});
              REQUIRE(same_bytes(on.result(d_again), on.result(d.floats)));
              REQUIRE(same_bytes(on.result(y.written), on.result(y.apart)));
              on.run(SwigluBackward{on.of(x), on.of(dy), on.of(d.written), on.of(y.written), T, F,
                                    on.of(d.amax), on.of(d.scale), on.of(y.scale), gate});
              d.require_same(on);
              REQUIRE(same_bytes(on.result(y.written), on.result(y.apart)));
            });
          });
}

TEST_CASE("the transpose of 8 bits is the one that quantizing writes") {
  for (DType float8 : kFloat8s)
    for (const auto& [T, N] :
         {std::pair<int64_t, int64_t>{1, 1}, {5, 7}, {64, 48}, {100, 130}, {130, 272}, {16, 16}})
      for_each_way([&](int64_t offset) {
        CAPTURE(float8, T, N, offset);
        const int64_t stride = (T + 15) / 16 * 16;
        Mirror x(numbers(DType::bf16, T * N, 1)), scale(Array::one(DType::f32, kScale)),
            rows(Array(float8, T * N), offset), wanted(Array(float8, N * stride)),
            got(Array(float8, N * stride));
        on_both([&](auto on) {
          on.run(Quantize{.x_TN = on.of(x),
                          .scale = on.of(scale),
                          .y_TN = on.of(rows),
                          .y_NT = on.of(wanted),
                          .T = T,
                          .N = N,
                          .stride = stride});
          on.run(TransposeFloat8{on.of(rows), on.of(got), T, N, stride});
          REQUIRE(same_bytes(on.result(wanted), on.result(got)));
        });
      });
}

namespace {

double largest(const Array& x) {
  double most = 0;
  for (const double v : x.values())
    if (std::isfinite(v)) most = std::max(most, std::abs(v));
  return most;
}

struct AttentionCase {
  const char* name;
  int64_t B, S, A, G, D, q_start = 0;
};
const AttentionCase kAttentions[] = {
    {"grouped", 2, 37, 4, 2, 64},     {"wide", 1, 70, 2, 1, 128},
    {"few columns", 1, 40, 3, 3, 8},  {"odd head", 2, 33, 3, 1, 37},
    {"large head", 1, 20, 1, 1, 200}, {"no row sees a key", 1, 20, 2, 1, 32, -20}};

// The operands of a case's attention.
struct AttentionInputs {
  AttentionInputs(const AttentionCase& the_case, DType type)
      : c(the_case),
        T(c.B * c.S),
        q_width(c.A * c.D),
        kv_width(c.G * c.D),
        q(Array::normal(type, T * q_width, 1)),
        k(Array::normal(type, T * kv_width, 2)),
        v(Array::normal(type, T * kv_width, 3)) {}
  template <class On>
  AttentionForward forward(On on, Mirror& out, Mirror& lse) {
    return {.shape = {.B = c.B,
                      .Sq = c.S,
                      .Skv = c.S,
                      .A = c.A,
                      .G = c.G,
                      .D = c.D,
                      .q_start = c.q_start,
                      .scale = 1 / std::sqrt(float(c.D)),
                      .own_kernels = true},
            .q = {on.of(q), q_width},
            .k = {on.of(k), kv_width},
            .v = {on.of(v), kv_width},
            .out = {on.of(out), q_width},
            .lse = on.of(lse)};
  }
  const AttentionCase& c;
  const int64_t T, q_width, kv_width;
  Mirror q, k, v;
};

}  // namespace

TEST_CASE("attention's output is written as floats, and has the bits of quantizing it") {
  for (DType type : kFloats)
    for (DType float8 : kFloat8s)
      for (const AttentionCase& c : kAttentions) {
        CAPTURE(c.name, type, float8);
        AttentionInputs in(c, type);
        Mirror again(Array(type, in.T * in.q_width)), lse(Array(DType::f32, in.T * c.A));
        Result out(type, float8, in.T, in.q_width, 0, kScale);
        on_both([&](auto on) {
          AttentionForward f = in.forward(on, out.floats, lse);
          on.run(f);
          out.quantize(on);
          f.out = {on.of(again), in.q_width};
          f.amax = on.of(out.amax);
          f.quantized = on.of(out.written), f.scale = on.of(out.scale);
          on.run(f);
          out.require_same(on);
          REQUIRE(same_bytes(on.result(again), on.result(out.floats)));
        });
      }
}

TEST_CASE("attention's backward and the rotation after it store the largest absolute values") {
  for (DType type : kFloats)
    for (const AttentionCase& c : kAttentions) {
      CAPTURE(c.name, type);
      AttentionInputs in(c, type);
      const int64_t q_count = in.T * in.q_width, kv_count = in.T * in.kv_width;
      Mirror out(Array(type, q_count)), dout(Array::normal(type, q_count, 4)),
          lse(Array(DType::f32, in.T * c.A)), dq(Array(type, q_count)), dk(Array(type, kv_count)),
          dv(Array(type, kv_count));
      on_both([&](auto on) {
        const AttentionForward f = in.forward(on, out, lse);
        on.run(f);
        AttentionBackward b{.shape = f.shape,
                            .q = f.q,
                            .k = f.k,
                            .v = f.v,
                            .out = {on.of(out), in.q_width},
                            .dout = {on.of(dout), in.q_width},
                            .lse = on.of(lse),
                            .dq = {on.of(dq), in.q_width},
                            .dk = {on.of(dk), in.kv_width},
                            .dv = {on.of(dv), in.kv_width}};
        on.run(b);
        const Array wanted_dq = on.result(dq), wanted_dk = on.result(dk), wanted_dv = on.result(dv);
        const double of_qk = std::max(largest(wanted_dq), largest(wanted_dk)),
                     of_v = largest(wanted_dv);
        for (const bool shared : {false, true}) {
          Mirror dqk_amax(Array::one(DType::f32, 0)), dv_amax(Array::one(DType::f32, 1e20));
          b.dqk_amax = on.of(dqk_amax), b.dv_amax = on.of(shared ? dqk_amax : dv_amax);
          on.run(b);
          REQUIRE(on.result(dqk_amax)[0] == (shared ? std::max(of_qk, of_v) : of_qk));
          REQUIRE(on.result(dv_amax)[0] == float(1e20));
          REQUIRE(same_bytes(on.result(dq), wanted_dq));
          REQUIRE(same_bytes(on.result(dk), wanted_dk));
          REQUIRE(same_bytes(on.result(dv), wanted_dv));
        }
        b.dqk_amax = {};
        Mirror dv_amax(Array::one(DType::f32, 0));
        b.dv_amax = on.of(dv_amax);
        on.run(b);
        REQUIRE(on.result(dv_amax)[0] == of_v);
      });
    }
  for (DType type : kFloats)
    // The elements that are not rotated count, too.
    for (const auto& [D, R] :
         {std::pair<int64_t, int64_t>{4, 2}, {64, 32}, {20, 10}, {64, 8}, {20, 5}, {8, 1}}) {
      CAPTURE(type, D, R);
      const int64_t T = 19, heads = 3, stride = 5 * D, positions = 32;
      Mirror x(numbers(type, T * stride, 1)), again(numbers(type, T * stride, 1)),
          cosines(Array::normal(DType::f32, positions * R, 2)),
          sines(Array::normal(DType::f32, positions * R, 3)), amax(Array::one(DType::f32, 0));
      std::vector<int32_t> at;
      for (int t = 0; t < T; ++t) at.push_back(t);
      Mirror position(Array::ids(at));
      on_both([&, D = D, R = R](auto on) {
        Rope r{on.of(x), on.of(cosines), on.of(sines), on.of(position), T, heads, D,
               R,        stride,         true};
        on.run(r);
        r.x = on.of(again), r.amax = on.of(amax);
        on.run(r);
        const Array rotated = on.result(x);
        REQUIRE(same_bytes(rotated, on.result(again)));
        double most = 0;
        for (int64_t t = 0; t < T; ++t)
          for (const double v : rotated.values(t * stride, heads * D))
            if (std::isfinite(v)) most = std::max(most, std::abs(v));
        REQUIRE(on.result(amax)[0] == most);
      });
    }
}
