// Tests how ranks agree on the algorithms of GEMMs, with stand-ins for GPUs: rank 0 measures what
// any rank has run, and checkpoints keep the choices.
#include <catch2/catch.hpp>

#include <array>

#include "../unit/comm_testing.h"
#include "../unit/gemm_stand_in.h"
#include "comm/host_collectives.h"
#include "run/gemm_choice.h"
#include "train_testing.h"

using namespace mtrain;
using namespace mtrain::test;
using kernels::cuda::Epilogue;

namespace {

// A rank's GPU. All GEMMs multiply matrices of zeros.
class StandInTuner final : public ops::GemmTuner {
 public:
  std::string unchosen() override { return kernels::cuda::print_gemm_keys(matmul_.unchosen()); }
  std::string time(const std::string& gemms) override {
    ++timed;
    return kernels::cuda::print_gemm_choices(
        {library.version(), matmul_.time(kernels::cuda::parse_gemm_keys(gemms), nullptr)});
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
  // Their alignment is part of what names a GEMM, so that it must be the same in every call.
  static constexpr int64_t kMostColumns = 64;
  alignas(256) float a_[4 * 8] = {}, b_[8 * kMostColumns] = {}, c_[4 * kMostColumns] = {};
  kernels::cuda::LibraryMatmul matmul_{library, library};
};

}  // namespace

TEST_CASE("rank 0 measures the GEMMs of all ranks, and all take its choices") {
  std::array<StandInTuner, 3> tuners;
  for (uint64_t r = 0; r < 3; ++r) {  // each GPU's clock would choose another one
    const uint64_t fastest = 3 - r;
    tuners[r].library.times[{Epilogue::none, fastest}] = 0.5;
  }
  run_ranks(3, "thread", [&](TestRank& rank) {
    StandInTuner& own = tuners[size_t(rank.rank())];
    const comm::HostCollectives control(rank.world, rank.device);
    // A GEMM that all ranks have, and one that only this rank's stage has.
    MT_CHECK(own.run(16) == 1 && own.run(32 + 16 * rank.rank()) == 1, "a choice before any");
    run::choose_gemms(own, control);
    MT_CHECK(own.timed == (rank.rank() == 0 ? 1 : 0), "rank {} measured", rank.rank());
    for (const int64_t N : {16, 32, 48, 64})
      MT_CHECK(own.run(N) == 3, "rank {} takes algorithm {} for N {}", rank.rank(), own.run(N), N);
    run::choose_gemms(own, control);  // nothing is left to choose
    MT_CHECK(own.timed == (rank.rank() == 0 ? 1 : 0), "rank {} measured again", rank.rank());
  });
  CHECK(tuners[0].choices() == tuners[2].choices());
}

TEST_CASE("a checkpoint keeps the choices of GEMM algorithms") {
  storage::TrainState state;
  {
    StandInTuner tuner;
    tuner.library.times[{Epilogue::none, 2}] = 0.5;
    tuner.run(16);
    tuner.use(tuner.time(tuner.unchosen()));
    run::save_gemms(tuner, state);
  }
  StandInTuner resumed, without;
  run::restore_gemms(resumed, state);
  CHECK(resumed.run(16) == 2);
  CHECK(resumed.unchosen().empty());
  run::restore_gemms(without, storage::TrainState{});
  CHECK(without.run(16) == 1);
  state.set("gemm_choices", "the stand-in 1\nrubbish");
  run::restore_gemms(without, state);  // told, and chosen anew
  CHECK(without.run(16) == 1);
}

TEST_CASE("a run on a CPU chooses no GEMM algorithms") {
  const auto device = Device::cpu(1);
  CHECK(!ops::gemm_tuner(*device));
}
