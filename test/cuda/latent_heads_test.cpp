// Latent attention: the positions of its keys, its heads, and attention to latents.
#include <algorithm>
#include <string>
#include <tuple>

#include "kernels/latent_heads.h"
#include "kernels/rope.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

struct Sizes {
  int64_t T, A, N, R, V, C;
};
const Sizes kSizesOfHeads[] = {{1, 1, 1, 2, 1, 1}, {5, 3, 12, 8, 6, 75}, {3, 2, 37, 18, 45, 300}};

}  // namespace

TEST_CASE("rope rotates pairs of neighbours at the end of a head, forward and back") {
  const int64_t T = 7, P = 11;
  for (DType dtype : kFloats) {
    Closeness close("interleaved rope " + std::string(dtype_name(dtype)));
    for (auto [D, R, heads, gap] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{2, 1, 1, 0},
                                    {192, 32, 3, 128},
                                    {64, 32, 1, 0},
                                    {19, 9, 3, 5}})
      for_each_way([&, D = D, R = R, heads = heads, gap = gap](int64_t offset) {
        const int64_t stride = heads * D + gap;
        CAPTURE(D, R, heads, gap);
        Mirror x(Array::normal(dtype, T * stride, 1), offset);
        Mirror cos(Array::normal(DType::f32, P * R, 2), offset),
            sin(Array::normal(DType::f32, P * R, 3), offset);
        Mirror position(Array::ids({3, 0, 10, 5, 5, 1, 9}));
        for (bool backward : {false, true}) {
          Rope a{.x = x.host(),
                 .cos_PR = cos.host(),
                 .sin_PR = sin.host(),
                 .position_T = position.host(),
                 .T = T,
                 .heads = heads,
                 .D = D,
                 .R = R,
                 .token_stride = stride,
                 .backward = backward,
                 .first = D - 2 * R,
                 .interleaved = true};
          cpu::run(a);
          a.x = x.device(), a.cos_PR = cos.device(), a.sin_PR = sin.device(),
          a.position_T = position.device();
          cuda::run(a, device_stream());
          REQUIRE(x.compare(close, {.dtype = dtype,
                                    .K = backward ? 8.0 : 2.0,
                                    .scale = 8,
                                    .sums = backward ? dtype : DType::f32}) == "");
        }
      });
  }
}

TEST_CASE("the heads of latent attention, and their gradients, equal the CPU's") {
  for (DType dtype : kFloats) {
    Closeness close("latent heads " + std::string(dtype_name(dtype)));
    for (const Sizes& s : kSizesOfHeads)
      for_each_way([&](int64_t offset) {
        CAPTURE(s.T, s.A, s.N, s.R, s.V);
        const int64_t of_q = s.T * s.A * (s.N + s.R), of_kv = s.T * s.A * (s.N + s.V),
                      of_v = s.T * s.A * s.V;
        const auto normal = [&](int64_t count, uint64_t key) {
          return Array::normal(dtype, count, key);
        };
        Mirror q(normal(of_q, 1), offset), kv(normal(of_kv, 2), offset),
            shared(normal(s.T * s.R, 3), offset), qkv(Array(dtype, 2 * of_q + of_v), offset),
            rows(Array(dtype, of_q + of_v), offset);
        const auto forward = [&](auto&& of, bool queries, Mirror& into) {
          return LatentHeadsForward{.q_TN = queries ? ConstSpan(of(q)) : ConstSpan(),
                                    .kv_TN = of(kv),
                                    .shared_TR = of(shared),
                                    .qkv_TN = of(into),
                                    .T = s.T,
                                    .A = s.A,
                                    .N = s.N,
                                    .R = s.R,
                                    .V = s.V};
        };
        const auto host = [](Mirror& m) { return m.host().span(); };
        const auto device = [](Mirror& m) { return m.device(); };
        for (const bool queries : {true, false}) {
          Mirror& into = queries ? qkv : rows;
          cpu::run(forward(host, queries, into));
          cuda::run(forward(device, queries, into), device_stream());
          REQUIRE(into.same());
        }
        Mirror dq(Array(dtype, of_q), offset), dkv(Array(dtype, of_kv), offset),
            dshared(Array(dtype, s.T * s.R), offset);
        const auto backward = [&](auto&& of) {
          return LatentHeadsBackward{.dqkv_TN = of(qkv),
                                     .dq_TN = of(dq),
                                     .dkv_TN = of(dkv),
                                     .dshared_TR = of(dshared),
                                     .T = s.T,
                                     .A = s.A,
                                     .N = s.N,
                                     .R = s.R,
                                     .V = s.V};
        };
        cpu::run(backward(host));
        cuda::run(backward(device), device_stream());
        REQUIRE((dq.same() && dkv.same()));
        REQUIRE(dshared.compare(close, {.dtype = dtype, .K = double(s.A), .scale = 4}) == "");
      });
  }
}

TEST_CASE("queries and values of latents equal the CPU's") {
  for (DType dtype : kFloats) {
    Closeness close("latent queries " + std::string(dtype_name(dtype)));
    for (const Sizes& s : kSizesOfHeads)
      for_each_way([&](int64_t offset) {
        CAPTURE(s.T, s.A, s.N, s.R, s.V, s.C);
        const auto normal = [&](int64_t count, uint64_t key) {
          return Array::normal(dtype, count, key);
        };
        const auto host = [](Mirror& m) { return m.host().span(); };
        const auto device = [](Mirror& m) { return m.device(); };
        Mirror q(normal(s.T * s.A * (s.N + s.R), 1), offset);
        Mirror weight(normal(s.A * (s.N + s.V) * s.C, 4), offset),
            x(normal(s.T * s.A * s.C, 5), offset),
            of_latents(Array(dtype, s.T * s.A * (s.C + s.R)), offset),
            values(Array(dtype, s.T * s.A * s.V), offset);
        const auto absorbed = [&](auto&& of) {
          return LatentQueries{.q_TN = of(q),
                               .weight_NC = of(weight),
                               .out_TN = of(of_latents),
                               .T = s.T,
                               .A = s.A,
                               .N = s.N,
                               .R = s.R,
                               .V = s.V,
                               .C = s.C};
        };
        const auto expanded = [&](auto&& of) {
          return LatentValues{.x_TN = of(x),
                              .weight_NC = of(weight),
                              .out_TN = of(values),
                              .T = s.T,
                              .A = s.A,
                              .N = s.N,
                              .V = s.V,
                              .C = s.C};
        };
        cpu::run(absorbed(host)), cpu::run(expanded(host));
        cuda::run(absorbed(device), device_stream());
        cuda::run(expanded(device), device_stream());
        const Rule rule{
            .dtype = dtype, .K = double(std::max(s.N, s.C)), .scale = 10, .sums = DType::f32};
        REQUIRE(of_latents.compare(close, rule) == "");
        REQUIRE(values.compare(close, rule) == "");
      });
  }
}
