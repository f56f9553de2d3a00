// Tests how ranks agree on the algorithms of GEMMs, with stand-ins for GPUs: rank 0 measures what
// any rank has run, and checkpoints keep the choices.
#include <catch2/catch.hpp>

#include <array>

#include "comm/host_collectives.h"
#include "run/gemm_choice.h"
#include "test/support/comm_testing.h"
#include "test/support/gemm_stand_in.h"
#include "test/support/train_testing.h"

namespace parity_gemm_choice_test {

using namespace mtrain;
using namespace mtrain::test;
using kernels::cuda::Epilogue;

namespace {

// A rank's GPU. All GEMMs multiply matrices of zeros.
class StandInTuner final : public ops::GemmTuner {
 public:
  std::string unchosen() override { return kernels::cuda::print_gemm_keys(matmul_.unchosen()); }
  std::string time(const std::string& gemms, double seconds) override {
    ++timed;
    return kernels::cuda::print_gemm_choices(
        {library.version(), matmul_.time(kernels::cuda::parse_gemm_keys(gemms), seconds, nullptr)});
  }
  void use(const std::string& choices) override {
    matmul_.use(kernels::cuda::parse_gemm_choices(choices).choices);
  }
  std::string choices() override {
    return kernels::cuda::print_gemm_choices({library.version(), matmul_.choices()});
  }
  // Runs a GEMM of N columns and returns the algorithm's number.
  uint64_t run(int64_t N) {
    matmul_.run({.a = {a_, 4 * 8, DType::f32},
                 .b = {b_, 8 * N, DType::f32},
                 .c_MN = {c_, 4 * N, DType::f32},
                 .M = 4,
                 .N = N,
                 .K = 8},
                nullptr);
    return library.ran.back().second;
  }
  GemmStandIn library;
  int timed = 0;

 private:
  // Their alignment is part of a GEMM's key, so it must be the same in every call.
  static constexpr int64_t kMaxColumns = 64;
  alignas(256) float a_[4 * 8] = {}, b_[8 * kMaxColumns] = {}, c_[4 * kMaxColumns] = {};
  kernels::cuda::LibraryMatmul matmul_{library, library};
};

// A rank's GPU whose GEMMs are arbitrary lines.
class LinesTuner final : public ops::GemmTuner {
 public:
  std::string unchosen() override { return gemms; }
  std::string time(const std::string& text, double seconds) override {
    asked = text, asked_seconds = seconds;
    return "";
  }
  void use(const std::string&) override {}
  std::string choices() override { return ""; }
  std::string gemms, asked;
  double asked_seconds = 0;
};

constexpr double kTimeout = 600;  // seconds

}  // namespace

TEST_CASE("rank 0 measures the GEMMs of all ranks, and all take its choices") {
  std::array<StandInTuner, 3> tuners;
  for (uint64_t r = 0; r < 3; ++r) {  // each GPU's clock would choose a different algorithm
    const uint64_t fastest = 3 - r;
    tuners[r].library.times[{Epilogue::none, fastest}] = 0.5;
  }
  run_ranks(3, "thread", [&](TestRank& rank) {
    StandInTuner& own = tuners[size_t(rank.rank())];
    const comm::HostCollectives control(rank.world, rank.device);
    // A GEMM that all ranks have, and one that only this rank's stage has.
    MT_CHECK(own.run(16) == 1 && own.run(32 + 16 * rank.rank()) == 1, "a choice before any");
    run::choose_gemms(own, control, kTimeout);
    MT_CHECK(own.timed == (rank.rank() == 0 ? 1 : 0), "rank {} measured", rank.rank());
    for (const int64_t N : {16, 32, 48, 64})
      MT_CHECK(own.run(N) == 3, "rank {} takes algorithm {} for N {}", rank.rank(), own.run(N), N);
    run::choose_gemms(own, control, kTimeout);  // nothing is left to choose
    MT_CHECK(own.timed == (rank.rank() == 0 ? 1 : 0), "rank {} measured again", rank.rank());
  });
  CHECK(tuners[0].choices() == tuners[2].choices());
}

TEST_CASE("measuring ends long before the other ranks give up") {
  std::array<LinesTuner, 3> tuners;
  const int lines = int(run::kMaxMeasured);
  for (int r = 0; r < 3; ++r)
    for (int i = 0; i < lines; ++i)  // all ranks have every second GEMM
      tuners[size_t(r)].gemms +=
          i % 2 ? fmt::format("rank {} {}\n", r, i) : fmt::format("all {}\n", i);
  run_ranks(3, "thread", [&](TestRank& rank) {
    const comm::HostCollectives control(rank.world, rank.device);
    run::choose_gemms(tuners[size_t(rank.rank())], control, kTimeout);
  });
  CHECK(tuners[0].asked_seconds == kTimeout / 4);
  // The ranks take turns, so the costly GEMMs of each are measured: 1 + 3 lines for every two.
  std::string expected;
  for (int i = 0; i < lines / 2; i += 2) {
    expected += fmt::format("all {}\n", i);
    for (int r = 0; r < 3; ++r) expected += fmt::format("rank {} {}\n", r, i + 1);
  }
  CHECK(tuners[0].asked == expected);
  CHECK(tuners[1].asked.empty());
}

TEST_CASE("a checkpoint keeps the choices of GEMM algorithms") {
  storage::TrainState state;
  {
    StandInTuner tuner;
    tuner.library.times[{Epilogue::none, 2}] = 0.5;
    tuner.run(16);
    tuner.use(tuner.time(tuner.unchosen(), kTimeout));
    run::save_gemms(tuner, state);
  }
  StandInTuner resumed, without;
  run::restore_gemms(resumed, state);
  CHECK(resumed.run(16) == 2);
  CHECK(resumed.unchosen().empty());
  run::restore_gemms(without, storage::TrainState{});
  CHECK(without.run(16) == 1);
  state.set("gemm_choices", "the stand-in 1\nrubbish");
  run::restore_gemms(without, state);  // warns, and chooses again
  CHECK(without.run(16) == 1);
}

TEST_CASE("a run on a CPU chooses no GEMM algorithms") {
  const auto device = Device::cpu(1);
  CHECK(!ops::gemm_tuner(*device));
}

}  // namespace parity_gemm_choice_test
