// Only where there is a GPU: cuBLASLt has no stand-in on the CPU that would prove anything.
#include <cmath>

#include "kernels/matmul.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

TEST_CASE("matmul equals the CPU's: transposes, types, bias, accumulation, odd sizes") {
  for (DType ta : kFloats)
    for (DType tb : kFloats)
      for (DType tc : kFloats) {
        Closeness close("matmul " + std::string(dtype_name(ta)) + " " +
                        std::string(dtype_name(tb)) + " to " + std::string(dtype_name(tc)));
        for (auto [M, N, K] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                               {7, 5, 3},
                               {64, 96, 128},
                               {33, 65, 129},
                               {256, 40, 1000},
                               {4, 8, 0}})
          for (bool trans_a : {false, true})
            for (bool trans_b : {false, true})
              for (int extra : {0, 1, 2})  // nothing, a bias, accumulation
                for (int64_t offset : {0, 1}) {
                  if (extra == 2 && tc != DType::f32) continue;
                  CAPTURE(M, N, K, trans_a, trans_b, extra, offset);
                  Mirror a(Array::normal(ta, M * K, 1), offset),
                      b(Array::normal(tb, K * N, 2), offset);
                  Mirror bias(Array::normal(ta, N, 3), offset),
                      c(Array::normal(tc, M * N, 4), offset);
                  const auto args = [&](auto&& of) {
                    Matmul m{.a = of(a),
                             .b = of(b),
                             .c_MN = of(c),
                             .M = M,
                             .N = N,
                             .K = K,
                             .trans_a = trans_a,
                             .trans_b = trans_b,
                             .accumulate = extra == 2};
                    if (extra == 1) m.bias_N = of(bias);
                    return m;
                  };
                  cpu::run(args([](Mirror& x) { return x.host().span(); }));
                  cuda::run(args([](Mirror& x) { return x.device(); }), device_stream());
                  const Rule rule{.dtype = tc,
                                  .K = double(K + 1),
                                  .scale = 4 * std::sqrt(double(K + 1)),
                                  .sums = DType::f32};
                  REQUIRE(c.compare(close, rule) == "");
                }
      }
}
