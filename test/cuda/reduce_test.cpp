#include <cmath>

#include "kernels/attention_merge.h"
#include "kernels/embedding.h"
#include "kernels/reduce.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

TEST_CASE("sums and sums of squares equal the CPU's to fp64, and add to the earlier value") {
  Closeness close("sums");
  for (int64_t n :
       {int64_t(0), int64_t(1), int64_t(7), int64_t(4099), size_of_test(40001, 1000001)})
    for (DType type : kFloats)
      for_each_way([&](int64_t offset) {
        CAPTURE(n, type);
        Mirror x(Array::normal(type, n, 1), offset), sum(Array::one(DType::f64, 2.5)),
            squares(Array::one(DType::f64, 1));
        cpu::run(Sum{x.host(), sum.host()});
        cuda::run(Sum{x.device(), sum.device()}, device_stream());
        cpu::run(SumSquares{x.host(), squares.host()});
        cuda::run(SumSquares{x.device(), squares.device()}, device_stream());
        // Each addition rounds at the size of the running sum: four deviations of a random walk for
        // normal numbers, but up to the whole sum for their squares, which all have one sign.
        const double terms = double(n + 1), total = squares.host()[0];
        REQUIRE(sum.compare(
                    close, {.dtype = DType::f64, .K = terms, .scale = 4 * std::sqrt(terms)}) == "");
        REQUIRE(squares.compare(close, {.dtype = DType::f64, .K = terms, .scale = total}) == "");
      });
}

TEST_CASE("the clip's scale is the CPU's, and NaN where something is not finite") {
  for (double squares : {0.0, 4.0, 1e-3, 1e80, double(INFINITY)})
    for (double loss : {1.0, double(NAN)})
      for (auto [most, limit] :
           {std::pair{0.0f, double(INFINITY)}, {1.0f, double(INFINITY)}, {1.0f, 0x1p-10}})
        for (auto [copies, in_memory] :
             {std::pair{1.0, false}, {double(INFINITY), false}, {1.0, true}}) {
          CAPTURE(squares, loss, most, limit, copies, in_memory);
          Array sums(DType::f64, {squares, copies});
          Mirror s(sums), l(Array::one(DType::f64, loss));
          Mirror norm(Array(DType::f32, 1)), scale(Array(DType::f32, 1)),
              arguments(Array(DType::f64, {0x1p-10, limit}));
          cpu::run(ClipScale{s.host(), l.host(), norm.host(), scale.host(), most, 0x1p-10, limit});
          cuda::run(ClipScale{s.device(), l.device(), norm.device(), scale.device(), most,
                              in_memory ? 7 : 0x1p-10, in_memory ? -1 : limit,
                              in_memory ? ConstSpan(arguments.device()) : ConstSpan()},
                    device_stream());
          REQUIRE((norm.same() || (std::isnan(norm.host()[0]) && std::isnan(norm.result()[0]))));
          REQUIRE((scale.same() || (std::isnan(scale.host()[0]) && std::isnan(scale.result()[0]))));
        }
}

TEST_CASE("the first element that is not finite is found anywhere") {
  const int64_t n = size_of_test(9001, 300001);
  for (DType type : kFloats)
    for_each_way([&](int64_t offset) {
      for (int64_t at : {int64_t(-1), int64_t(0), int64_t(4095), n - 1}) {
        Array values = Array::normal(type, n, 1);
        if (at >= 0) values.set(at, at % 2 ? NAN : -INFINITY), values.set(n - 1, INFINITY);
        Mirror x(values, offset), found(Array(DType::i64, 1));
        cpu::run(FirstNonFinite{x.host(), found.host()});
        cuda::run(FirstNonFinite{x.device(), found.device()}, device_stream());
        REQUIRE(found.same());
      }
    });
}

TEST_CASE("column sums equal the CPU's") {
  Closeness close("column sum");
  for (auto [T, N] : {std::pair<int64_t, int64_t>{1, 1},
                      {70, 33},
                      {300, 256},
                      {5, 1000},
                      {size_of_test(600, 100000), 64}})
    for (DType type : kFloats)
      for_each_way([&](int64_t offset) {
        CAPTURE(T, N, type);
        Mirror x(Array::normal(type, T * N, 1), offset),
            out(Array::normal(DType::f32, N, 2), offset);
        cpu::run(ColumnSum{x.host(), out.host(), T, N});
        cuda::run(ColumnSum{x.device(), out.device(), T, N}, device_stream());
        REQUIRE(out.compare(close, {.K = double(T), .scale = 4 * std::sqrt(double(T))}) == "");
      });
}

