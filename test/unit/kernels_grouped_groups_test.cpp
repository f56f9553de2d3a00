// Tests the arguments of CUTLASS's grouped GEMMs: sizes, addresses and strides of each expert.
#include <catch2/catch.hpp>

#include <cstring>
#include <vector>

#include "kernels/cuda/grouped/groups.h"

namespace kernels_grouped_groups_test {

using namespace mtrain::kernels::cuda;

namespace {

// First rows of experts: with and without rows, at odd places, and one expert with all of them.
const std::vector<std::vector<int32_t>> kFirsts = {{0, 5},          {0, 0, 0},
                                                   {0, 1, 1, 4, 4}, {0, 127, 255, 384, 384, 385},
                                                   {0, 0, 0, 300},  {0, 300, 300, 300}};

const char* at(int64_t address) { return reinterpret_cast<const char*>(address); }
int64_t number(const void* p) { return reinterpret_cast<int64_t>(p); }
constexpr int64_t kA = 0x100000, kB = 0x2000000, kC = 0x40000000;

}  // namespace

TEST_CASE("each expert's rows have its weights, and an expert without rows has no tile") {
  const int64_t N = 24, K = 40;
  for (const auto& first : kFirsts)
    for (const bool trans_b : {false, true}) {
      const GroupsOf all{.trans_b = trans_b,
                         .N = N,
                         .K = K,
                         .a = at(kA),
                         .b = at(kB),
                         .c = const_cast<char*>(at(kC))};
      int64_t rows = 0;
      for (size_t e = 0; e + 1 < first.size(); ++e) {
        CAPTURE(first, trans_b, e);
        const Group g = group_of(all, first[e], first[e + 1], int64_t(e));
        CHECK(g.shape == GroupShape{first[e + 1] - first[e], int32_t(N), int32_t(K)});
        CHECK(number(g.a) == kA + first[e] * K * 2);
        CHECK(number(g.b) == kB + int64_t(e) * K * N * 2);
        CHECK(number(g.c) == kC + first[e] * N * 2);
        CHECK(g.a_stride == K);
        CHECK(g.b_stride == (trans_b ? K : N));
        CHECK(g.c_stride == N);
        // TMA reads from multiples of 16 bytes.
        CHECK(number(g.a) % 16 == 0);
        CHECK(number(g.c) % 16 == 0);
        rows += g.shape.m;
      }
      CHECK(rows == first.back());
    }
}

TEST_CASE("a weight's gradient sums its expert's rows, and stays without them") {
  const int64_t M = 16, N = 48;
  for (const auto& first : kFirsts) {
    const GroupsOf all{.weights = true,
                       .M = M,
                       .N = N,
                       .c_bytes = 4,
                       .a = at(kA),
                       .b = at(kB),
                       .c = const_cast<char*>(at(kC))};
    for (size_t e = 0; e + 1 < first.size(); ++e) {
      CAPTURE(first, e);
      const int32_t count = first[e + 1] - first[e];
      const Group g = group_of(all, first[e], first[e + 1], int64_t(e));
      CHECK(g.shape == GroupShape{count > 0 ? int32_t(M) : 0, int32_t(N), count});
      CHECK(number(g.a) == kA + first[e] * M * 2);
      CHECK(number(g.b) == kB + first[e] * N * 2);
      CHECK(number(g.c) == kC + int64_t(e) * M * N * 4);
      CHECK(g.a_stride == M);
      CHECK(g.b_stride == N);
      CHECK(g.c_stride == N);
    }
  }
}

TEST_CASE("transposed copies of experts' 8-bit rows begin at 16 bytes and do not overlap") {
  const int64_t M = 32, N = 16;
  for (const auto& first : kFirsts) {
    const int64_t E = int64_t(first.size()) - 1, R = first.back();
    const GroupsOf all{.weights = true,
                       .a_padded = true,
                       .b_padded = true,
                       .M = M,
                       .N = N,
                       .a_bytes = 1,
                       .b_bytes = 1,
                       .c_bytes = 4,
                       .a = at(kA),
                       .b = at(kB),
                       .c = const_cast<char*>(at(kC))};
    int64_t a_end = kA, b_end = kB;
    for (int64_t e = 0; e < E; ++e) {
      CAPTURE(first, e);
      const int64_t count = first[size_t(e) + 1] - first[size_t(e)];
      const Group g = group_of(all, first[size_t(e)], first[size_t(e) + 1], e);
      CHECK(number(g.a) % 16 == 0);
      CHECK(number(g.b) % 16 == 0);
      CHECK(g.a_stride % 16 == 0);
      CHECK(g.a_stride >= count);
      CHECK(g.a_stride < count + 16);
      CHECK(g.b_stride == g.a_stride);
      CHECK(number(g.a) >= a_end);
      CHECK(number(g.b) >= b_end);
      a_end = number(g.a) + M * g.a_stride, b_end = number(g.b) + N * g.b_stride;
    }
    CHECK(a_end <= kA + PaddedColumns::elements(R, E, M));
    CHECK(b_end <= kB + PaddedColumns::elements(R, E, N));
  }
}

TEST_CASE("transposed copies of experts' 8-bit weights do not overlap") {
  const int64_t N = 48, K = 32, E = 5;
  const GroupsOf all{.b_padded = true, .N = N, .K = K, .a_bytes = 1, .b_bytes = 1, .b = at(kB)};
  int64_t end = kB;
  for (int64_t e = 0; e < E; ++e) {
    const Group g = group_of(all, 7 * e, 7 * e + 7, e);
    CHECK(g.shape == GroupShape{7, int32_t(N), int32_t(K)});
    CHECK(g.b_stride == K);
    CHECK(number(g.b) % 16 == 0);
    CHECK(number(g.b) >= end);
    end = number(g.b) + N * K;
  }
  CHECK(end <= kB + PaddedColumns::elements(E * K, E, N));
}

TEST_CASE("the arrays of all experts share one piece of memory and do not overlap") {
  for (const int E : {1, 3, 128}) {
    std::vector<unsigned char> bytes(size_t(GroupMemory::bytes(E)) + 16, 0xee);
    GroupMemory memory(bytes.data(), E);
    const auto fill = [&](auto* array, int byte) {
      std::memset(static_cast<void*>(array), byte, size_t(E) * sizeof *array);
    };
    const GroupArrays& g = memory.arrays;
    fill(g.a, 1), fill(g.b, 2), fill(g.c, 3), fill(g.a_stride, 4), fill(g.b_stride, 5);
    fill(g.c_stride, 6), fill(g.shape, 7), std::memset(memory.alpha, 8, sizeof(float));
    std::vector<size_t> counts(9);
    for (const unsigned char b : bytes)
      if (b < counts.size()) ++counts[b];
    for (size_t i = 1; i <= 6; ++i) CHECK(counts[i] == size_t(E) * 8);
    CHECK(counts[7] == size_t(E) * sizeof(GroupShape));
    CHECK(counts[8] == sizeof(float));
    CHECK(bytes[size_t(GroupMemory::bytes(E))] == 0xee);
  }
}

}  // namespace kernels_grouped_groups_test
