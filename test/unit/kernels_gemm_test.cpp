// Tests matmul through a library of GEMMs with a stand-in for cuBLASLt: refusals, and the choice of
// algorithms.
#include <catch2/catch.hpp>

#include <set>

#include "base/log.h"
#include "kernels/cuda/gemm/gemm_timing.h"
#include "test/support/gemm_stand_in.h"
#include "test/support/kernels_testing.h"

namespace kernels_gemm_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;
using Catch::Contains;
using cuda::Epilogue;
using Status = cuda::GemmAnswer::Status;

namespace {

constexpr int64_t M = 12, N = 16, K = 24;

struct Lines : log::Overlay {
  Lines() { log::set_overlay(this); }
  ~Lines() override { log::set_overlay(nullptr); }
  void interrupt(const std::function<void()>& write_line) override { write_line(), ++count; }
  int count = 0;
};

// A matmul in bf16 with any of the epilogues, and its operands.
struct Operands {
  Epilogue epilogue;
  Array a, b, bias, c, beside, sums;
  explicit Operands(Epilogue e, DType c_type = DType::bf16)
      : epilogue(e),
        a(Array::normal(DType::bf16, M * K, 1)),
        b(Array::normal(DType::bf16, K * N, 2)),
        bias(Array::normal(DType::bf16, N, 3)),
        c(e == Epilogue::sums ? DType::f32 : c_type, M * N),
        beside(Array::normal(DType::bf16, M * N, 4)),
        sums(Array::normal(DType::f32, M, 5)) {}
  Matmul matmul() {
    Matmul m{.a = a, .b = b, .c_MN = c, .M = M, .N = N, .K = K};
    if (epilogue == Epilogue::bias || epilogue == Epilogue::gelu_bias) m.bias_N = bias;
    if (epilogue == Epilogue::gelu || epilogue == Epilogue::gelu_bias) m.gelu_input_MN = beside;
    if (epilogue == Epilogue::dgelu) m.dgelu_of_MN = beside;
    if (epilogue == Epilogue::sums) m.trans_a = true, m.a_sums_M = sums;
    return m;
  }
};

constexpr double kNoHurry = 1e9;  // seconds

// A fresh library, and matmul through it.
struct Bench {
  GemmStandIn library;
  cuda::LibraryMatmul matmul{library, library};
  ~Bench() { CHECK(library.taken == 0); }
  void run(Operands& o) { matmul.run(o.matmul(), nullptr); }
  std::pair<Epilogue, uint64_t> last() const { return library.ran.back(); }
  // The measurements of a run's ranks after their first step.
  std::string choose() {
    return cuda::print_gemm_choices(
        {library.version(), matmul.time(matmul.unchosen(), kNoHurry, nullptr)});
  }
  void use(const std::string& text) { matmul.use(cuda::parse_gemm_choices(text).choices); }
};

// The result, its input of gelu and the sums against the CPU kernels; two roundings more are
// allowed.
void require_result(Operands& got) {
  static Closeness close("GEMMs with refusals");
  Operands want(got.epilogue, got.c.dtype());
  cpu::run(want.matmul());
  const Rule rule{.dtype = DType::bf16, .K = double(K), .scale = 4};
  REQUIRE(close(got.c, want.c.values(), rule) == "");
  REQUIRE(close(got.beside, want.beside.values(), rule) == "");
  REQUIRE(close(got.sums, want.sums.values(), rule) == "");
}

const Epilogue kEpilogues[] = {Epilogue::none,      Epilogue::bias,  Epilogue::gelu,
                               Epilogue::gelu_bias, Epilogue::dgelu, Epilogue::sums};

}  // namespace

TEST_CASE("a matmul through the library equals the CPU's, with each epilogue") {
  for (const Epilogue e : kEpilogues) {
    CAPTURE(int(e));
    Bench bench;
    Operands o(e);
    bench.run(o);
    require_result(o);
    CHECK(bench.last() == std::pair(e == Epilogue::sums ? Epilogue::none : e, uint64_t(1)));
  }
}

