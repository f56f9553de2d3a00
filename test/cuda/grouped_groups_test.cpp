// Tests the kernels around CUTLASS's grouped GEMMs: arguments, transposed copies, comparison.
#include <cmath>

#include "kernels/cuda/grouped/compare_rows.h"
#include "kernels/cuda/grouped/groups.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels::cuda;
using namespace mtrain::test;

namespace {

const std::vector<std::vector<int32_t>> kFirstRows = {
    {0, 5}, {0, 0, 0}, {0, 1, 1, 4, 4}, {0, 130, 131, 131, 200}, {0, 0, 300}, {0, 127, 255, 384}};

// Memory of the device that is read back as numbers of T.
class Bytes {
 public:
  explicit Bytes(int64_t bytes) : mirror_(Array(DType::u8, bytes)) {}
  void* data() { return mirror_.device().data; }
  std::vector<unsigned char> read() const {
    Array got = mirror_.result();
    const auto* const p = static_cast<const unsigned char*>(got.span().data);
    return {p, p + got.size()};
  }

 private:
  Mirror mirror_;
};

// Bytes from 1 to 251 that differ from their neighbours in both dimensions.
int byte_at(int64_t i) { return int(i * 7 % 251) + 1; }
Array bytes_of(int64_t count) {
  Array x(DType::u8, count);
  for (int64_t i = 0; i < count; ++i) x.span().as<uint8_t>()[i] = uint8_t(byte_at(i));
  return x;
}

template <class T>
std::vector<T> array_of(const std::vector<unsigned char>& bytes, const void* begin, const T* array,
                        size_t count) {
  std::vector<T> got(count);
  const auto at = reinterpret_cast<const char*>(array) - static_cast<const char*>(begin);
  std::memcpy(static_cast<void*>(got.data()), bytes.data() + at, count * sizeof(T));
  return got;
}

}  // namespace

TEST_CASE("the device computes the arguments of grouped GEMMs as the host does") {
  alignas(16) static char a[16], b[16], c[16];
  std::vector<std::vector<int32_t>> firsts = kFirstRows;
  firsts.push_back({0});
  for (int e = 0; e < 300; ++e) firsts.back().push_back(firsts.back().back() + e % 3);
  for (const auto& first : firsts)
    for (const bool weights : {false, true})
      for (const bool padded : {false, true})
        for_each_order([&] {
          CAPTURE(first.size(), weights, padded);
          const int E = int(first.size()) - 1;
          const GroupsOf all{.weights = weights,
                             .trans_b = !padded,
                             .a_padded = weights && padded,
                             .b_padded = padded,
                             .M = 48,
                             .N = 32,
                             .K = 16,
                             .a = a,
                             .b = b,
                             .c = c};
          Mirror rows(Array::ids(first)), factor(Array::one(DType::f32, 3)),
              other(Array::one(DType::f32, 0.25));
          Bytes memory(GroupMemory::bytes(E));
          const GroupMemory groups(memory.data(), E);
          const auto* const first_E1 = static_cast<const int32_t*>(rows.device().data);
          const auto* const a_inverse = static_cast<const float*>(factor.device().data);
          const auto* const b_inverse = static_cast<const float*>(other.device().data);
          fill_groups(groups, all, first_E1, padded ? a_inverse : nullptr,
                      padded ? b_inverse : nullptr, device_stream());
          const auto bytes = memory.read();
          const auto get = [&](auto* array) {
            return array_of(bytes, memory.data(), array, size_t(E));
          };
          const GroupArrays& g = groups.arrays;
          const auto shape = get(g.shape);
          const auto as = get(g.a), bs = get(g.b);
          const auto cs = get(g.c);
          const auto a_stride = get(g.a_stride), b_stride = get(g.b_stride),
                     c_stride = get(g.c_stride);
          for (size_t e = 0; e < size_t(E); ++e) {
            const Group want = group_of(all, first[e], first[e + 1], int64_t(e));
            REQUIRE(shape[e] == want.shape);
            REQUIRE((as[e] == want.a && bs[e] == want.b && cs[e] == want.c));
            REQUIRE(a_stride[e] == want.a_stride);
            REQUIRE(b_stride[e] == want.b_stride);
            REQUIRE(c_stride[e] == want.c_stride);
          }
          const float alpha = array_of(bytes, memory.data(), groups.alpha, 1)[0];
          REQUIRE(alpha == (padded ? 0.75f : 1.0f));
        });
}