TEST_CASE("attention_merge equals the CPU's, and does not change rows that saw no key") {
  Closeness close("attention_merge");
  for (auto [B, S, A, D] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 1, 1},
                            {2, 17, 3, 64},
                            {1, 9, 2, 37},
                            {2, 5, 4, 256}})
    for (DType type : kFloats)
      for_each_way([&](int64_t offset) {
        const int64_t stride = S + 5, n = B * S * A * D;
        Array lse = Array::normal(DType::f32, B * A * stride, 1),
              from_lse = Array::normal(DType::f32, B * A * S, 2, 20);
        from_lse.set(0, -INFINITY);
        if (S > 1) lse.set(1, -INFINITY);
        Mirror from(Array::normal(type, n, 3), offset), from_l(from_lse),
            out(Array::normal(DType::f32, n, 4), offset), l(lse);
        AttentionMerge a{from.host(), from_l.host(), out.host(), l.host(), B, S, A, D, stride};
        cpu::run(a);
        a.block_out_TN = from.device(), a.block_lse = from_l.device(), a.out_TN = out.device(),
        a.lse = l.device();
        cuda::run(a, device_stream());
        REQUIRE(out.compare(close, {.K = 4, .scale = 4}) == "");
        const Array got = l.result();
        for (int64_t i = 0; i < got.size(); ++i)
          REQUIRE((got[i] == l.host()[i] ||
                   std::abs(got[i] - l.host()[i]) <= 4 * eps(DType::f32) * (1 + std::abs(got[i]))));
      });
}

TEST_CASE("embeddings: the forward copies rows, of a shard too, and adds positions") {
  for (auto [T, H, V] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {33, 40, 20}, {20, 1500, 7}, {9, 2056, 11}})
    for (DType type : kFloats)
      for (const auto& [positions, first, scale] : {std::tuple{false, int64_t{0}, 1.0f},
                                                    {true, int64_t{0}, 1.0f},
                                                    {false, int64_t{3}, 1.0f},
                                                    {false, int64_t{3}, 11.3f},
                                                    {true, int64_t{0}, 0.5f}}) {
        for_each_way([&, positions = positions, first = first, scale = scale](int64_t offset) {
          CAPTURE(T, H, V, positions, first, scale);
          std::vector<int32_t> ids, places;
          for (int64_t t = 0; t < T; ++t)
            ids.push_back(int32_t(t * 7 % (V + 2 * first))), places.push_back(int32_t(t % 5));
          Mirror id(Array::ids(ids)), place(Array::ids(places)),
              table(Array::normal(type, V * H, 1), offset);
          Mirror more(Array::normal(type, 5 * H, 2), offset), out(Array(type, T * H), offset);
          const auto args = [&](auto&& of) {
            EmbeddingForward a{.id_T = of(id),
                               .table_VH = of(table),
                               .out_TH = of(out),
                               .T = T,
                               .H = H,
                               .V = V,
                               .first_row = first,
                               .vocabulary = first ? V + 2 * first : 0,
                               .scale = scale};
            if (positions) a.position_T = of(place), a.position_table_PH = of(more);
            return a;
          };
          cpu::run(args([](Mirror& m) { return m.host().span(); }));
          cuda::run(args([](Mirror& m) { return m.device(); }), device_stream());
          REQUIRE(out.same());
        });
      }
}

TEST_CASE("an id that is in no table embeds to NaN") {
  Mirror id(Array::ids({2, -1, 4})), table(Array::normal(DType::f32, 4 * 8, 1)),
      out(Array(DType::f32, 3 * 8));
  cuda::run(EmbeddingForward{.id_T = id.device(),
                             .table_VH = table.device(),
                             .out_TH = out.device(),
                             .T = 3,
                             .H = 8,
                             .V = 4},
            device_stream());
  const Array got = out.result();
  for (int64_t i = 0; i < 24; ++i) REQUIRE(std::isnan(got[i]) == (i >= 8));
}

TEST_CASE("embeddings: the backward adds the tokens of an id in their order, bit for bit") {
  for (auto [T, H, V] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                         {700, 24, 5},
                         {1300, 8, 300},
                         {65, 1032, 40},
                         {1100, 3, 1}})
    for (DType type : kFloats)
      for (const auto& [first, scale] :
           {std::pair{int64_t{0}, 1.0f}, {int64_t{2}, 1.0f}, {int64_t{2}, 8.0f}})  // exact products
        for_each_way([&, first = first, scale = scale](int64_t offset) {
          CAPTURE(T, H, V, first, scale);
          std::vector<int32_t> ids;
          for (int64_t t = 0; t < T; ++t) ids.push_back(int32_t(t * t % 1009 % (V + 2 * first)));
          Mirror id(Array::ids(ids)), dout(Array::normal(type, T * H, 1), offset),
              dtable(Array::normal(DType::f32, V * H, 2), offset);
          EmbeddingBackward a{.id_T = id.host(),
                              .dout_TH = dout.host(),
                              .dtable_VH = dtable.host(),
                              .T = T,
                              .H = H,
                              .V = V,
                              .first_row = first,
                              .vocabulary = first ? V + 2 * first : 0,
                              .scale = scale};
          cpu::run(a);
          a.id_T = id.device(), a.dout_TH = dout.device(), a.dtable_VH = dtable.device();
          cuda::run(a, device_stream());
          REQUIRE(dtable.same());
        });
}
