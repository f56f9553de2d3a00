// Tests the choice between mtrain's own kernel and CUTLASS for the GEMMs of experts, with a
// stand-in for both.
#include <catch2/catch.hpp>

#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "kernels/cuda/grouped/grouped_choice.h"
#include "kernels/cuda/grouped/grouped_engine.h"

namespace kernels_grouped_choice_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::kernels::cuda;
using Catch::Contains;

namespace {

struct LineCount : log::Overlay {
  LineCount() { log::set_overlay(this); }
  ~LineCount() override { log::set_overlay(nullptr); }
  void interrupt(const std::function<void()>& write_line) override { write_line(), ++count; }
  int count = 0;
};

struct GroupedStandIn final : GroupedDevice {
  // --- members that a test sets ---
  std::string none, refusal, its_version = "4.2.0";
  float worst = 0.1f;
  bool compared = true, captures = false, fits_memory = true;
  Times times{.own = 2, .cutlass = 1};
  // --- members that a test reads ---
  mutable std::vector<std::string> did;
  mutable int64_t timed_rows = 0;
  mutable double clock = 0;

  std::string why_no_cutlass() const override { return none; }
  std::string version() const override { return its_version; }
  bool capturing(CUstream_st*) const override { return captures; }
  void run_own(const GroupedCall&, CUstream_st*) const override { did.push_back("own"); }
  std::string run_cutlass(const GroupedCall&, CUstream_st*) const override {
    if (refusal.empty()) did.push_back("cutlass");
    return refusal;
  }
  Comparison compare(const GroupedCall&, bool keep, CUstream_st*) const override {
    if (!refusal.empty()) return {.refusal = refusal};
    did.push_back(keep ? "both, kept cutlass" : "both");
    return {.refusal = {}, .worst = worst, .compared = compared};
  }
  Times time(const GroupedKey&, int64_t rows, CUstream_st*) const override {
    if (!fits_memory) throw RunError("no memory");
    timed_rows = rows;
    clock += 10;
    return times;
  }
  double now() const override { return clock; }
};

alignas(16) char memory[64];
ConstSpan operand(DType type) { return {memory, 1 << 20, type}; }

GroupedMatmul rows_call(DType a = DType::bf16, DType b = DType::bf16) {
  return {.a_RK = operand(a),
          .b_EKN = operand(b),
          .first_E1 = operand(DType::i32),
          .c_RN = {memory, 1 << 20, DType::bf16},
          .R = 100,
          .N = 16,
          .K = 32,
          .E = 4,
          .trans_b = true};
}
GroupedWeightGrad weights_call(bool accumulate) {
  return {.a_RM = operand(DType::bf16),
          .b_RN = operand(DType::bf16),
          .first_E1 = operand(DType::i32),
          .c_EMN = {memory, 1 << 20, DType::f32},
          .R = 100,
          .M = 16,
          .N = 32,
          .E = 4,
          .accumulate = accumulate};
}

// What a rank does: GroupedChoices, and the own kernel for what it does not compute.
struct Rank {
  GroupedStandIn gpu;
  GroupedChoices choices{gpu};
  std::string run(const GroupedCall& call) {
    gpu.did.clear();
    if (!choices.run(call, nullptr)) gpu.run_own(call, nullptr);
    std::string all;
    for (const std::string& one : gpu.did) all += (all.empty() ? "" : ", ") + one;
    return all;
  }
  std::string choose() { return choices.time(choices.unchosen(), 1e9, nullptr); }
};

}  // namespace

TEST_CASE("CUTLASS computes a kind of GEMM once it was equal once and then measured to be faster") {
  for (const GroupedCall& call : {GroupedCall(rows_call()), GroupedCall(weights_call(true))}) {
    Rank rank;
    CHECK(rank.choices.unchosen().empty());
    CHECK(rank.run(call) == "both");
    CHECK(rank.run(call) == "own");
    const std::string chosen = rank.choose();
    CHECK_THAT(chosen, Contains("grouped 4.2.0") && Contains("cutlass"));
    CHECK(rank.gpu.timed_rows == 128);
    CHECK(rank.run(call) == "cutlass");
    CHECK(rank.choices.unchosen().empty());
    CHECK(rank.choices.choices() == chosen);
  }
}

TEST_CASE("mtrain's kernel stays where CUTLASS is not clearly faster") {
  Rank rank;
  rank.gpu.times = {.own = 1, .cutlass = 0.99};
  rank.run(rows_call());
  CHECK_THAT(rank.choose(), Contains(" own\n"));
  CHECK(rank.run(rows_call()) == "own");
}

TEST_CASE("a result that differs is not used, with one warning that has the sizes") {
  Rank rank;
  rank.gpu.worst = 40;
  const LineCount lines;
  CHECK(rank.run(rows_call()) == "both");  // C has the result of mtrain's kernel
  for (int i = 0; i < 3; ++i) CHECK(rank.run(rows_call()) == "own");
  CHECK(lines.count == 1);
  CHECK(rank.choices.unchosen().empty());  // it is not timed
  CHECK_THAT(describe(key_of(rows_call())), Contains("4 experts, N 16 K 32") && Contains("bf16"));
  Rank nan;
  nan.gpu.worst = NAN;
  nan.run(rows_call());
  CHECK(nan.choices.unchosen().empty());
  CHECK(nan.run(rows_call()) == "own");
}