TEST_CASE("partial sums of a split K stay in fp32: algorithms that would round them do not run") {
  using S = cuda::SplitSums;
  for (const DType c : {DType::bf16, DType::f32}) {
    CAPTURE(dtype_name(c));
    Bench bench;
    bench.library.split_sums = {{1, S::in_type_of_c}, {2, S::in_c}, {3, S::in_fp32}};
    // A choice that was stored before.
    const auto chosen = [&](uint64_t number) {
      Operands o(Epilogue::none, c);
      bench.use(cuda::print_gemm_choices(
          {bench.library.version(), {{.key = cuda::key_of(o.matmul()), .bits = {number}}}}));
    };
    chosen(2);
    Operands o(Epilogue::none, c);
    bench.run(o);
    require_result(o);
    CHECK(bench.last().second == (c == DType::f32 ? 2 : 3));
    CHECK(bench.library.ran.size() == 1);
  }
  Bench bench;
  bench.library.split_sums = {{1, S::in_type_of_c}};
  bench.library.times = {{{Epilogue::none, 1}, 0.1}, {{Epilogue::none, 3}, 0.5}};
  Operands o(Epilogue::none);
  bench.run(o);
  CHECK(bench.last().second == 2);
  bench.choose();  // measures the others, and takes the fastest of them
  bench.run(o);
  CHECK(bench.last().second == 3);
}

TEST_CASE("if an algorithm refuses a call, the next one is used from then on, with one note") {
  for (const Epilogue e : {Epilogue::none, Epilogue::bias, Epilogue::gelu_bias}) {
    CAPTURE(int(e));
    Bench bench;
    bench.library.answers = {{1, Status::refused}, {2, Status::refused}};
    const Lines lines;
    for (int i = 0; i < 3; ++i) {
      Operands o(e);
      bench.run(o);
      require_result(o);
    }
    CHECK(lines.count == 2);
    CHECK(bench.library.ran.size() == 5);  // 1, 2, 3; 3; 3
    CHECK(bench.last() == std::pair(e, uint64_t(3)));
  }
}

TEST_CASE("if the library refuses an epilogue or a bias, our kernels compute it, with one note") {
  const bool offered = GENERATE(true, false);
  for (const Epilogue e : {Epilogue::bias, Epilogue::gelu, Epilogue::gelu_bias, Epilogue::dgelu}) {
    CAPTURE(offered, int(e));
    Bench bench;
    for (const Epilogue refused : {e, Epilogue::bias}) {
      if (offered) bench.library.epilogue_answers[refused] = Status::refused;
      if (!offered) bench.library.offers[refused] = {};
    }
    const Lines lines;
    int first = 0;
    for (int i = 0; i < 3; ++i) {
      Operands o(e, e == Epilogue::bias && i == 2 ? DType::f32 : DType::bf16);
      bench.run(o);
      require_result(o);
      if (i == 0) first = lines.count;
      if (i == 1) CHECK(lines.count == first);
    }
    CHECK(bench.last().first == Epilogue::none);
  }
}

TEST_CASE("a plain GEMM that the library refuses is an error with its reason, each time") {
  Bench bench;
  Operands o(Epilogue::none);
  bench.library.epilogue_answers[Epilogue::none] = Status::refused;
  for (int i = 0; i < 2; ++i)
    CHECK_THROWS_WITH(bench.run(o), Contains("the GEMM of M 12 N 16 K 24 of bf16 and bf16") &&
                                        Contains("the stand-in refuses"));
  Bench none;
  none.library.offers[Epilogue::none] = {};
  CHECK_THROWS_WITH(none.run(o), Contains("no algorithm") && Contains("the stand-in's why"));
}

TEST_CASE("a failure of the GPU or of the library is not a refusal of a GEMM") {
  Bench bench;
  Operands o(Epilogue::bias);
  bench.library.answers[1] = Status::refused;
  bench.library.has_failed = true;
  CHECK_THROWS_WITH(bench.run(o), Contains("illegal memory access"));
  bench.library.has_failed = false;
  bench.library.answers[1] = Status::failed;
  CHECK_THROWS_WITH(bench.run(o), Contains("the stand-in refuses"));
  CHECK(bench.library.healthy_asked == 1);  // the second one was an error at once
  bench.library.answers.clear();
  bench.run(o);
  CHECK(bench.last().second == 1);  // nothing was decided
}

