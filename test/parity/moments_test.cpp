// Moments of the optimizer in bf16: the training follows that with fp32 moments, under every
// strategy and layout, and resumes to the bit.
#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "storage/safetensors.h"
#include "test/support/checkpoint_testing.h"
#include "test/support/temporary_folder.h"
#include "train_ranks.h"

namespace parity_moments_test {

using namespace mtrain;
using namespace train_testing;

namespace {

struct Layout {
  const char* name;
  int ranks;
  Changes changes;
};
const std::vector<Layout> kLayouts{
    {"ddp", 2, {"distributed.strategy=ddp"}},
    {"megatron_ddp", 2, {"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"}},
    {"megatron_fsdp 1",
     2,
     {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=1"}},
    {"megatron_fsdp 3",
     2,
     {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=3",
      "ddp.bucket_size=3000"}},
    {"fsdp2", 3, {"distributed.strategy=fsdp2"}},
    {"tensor parallelism", 2, {"distributed.strategy=megatron_ddp", "distributed.tp_size=2"}},
    {"a pipeline",
     2,
     {"distributed.strategy=megatron_ddp", "distributed.pp_size=2", "distributed.pipeline={}"}}};

const Changes kBatch{"train.global_batch_size=12", "train.micro_batch_size=1"},
    kMoments = with(kBatch, {"optimizer.moments=bf16"});

// Makes `steps` steps, after those of the checkpoint `from`, and saves into `to`; either may be
// empty. Returns rank 0's losses.
std::vector<double> losses_of(const Changes& changes, int ranks, int64_t steps,
                              const std::filesystem::path& from, const std::filesystem::path& to) {
  const Recipe r = tiny(changes, ranks);
  std::vector<double> losses;
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    if (!from.empty()) run::resume_run(t, from);
    std::vector<double> own;
    for (int64_t i = 0; i < steps; ++i) own.push_back(t.step().loss);
    if (!to.empty()) run::save_run(t, to);
    if (rank.rank() == 0) losses = own;
  });
  return losses;
}

}  // namespace

TEST_CASE("moments in bf16 follow fp32 ones, under every strategy and layout") {
  const Result fp32 = train_alone(kBatch, 20), bf16 = train_alone(kMoments, 20);
  CHECK(bf16.losses[1] == fp32.losses[1]);  // the first update is made before moments are rounded
  CHECK(bf16.losses[2] != fp32.losses[2]);
  check_close(fp32.losses, bf16.losses, 2e-2);
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.name);
    // The same random numbers round the same elements. Results therefore differ only by the order
    // of fp32 sums, and by the few elements that this makes round the other way.
    const auto ranks = train_ranks(layout.ranks, with(kMoments, layout.changes), 20);
    for (const Result& r : ranks) check_close(bf16.losses, r.losses, 1e-3);
  }
}

TEST_CASE("moments in bf16 are saved as they are, and resumed to the bit or by another layout") {
  const TemporaryFolder root;
  const auto reference = losses_of(kMoments, 1, 6, {}, {});
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.name);
    const Changes changes = with(kMoments, layout.changes);
    const auto folder = root.path / layout.name;
    const auto straight = losses_of(changes, layout.ranks, 6, {}, {});
    losses_of(changes, layout.ranks, 3, {}, folder);
    const auto saved = storage::find_latest(folder);
    REQUIRE(saved);
    const auto file = open_checkpoint_tensors(saved->path, storage::TensorSet::optimizer);
    for (const auto& t : file->entries()) CHECK(t.dtype == DType::bf16);
    CHECK(losses_of(changes, layout.ranks, 3, saved->path, {}) ==
          std::vector<double>(straight.begin() + 3, straight.end()));
    check_close({reference.begin() + 3, reference.end()},
                losses_of(kMoments, 1, 3, saved->path, {}), 1e-3);
  }
}

TEST_CASE("a run resumes from moments of the other type") {
  const TemporaryFolder root;
  const auto fp32 = losses_of(kBatch, 1, 3, {}, root.path / "fp32"),
             bf16 = losses_of(kMoments, 1, 3, {}, root.path / "bf16");
  const auto reference = losses_of(kBatch, 1, 6, {}, {});
  const std::vector<double> tail(reference.begin() + 3, reference.end());
  for (const char* from : {"fp32", "bf16"})
    for (const Changes& to : {kBatch, kMoments}) {
      CAPTURE(from);
      const auto saved = storage::find_latest(root.path / from);
      check_close(tail, losses_of(to, 1, 3, saved->path, {}), 2e-2);
    }
}

}  // namespace parity_moments_test