TEST_CASE("a refusal falls back at the first use and later, with one warning") {
  const bool later = GENERATE(false, true);
  Rank rank;
  if (later) rank.run(rows_call()), rank.choose();
  rank.gpu.refusal = "initialize: the stand-in refuses";
  const LineCount lines;
  for (int i = 0; i < 3; ++i) CHECK(rank.run(rows_call()) == "own");
  CHECK(lines.count == 1);
  rank.gpu.refusal.clear();
  CHECK(rank.run(rows_call()) == "own");
}

TEST_CASE("a restored choice is checked at its first use, and then has CUTLASS's bits") {
  Rank first;
  first.run(rows_call());
  first.choose();
  Rank resumed;
  resumed.choices.use(first.choices.choices());
  CHECK(resumed.run(rows_call()) == "both, kept cutlass");
  CHECK(resumed.run(rows_call()) == "cutlass");
  Rank wrong;
  wrong.choices.use(first.choices.choices());
  wrong.gpu.worst = 2;
  wrong.run(rows_call());
  CHECK(wrong.run(rows_call()) == "own");
}

TEST_CASE("choices of another version of CUTLASS are ignored, with one note") {
  Rank first;
  for (const bool accumulate : {false, true}) first.run(weights_call(accumulate));
  first.choose();
  Rank other;
  other.gpu.its_version = "4.3.0";
  const LineCount lines;
  other.choices.use(first.choices.choices());
  CHECK(lines.count == 1);
  CHECK(other.choices.choices().empty());
  CHECK(other.run(weights_call(true)) == "both");
  CHECK(other.run(weights_call(true)) == "own");
}

TEST_CASE("the capture of a graph compares nothing") {
  Rank rank;
  rank.gpu.captures = true;
  CHECK(rank.run(rows_call()) == "own");
  rank.gpu.captures = false;
  CHECK(rank.run(rows_call()) == "both");
  rank.choose();
  rank.gpu.captures = true;
  CHECK(rank.run(rows_call()) == "cutlass");
}

TEST_CASE("results that are all 0 show nothing: the next call is compared") {
  Rank rank;
  rank.gpu.compared = false;
  CHECK(rank.run(rows_call()) == "both");
  CHECK(rank.choices.unchosen().empty());
  rank.gpu.compared = true;
  CHECK(rank.run(rows_call()) == "both");
  CHECK(rank.run(rows_call()) == "own");
}

TEST_CASE("the number of rows is not part of a kind; other sizes, types and sums are") {
  Rank rank;
  GroupedMatmul more = rows_call();
  more.R = 1000;
  CHECK(rank.run(rows_call()) == "both");
  CHECK(rank.run(more) == "own");
  CHECK_THAT(rank.choices.unchosen(), Contains(" 1024\n"));
  GroupedMatmul other = rows_call();
  other.trans_b = false;
  CHECK(rank.run(other) == "both");
  CHECK(rank.run(rows_call(DType::f8e4m3, DType::f8e4m3)) == "both");
  CHECK(rank.run(rows_call(DType::f8e5m2, DType::f8e4m3)) == "both");
  CHECK(rank.run(weights_call(false)) == "both");
  CHECK(rank.run(weights_call(true)) == "both");
}

TEST_CASE("operands that CUTLASS has no kernel for are left to mtrain's") {
  Rank rank;
  std::vector<GroupedMatmul> none(6, rows_call());
  none[0].a_RK.dtype = none[0].b_EKN.dtype = DType::f16;
  none[1].c_RN.dtype = DType::f32;
  none[2].K = 36;
  none[3].N = 12;
  none[4].a_RK.data = memory + 2;
  none[5] = rows_call(DType::f8e4m3, DType::f8e5m2);
  for (size_t i = 0; i < none.size(); ++i) {
    CAPTURE(i);
    CHECK(rank.run(none[i]) == "own");
  }
  GroupedMatmul odd = rows_call(DType::f8e4m3, DType::f8e4m3);
  odd.K = 24;  // enough for bf16
  CHECK(rank.run(odd) == "own");
  GroupedMatmul empty = rows_call();
  empty.R = 0;
  CHECK(rank.run(empty) == "own");
  rank.gpu.none = "no Hopper";
  CHECK(rank.run(rows_call()) == "own");
  CHECK(rank.choices.time("", 1, nullptr).empty());
}

TEST_CASE("a measurement ends with its time, and one that does not fit is skipped") {
  Rank rank;
  for (const bool accumulate : {false, true}) rank.run(weights_call(accumulate));
  CHECK(split_gemm_lines(rank.choices.time(rank.choices.unchosen(), 5, nullptr)).grouped.size() >
        0);
  CHECK(rank.choices.unchosen() != "");  // one of the two was not begun
  rank.gpu.fits_memory = false;
  CHECK(rank.choose() == "");
}

TEST_CASE("lines of grouped GEMMs are told from the library's, and broken ones are refused") {
  Rank rank;
  rank.run(rows_call());
  rank.choose();
  const std::string grouped = rank.choices.choices(), library = "cuBLASLt 1, a GPU\n1 2 3\n";
  const GemmLines lines = split_gemm_lines(library + grouped);
  CHECK(lines.grouped == grouped);
  CHECK(lines.others == library);
  for (const char* broken : {"grouped 4.2.0 1 2", "grouped 4.2.0 0 1 0 16 32 4 1 1 1 128 other",
                             "grouped 4.2.0 0 1 0 16 0 4 1 1 1 128 own"})
    CHECK_THROWS_AS(rank.choices.use(broken), RunError);
  CHECK_THROWS_AS(rank.choices.use("grouped 4.2.0 0 1 0 16 32 4 1 1 1 128"), RunError);
}

}  // namespace kernels_grouped_choice_test