TEST_CASE("a capture uses algorithms that ran before it, and a refusal within it is an error") {
  Bench bench;
  Operands o(Epilogue::gelu);
  bench.library.captures = true;
  CHECK_THROWS_WITH(bench.run(o), Contains("with gelu was not computed before the capture"));
  bench.library.captures = false;
  bench.library.answers[1] = Status::refused;
  bench.run(o);
  bench.library.captures = true;
  bench.run(o);
  CHECK(bench.last().second == 2);
  bench.library.answers[2] = Status::refused;
  CHECK_THROWS_WITH(bench.run(o), Contains("in the capture of a graph the stand-in refuses"));
  // Other algorithms, from a choice, must run before a capture too.
  bench.library.answers.clear(), bench.library.captures = false;
  bench.library.times[{Epilogue::gelu, 3}] = 0.1;
  bench.use(bench.choose());
  bench.library.captures = true;
  CHECK_THROWS_WITH(bench.run(o), Contains("was not computed before the capture"));
}

TEST_CASE("the fastest algorithm is chosen, the same on a rank that did not measure") {
  Bench first, other;
  for (const Epilogue e : {Epilogue::none, Epilogue::bias}) {
    Operands o(e);
    first.library.times = {{{e, 1}, 1.0}, {{e, 2}, 0.99}, {{e, 3}, 0.8}};
    first.run(o), other.run(o);
    CHECK(other.last().second == 1);
    const std::string told = first.choose();
    other.use(told), first.use(told);
    for (Bench* b : {&first, &other}) {
      b->run(o);
      CHECK(b->last() == std::pair(e, uint64_t(3)));
      require_result(o);
      CHECK(b->matmul.unchosen().empty());
    }
  }
}

TEST_CASE("an algorithm that is hardly faster, refuses or has too little memory is not chosen") {
  Operands o(Epilogue::none);
  const auto chosen = [&](auto prepare) {
    Bench bench;
    bench.run(o);
    prepare(bench.library);
    bench.use(bench.choose());
    bench.run(o);
    return bench.last().second;
  };
  CHECK(chosen([](GemmStandIn& l) { l.times[{Epilogue::none, 2}] = 0.99; }) == 1);
  CHECK(chosen([](GemmStandIn& l) { l.times[{Epilogue::none, 2}] = 0.9; }) == 2);
  CHECK(chosen([](GemmStandIn& l) {
          l.times[{Epilogue::none, 2}] = 0.9, l.answers[2] = Status::refused;
        }) == 1);
  Bench bench;
  bench.run(o);
  bench.library.free_bytes = 100;
  const Lines lines;
  CHECK(bench.matmul.time(bench.matmul.unchosen(), kNoHurry, nullptr).empty());
  CHECK(lines.count == 1);
}

TEST_CASE("no GEMM is begun when the time for measuring has passed") {
  Bench bench;
  Operands plain(Epilogue::none), bias(Epilogue::bias), wide(Epilogue::none, DType::f32);
  for (int i = 0; i < 3; ++i) bench.run(plain);
  for (int i = 0; i < 2; ++i) bench.run(bias);
  bench.run(wide);
  const auto keys = bench.matmul.unchosen();  // by their runs, since all have one size
  REQUIRE(keys.size() == 3);
  CHECK(bench.matmul.time(keys, 0, nullptr).empty());
  // A key has 2 runs of each of three algorithms, one to see how long they take, and 3 rounds of
  // all three. Each takes a second.
  const Lines lines;
  const auto found = bench.matmul.time(keys, 2 * 16 - 1, nullptr);
  CHECK(lines.count == 1);
  REQUIRE(found.size() == 2);
  CHECK(found[0].key.epilogue == Epilogue::none);
  CHECK(found[0].key.c == DType::bf16);
  CHECK(found[1].key.epilogue == Epilogue::bias);
}

TEST_CASE(
    "of 32 algorithms, the fastest are measured again in turns, and the first of equal ones") {
  Bench bench;
  Operands o(Epilogue::none);
  auto& offered = bench.library.offers[Epilogue::none];
  for (uint64_t n = 1; n <= 40; ++n) {
    offered.push_back(n);
    bench.library.times[{Epilogue::none, n}] = 2;
  }
  for (const uint64_t n : {31, 9, 20, 25, 40}) bench.library.times[{Epilogue::none, n}] = 1;
  bench.run(o);
  bench.library.ran.clear();
  bench.use(bench.choose());
  std::vector<uint64_t> ran;
  for (const auto& [epilogue, number] : bench.library.ran) ran.push_back(number);
  std::vector<uint64_t> expected{1, 1, 1};  // its code, how long a call takes, the measurement
  for (uint64_t n = 2; n <= 32; ++n) expected.insert(expected.end(), {n, n});
  for (int round = 0; round < 3; ++round) expected.insert(expected.end(), {1, 9, 20, 25});
  CHECK(ran == expected);
  bench.run(o);
  CHECK(bench.last().second == 9);
}