TEST_CASE("the transposed copies of experts' 8-bit rows have their numbers, and zeros after them") {
  for (const auto& first : kFirstRows)
    for (const int64_t columns : {16, 144, 272})
      for_each_order([&] {
        CAPTURE(first, columns);
        const int64_t E = int64_t(first.size()) - 1, R = first.back();
        Mirror from(bytes_of(R * columns)), rows(Array::ids(first));
        Bytes to(PaddedColumns::elements(R, E, columns));
        transpose_groups(from.device().data, static_cast<const int32_t*>(rows.device().data),
                         to.data(), R, E, columns, device_stream());
        const auto got = to.read();
        for (int64_t e = 0; e < E; ++e) {
          const int64_t row = first[size_t(e)], count = first[size_t(e) + 1] - row;
          const int64_t stride = PaddedColumns::stride(count);
          for (int64_t n = 0; n < columns; ++n)
            for (int64_t k = 0; k < stride; ++k) {
              const int want = k < count ? byte_at((row + k) * columns + n) : 0;
              const int64_t at = PaddedColumns::start(row, e) * columns + n * stride + k;
              REQUIRE(int(got[size_t(at)]) == want);
            }
        }
      });
}

TEST_CASE("the transposed copies of experts' 8-bit weights need no first rows") {
  const int64_t E = 3, K = 144, N = 32;
  Mirror from(bytes_of(E * K * N));
  Bytes to(PaddedColumns::elements(E * K, E, N));
  transpose_groups(from.device().data, nullptr, to.data(), E * K, E, N, device_stream());
  const auto got = to.read();
  for (int64_t e = 0; e < E; ++e)
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < K; ++k)
        REQUIRE(int(got[size_t(PaddedColumns::start(e * K, e) * N + n * K + k)]) ==
                byte_at((e * K + k) * N + n));
}

TEST_CASE("weight gradients of experts without rows become 0, and the others stay") {
  const std::vector<int32_t> first = {0, 0, 2, 2, 5};
  const int64_t E = 4, elements = 300;
  Array c(DType::f32, E * elements);
  for (int64_t i = 0; i < c.size(); ++i) c.set(i, 5);
  Mirror to(c), rows(Array::ids(first));
  clear_empty_groups(static_cast<float*>(to.device().data),
                     static_cast<const int32_t*>(rows.device().data), E, elements, device_stream());
  const Array got = to.result();
  for (int64_t i = 0; i < c.size(); ++i) REQUIRE(got[i] == (i / elements % 2 == 0 ? 0 : 5));
}

namespace {

RowsDifference difference_of(const Array& x, const Array& y, int64_t R, float relative,
                             float of_row) {
  Mirror a(x), b(y);
  Bytes result(sizeof(RowsDifference));
  compare_rows({.x_RN = a.device(),
                .y_RN = b.device(),
                .R = R,
                .N = x.size() / R,
                .relative = relative,
                .of_row = of_row},
               static_cast<RowsDifference*>(result.data()), device_stream());
  RowsDifference found{};
  std::memcpy(&found, result.read().data(), sizeof found);
  return found;
}

}  // namespace

TEST_CASE("a comparison finds one wrong element, in units of what its row allows") {
  for (const DType type : {DType::bf16, DType::f32})
    for_each_order([&] {
      const int64_t R = 5, N = 700;
      Array y(type, R * N);
      for (int64_t i = 0; i < y.size(); ++i) y.set(i, (i % 2 ? 1 : -1) * (i / N == 3 ? 100 : 1));
      REQUIRE(difference_of(y, y, R, 0.01f, 0.02f).worst == 0);
      REQUIRE(difference_of(y, y, R, 0.01f, 0.02f).compared == 1);
      Array x = y;
      x.set(2 * N + 17, 2);  // was 1, in a row of size 1
      REQUIRE(difference_of(x, y, R, 0.25f, 0.25f).worst == Approx(2));
      x = y;
      x.set(3 * N + 17, 150);  // was 100, in a row of size 100
      REQUIRE(difference_of(x, y, R, 0.25f, 0.25f).worst == Approx(1));
      x = y;
      x.set(4 * N + 1, NAN);
      REQUIRE(std::isinf(difference_of(x, y, R, 0.25f, 0.25f).worst));
      Array both = y;
      both.set(4 * N + 1, INFINITY);
      REQUIRE(difference_of(x, both, R, 0.25f, 0.25f).worst == 0);
      const Array zero(type, R * N);
      REQUIRE(difference_of(zero, zero, R, 0.25f, 0.25f).compared == 0);
      REQUIRE(std::isinf(difference_of(y, zero, R, 0.25f, 0.25f).worst));
    });
}
