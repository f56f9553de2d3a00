// Trains models whose output layer is in fp32 while all other weights are in 16 bits.
#include <bit>
#include <cmath>

#include <catch2/catch.hpp>

#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "test/support/temporary_folder.h"
#include "train_experts_testing.h"

namespace parity_head_in_fp32_test {

using namespace mtrain;
using namespace train_testing;

namespace {

const Changes kHead{"distributed.moe.lm_head_precision=float32"};
const Changes kHalf = join({kPlain, {"mixed_precision.name=bf16_mixed"}});

// What the launches of a step read and write, as names of types: "f32 f32 > f32".
std::map<std::string, std::string> types_of_step(const Changes& changes) {
  const Recipe r = tiny(changes, 2);
  std::map<std::string, std::string> types;
  run_ranks(2, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    if (rank.rank() == 0)
      rank.device.set_launch_check([&](Stream&, const device::LaunchInfo& info) {
        std::string text;
        for (const device::Access& a : info.reads) text += std::string(dtype_name(a.dtype)) + " ";
        text += ">";
        for (const device::Access& a : info.writes) text += " " + std::string(dtype_name(a.dtype));
        types[info.name] = text;
      });
    t.step();
    rank.device.set_launch_check({});
  });
  return types;
}

std::vector<double> losses_of(int ranks, const Changes& changes, int64_t steps) {
  return all_ranks(ranks, changes, steps, false)[0].losses;
}

}  // namespace

TEST_CASE(
    "an output layer in fp32 has GEMMs of unrounded weights, and logits that are not rounded") {
  const Recipe r = tiny(join({kHalf, kHead, kFsdp2, ep(2)}), 2);
  bool seen = false;
  run_ranks(2, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    t.step();
    if (rank.rank() == 0)
      rank.device.set_launch_check([&](Stream& stream, const device::LaunchInfo& info) {
        if (seen || info.name != std::string("matmul_output_fwd")) return;
        seen = true;
        REQUIRE(info.reads[0].dtype == DType::f32);
        REQUIRE(info.reads[1].dtype == DType::f32);
        REQUIRE(info.writes[0].dtype == DType::f32);
        const auto y = Tensor::of(info.reads[0]).to_host<float>(stream),
                   w = Tensor::of(info.reads[1]).to_host<float>(stream),
                   logits = Tensor::of(info.writes[0]).to_host<float>(stream);
        const auto K = size_t(
            std::llround(std::sqrt(double(y.size()) * double(w.size()) / double(logits.size()))));
        const size_t T = y.size() / K, V = w.size() / K;
        REQUIRE(T * V == logits.size());
        const auto in_bf16 = [](float x) { return (std::bit_cast<uint32_t>(x) & 0xFFFF) == 0; };
        CHECK(std::ranges::all_of(y, in_bf16));
        // Rows that only pad the vocabulary are 0.
        const auto real = size_t(kVocab) * K;
        REQUIRE(w.size() >= real);
        CHECK(size_t(std::count_if(w.begin(), w.begin() + ptrdiff_t(real), in_bf16)) < real / 10);
        double worst = 0;
        for (size_t i = 0; i < T; ++i)
          for (size_t v = 0; v < V; ++v) {
            double sum = 0, size = 0;
            for (size_t k = 0; k < K; ++k) {
              const double term = double(y[i * K + k]) * double(w[v * K + k]);
              sum += term, size += std::abs(term);
            }
            if (size > 0) worst = std::max(worst, std::abs(sum - logits[i * V + v]) / size);
          }
        CHECK(worst < 1e-6);  // bf16 would have 2e-3
      });
    t.step();
    rank.device.set_launch_check({});
  });
  CHECK(seen);
}

TEST_CASE("all GEMMs of an output layer in fp32 are fp32, and those of layers are not") {
  const auto plain = types_of_step(join({kHalf, kFsdp2, ep(2)})),
             own = types_of_step(join({kHalf, kHead, kFsdp2, ep(2)}));
  for (const char* name : {"matmul_output_fwd", "matmul_output_dgrad", "matmul_output_wgrad"}) {
    CAPTURE(name);
    CHECK(own.at(name).find("bf16") == std::string::npos);
    CHECK(plain.at(name).find("bf16") != std::string::npos);
  }
  size_t halves = 0;
  for (const auto& [name, types] : own)
    halves += name.starts_with("matmul") && types.find("bf16") != std::string::npos;
  CHECK(halves > 3);
}

TEST_CASE("an output layer in fp32 trains alike under every layout") {
  const Changes base = join({kHalf, kHead});
  const std::vector<double> two = losses_of(2, join({base, kFsdp2, ep(2)}), 10);
  CHECK(two != losses_of(2, join({kHalf, kFsdp2, ep(2)}), 10));
  struct Row {
    int ranks;
    Changes more;
  };
  for (const Row& row : {Row{4, join({kFsdp2, ep(2)})},
                         {4, join({kAtOnce, ep(4), kFlex})},
                         {4, join({kFsdp2, ep(2), {"distributed.dp_replicate_size=2"}})},
                         {4, join({kFsdp2, ep(2), {"distributed.reshard_after_forward=false"}})},
                         {4, join({kFsdp2, ep(2), tp(2)})},
                         {4, join({kFsdp2, ep(2), tp(2), kSequence})},
                         {4, join({kFsdp2, ep(4), tp(2), kWhole})},
                         {4, join({kFsdp2, ep(2), cp2("p2p")})},
                         {4, join({kFsdp2, ep(2), pipelined("1f1b", 1)})},
                         {4, join({kAtOnce, ep(2), pipelined("interleaved_1f1b", 2)})},
                         {4, join({kFsdp2, ep(2), kFull})}}) {
    CAPTURE(row.ranks, row.more);
    check_close(two, losses_of(row.ranks, join({base, row.more}), 10), 2e-2);
  }
  // Without master weights, and in fp16, the output layer is in fp32, too.
  for (const Changes& other :
       {Changes{"optimizer.master_weights=false"}, Changes{"mixed_precision.name=fp16_mixed"}}) {
    CAPTURE(other);
    check_close(two, losses_of(2, join({base, kFsdp2, ep(2), other}), 10), 5e-2);
  }
}

TEST_CASE("a run with an output layer in fp32 continues from its checkpoint") {
  const Changes changes = join({kHalf, kHead, kFsdp2, ep(2)});
  const Recipe r = tiny(changes, 2);
  const TemporaryFolder folder;
  std::vector<double> straight = losses_of(2, changes, 4), resumed;
  run_ranks(2, "thread", [&](TestRank& rank) {
    {
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      for (int i = 0; i < 2; ++i) t.step();
      run::save_run(t, folder.path);
    }
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    run::resume_run(t, storage::find_latest(folder.path)->path);
    std::vector<double> own;
    for (int i = 0; i < 2; ++i) own.push_back(t.step().loss);
    if (rank.rank() == 0) resumed = own;
  });
  CHECK(resumed == std::vector<double>(straight.begin() + 2, straight.end()));
}

}  // namespace parity_head_in_fp32_test