TEST_CASE("one measurement of a GEMM takes some milliseconds, whatever the GEMM takes") {
  CHECK(cuda::calls_at_once(1e-5, 10) == 10);
  CHECK(cuda::calls_at_once(1e-3, 10) == 5);
  CHECK(cuda::calls_at_once(4e-3, 3) == 1);
  CHECK(cuda::calls_at_once(1, 3) == 1);
  CHECK(cuda::calls_at_once(1e-9, 3) == 3);
  for (const double fast : {1e-4, 4e-3}) {
    Bench bench;
    Operands o(Epilogue::none);
    for (const uint64_t n : {1, 2, 3}) bench.library.times[{Epilogue::none, n}] = fast;
    bench.run(o);
    bench.library.ran.clear();
    bench.choose();
    CHECK(bench.library.ran.size() == (fast < 1e-3 ? 1 + 3 * (1 + 3) + 3 * 3 * 10 : 1 + 3 * 2 + 9));
  }
}

TEST_CASE("calls of a measurement use sets of operands in turn, which do not stay in the cache") {
  CHECK(cuda::sets_in_turn(10, 0) == 1);
  CHECK(cuda::sets_in_turn(10, 50) == 6);
  CHECK(cuda::sets_in_turn(40, 50) == 3);
  CHECK(cuda::sets_in_turn(60, 50) == 2);
  CHECK(cuda::sets_in_turn(100, 50) == 1);
  CHECK(cuda::sets_in_turn(1, 1 << 20) == 64);
  const int64_t bytes = 2 * (M * K + K * N + M * N);
  for (const auto& [cache, sets] : {std::pair{int64_t(0), size_t(1)}, {3 * bytes, size_t(4)}}) {
    for (const Epilogue e : {Epilogue::none, Epilogue::gelu, Epilogue::sums}) {
      CAPTURE(cache, int(e));
      Bench bench;
      bench.library.cache = cache;
      Operands o(e);
      bench.run(o);
      bench.library.results.clear();
      bench.choose();
      const auto& used = bench.library.results;
      REQUIRE(used.size() > 10);
      // The first GEMMs are those of the library's epilogue; then mtrain's kernels follow.
      for (size_t i = sets; i < 10; ++i) CHECK(used[i] == used[i - sets]);
      CHECK(std::set<const void*>(used.begin(), used.begin() + 10).size() == sets);
    }
  }
}

TEST_CASE("without memory for several sets of operands, a GEMM is measured with one") {
  Bench bench;
  Operands o(Epilogue::none);
  bench.run(o);
  bench.library.cache = 1 << 20;
  bench.library.free_bytes = 4096;
  bench.library.times[{Epilogue::none, 2}] = 0.5;
  bench.library.results.clear();
  bench.use(bench.choose());
  CHECK(std::set<const void*>(bench.library.results.begin(), bench.library.results.end()).size() ==
        1);
  bench.run(o);
  CHECK(bench.last().second == 2);
}

TEST_CASE("the library's sums are used only where they measure faster than a kernel for them") {
  for (const double fused : {1.4, 1.5, 1.6}) {
    CAPTURE(fused);
    Bench bench;
    Operands o(Epilogue::sums);
    bench.run(o);
    CHECK(bench.library.column_sums == 1);  // nothing is measured yet
    // A plain GEMM takes 1 second, and the kernel half of one.
    for (const uint64_t n : {1, 2, 3}) bench.library.times[{Epilogue::sums, n}] = fused;
    bench.use(bench.choose());
    const int before = bench.library.column_sums;
    o.sums = Operands(Epilogue::sums).sums;
    bench.run(o);
    require_result(o);
    CHECK((bench.library.column_sums == before) == (fused < 1.5));
  }
}

