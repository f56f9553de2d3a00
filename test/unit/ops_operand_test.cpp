// Tests of the values through which GEMMs and kernels agree on the form of a matrix: a GEMM gives
// the same numbers for every form of its operands, and a kernel's result says what it has written.
#include <cmath>

#include <catch2/catch.hpp>

#include "base/rng.h"
#include "device/device.h"
#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/operand.h"
#include "ops/quantize.h"

namespace ops_operand_test {

using namespace mtrain;

namespace {

const QuantFormat kTensor{DType::f8e4m3}, kRows128{DType::f8e4m3, ScaleBlocks::rows_128},
    kSquare128{DType::f8e4m3, ScaleBlocks::square_128},
    kRows32{DType::f8e4m3, ScaleBlocks::rows_32};

struct Fixture {
  std::unique_ptr<Device> device = Device::cpu(1, {.stream_sanitizer = true});
  Stream& stream = device->stream(device::StreamKind::compute);

  Tensor random(const char* name, int64_t rows, int64_t columns) {
    std::vector<float> values(size_t(rows * columns));
    fill_normal(rng_key(7, name), 0, rows * columns, 1, values.data());
    return Tensor::from_host<float>(stream, {rows, columns}, values);
  }
  ops::Scale scale_of(const Tensor& x, QuantFormat format) {
    return format.outer_scale() ? ops::current_scale(stream, x, format.element, 0) : ops::Scale{};
  }
  // Returns a destination that asks for everything.
  ops::Destination all() {
    const Tensor amax = Tensor::empty(stream, {1}, DType::f32), x = random("scale", 1, 16);
    ops::fill(stream, amax, 0);
    return {.format = kTensor, .scale = scale_of(x, kTensor), .amax = amax};
  }
};

}  // namespace

TEST_CASE("one GEMM multiplies plain and quantized operands, and stored transposes") {
  Fixture f;
  Stream& stream = f.stream;
  const int64_t M = 128, N = 128, K = 256;
  const Tensor a = f.random("a", M, K), b = f.random("b", N, K), at = f.random("at", K, M),
               bt = f.random("bt", K, N), c = Tensor::empty(stream, {M, N}, DType::f32);
  struct Row {
    const char* name;
    QuantFormat a, b;
  };
  for (const Row& row : {Row{"one scale", kTensor, kTensor}, Row{"128", kRows128, kSquare128},
                         Row{"32", kRows32, kRows32}}) {
    CAPTURE(row.name);
    const auto expect_near = [&](const Tensor& x, const Tensor& y, ops::Transpose t,
                                 const ops::Operand& x_8, const ops::Operand& y_8) {
      ops::matmul_into(stream, "plain", x, y, t, c);
      const auto want = c.to_host<float>(stream);
      ops::matmul_into(stream, "quantized", x_8, y_8, t, c);
      const auto got = c.to_host<float>(stream);
      // An element of e4m3 is within 1/16 of its value.
      for (size_t i = 0; i < want.size(); ++i)
        REQUIRE(std::abs(got[i] - want[i]) < 0.25 * std::sqrt(double(K)));
    };
    const ops::Scale a_scale = f.scale_of(a, row.a), b_scale = f.scale_of(b, row.b),
                     at_scale = f.scale_of(at, row.a), bt_scale = f.scale_of(bt, row.b);
    expect_near(a, b, {.b = true}, ops::quantize(stream, a, row.a, a_scale),
                ops::quantize(stream, b, row.b, b_scale));
    expect_near(a, bt, {}, ops::quantize(stream, a, row.a, a_scale),
                ops::quantize_transposed(stream, bt, row.b, bt_scale));
    expect_near(at, bt, {.a = true}, ops::quantize_transposed(stream, at, row.a, at_scale),
                ops::quantize_transposed(stream, bt, row.b, bt_scale));
    CHECK_THROWS_AS(ops::matmul_into(stream, "q", ops::quantize(stream, a, row.a, a_scale),
                                     ops::quantize(stream, bt, row.b, bt_scale), {}, c),
                    BugError);
  }
}

TEST_CASE("a kernel's result says which parts of its destination it has done") {
  Fixture f;
  Stream& stream = f.stream;
  const int64_t T = 4, H = 32;
  const Tensor x = f.random("x", T, 2 * H), dy = f.random("dy", T, H),
               w = Tensor::empty(stream, {H}, DType::f32),
               dw = Tensor::empty(stream, {H}, w.dtype());
  ops::fill(stream, w, 1), ops::fill(stream, dw, 0);
  const ops::Destination to = f.all();
  ops::Destination maximum = to, both = to;
  maximum.scale = {}, both.needs_plain = true;
  struct Row {
    const char* name;
    ops::Written result;
    bool plain, quantized, amax;
  };
  const ops::NormWeights norm{NormKind::rms, w, {}, 1e-5f};
  const ops::NormResult forward = ops::norm(stream, norm, dy);
  const auto d_norm = ops::norm_backward(stream, norm, forward, dy, {}, dw, {}, both);
  const auto d_swiglu = [&](const ops::Destination& asked) {
    return ops::swiglu_backward(stream, x, dy, asked, &to);
  };
  for (const Row& row : {
           Row{"a norm writes one form", ops::norm(stream, norm, dy, {}, to).y_TH, false, true,
               true},
           Row{"its gradient both", d_norm, true, true, true},
           Row{"swiglu one", ops::swiglu(stream, x, to), false, true, true},
           Row{"its gradient one", d_swiglu(to).dx, false, true, true},
           Row{"or none if plain numbers are needed", d_swiglu(both).dx, true, false, false},
           Row{"its recomputed output one", d_swiglu(maximum).y, false, true, false},
           Row{"gelu finds a maximum", ops::gelu(stream, dy, true, maximum), true, false, true},
           Row{"and does not quantize", ops::gelu(stream, dy, true, to), true, false, false},
           Row{"no destination", ops::swiglu(stream, x), true, false, false},
       }) {
    INFO(row.name);
    CHECK(bool(row.result.plain) == row.plain);
    CHECK(row.result.quantized.quantized() == row.quantized);
    CHECK(bool(row.result.amax) == row.amax);
    CHECK(row.result.data().dtype() == (row.quantized ? DType::f8e4m3 : DType::f32));
  }
  stream.synchronize();
}

TEST_CASE("a format counts its scales") {
  CHECK(kTensor.bytes_with_scales() == 1);
  CHECK(kRows32.bytes_with_scales() == 1 + 1.0 / 32);
  CHECK(kRows128.bytes_with_scales() == 1 + 4.0 / 128);
  CHECK(QuantFormat{DType::bf16}.bytes_with_scales() == 2);
}

}  // namespace ops_operand_test