TEST_CASE("other epilogues leave the library where our kernels measure faster") {
  for (const double fused : {0.9, 1.1}) {
    Bench bench;
    Operands o(Epilogue::gelu);
    bench.run(o);
    for (const uint64_t n : {1, 2, 3}) bench.library.times[{Epilogue::gelu, n}] = fused;
    bench.use(bench.choose());
    bench.run(o);
    require_result(o);
    CHECK(bench.last().first == (fused < 1 ? Epilogue::gelu : Epilogue::none));
  }
}

TEST_CASE("a kept choice is read back, and made again if the library lacks its algorithm") {
  std::string kept;
  {
    Bench bench;
    Operands o(Epilogue::none);
    bench.run(o);
    bench.library.times[{Epilogue::none, 3}] = 0.5;
    bench.use(bench.choose());
    kept = cuda::print_gemm_choices({bench.library.version(), bench.matmul.choices()});
  }
  const cuda::GemmChoices parsed = cuda::parse_gemm_choices(kept);
  REQUIRE((parsed.version == "the stand-in 1" && parsed.choices.size() == 1));
  REQUIRE(cuda::print_gemm_choices(parsed) == kept);
  Operands o(Epilogue::none);
  {
    Bench bench;
    bench.use(kept);
    bench.run(o);
    CHECK(bench.last().second == 3);
    CHECK(bench.matmul.unchosen().empty());
  }
  Bench bench;
  bench.library.offers[Epilogue::none] = {1, 2};
  bench.use(kept);
  const Lines lines;
  bench.run(o);
  CHECK((bench.last().second == 1 && lines.count == 1));
  REQUIRE(bench.matmul.unchosen().size() == 1);
  bench.library.times[{Epilogue::none, 2}] = 0.5;
  bench.use(bench.choose());
  bench.run(o);
  CHECK(bench.last().second == 2);
}

TEST_CASE("keys and choices are the same after a way through text, and other text is refused") {
  Bench bench;
  for (const Epilogue e : kEpilogues) {
    Operands o(e);
    bench.run(o);
  }
  const auto keys = bench.matmul.unchosen();
  REQUIRE(keys.size() >= 6);
  CHECK(cuda::parse_gemm_keys(cuda::print_gemm_keys(keys)) == keys);
  CHECK(cuda::parse_gemm_keys("").empty());
  CHECK(cuda::parse_gemm_choices("").choices.empty());
  CHECK_THROWS_AS(cuda::parse_gemm_keys("1 2 three"), RunError);
  CHECK_THROWS_AS(cuda::parse_gemm_choices("the stand-in 1\n1 2 3"), RunError);
  std::string text = bench.choose();
  text.replace(text.find("fused"), 5, "other");
  CHECK_THROWS_AS(cuda::parse_gemm_choices(text), RunError);
}

TEST_CASE("GEMMs that leave different numbers of multiprocessors have choices of their own") {
  Bench bench;
  bench.library.times = {{{Epilogue::none, 2}, 0.5}};
  Operands o(Epilogue::none);
  const auto run = [&](int64_t margin) {
    Matmul m = o.matmul();
    m.sm_margin = margin;
    bench.matmul.run(m, nullptr);
    return bench.last().second;
  };
  CHECK(run(16) == 1);
  const auto keys = bench.matmul.unchosen();
  REQUIRE((keys.size() == 1 && keys[0].sm_margin == 16));
  CHECK(cuda::parse_gemm_keys(cuda::print_gemm_keys(keys)) == keys);
  const std::string text = bench.choose();
  const auto parsed = cuda::parse_gemm_choices(text);
  REQUIRE((parsed.choices.size() == 1 && parsed.choices[0].key == keys[0]));
  CHECK(cuda::print_gemm_choices(parsed) == text);
  CHECK((run(16) == 2 && run(8) == 1 && run(0) == 1));
  // A key without a margin has the text that it had before there were margins.
  cuda::MatmulKey plain = keys[0];
  plain.sm_margin = 0;
  const std::string line = cuda::print_gemm_keys({plain});
  CHECK(line.find_first_not_of("0123456789 \n") == std::string::npos);
  CHECK(cuda::parse_gemm_keys(line)[0] == plain);
  std::string unknown = cuda::print_gemm_keys(keys);
  unknown.replace(unknown.find("margin"), 6, "motion");
  CHECK_THROWS_AS(cuda::parse_gemm_keys(unknown), RunError);
}

}  // namespace kernels_gemm_test
