// A training that starts from weights in 8 bits is, in every layout, bitwise the training that
// starts from the dequantized weights. Runs under the stream sanitizer.
#include <mutex>

#include <catch2/catch.hpp>

#include "checkpoint/read_weights.h"
#include "interchange/hf_folder.h"
#include "interchange/model_source.h"
#include "test/support/comm_testing.h"
#include "test/support/quantized_folder.h"
#include "test/support/temporary_folder.h"
#include "test/support/train_testing.h"

namespace parity_quantized_folder_test {

using namespace mtrain;
using namespace train_testing;

namespace {

constexpr int64_t kVocabulary = 64, kLength = 16;  // the golden folders' sizes

struct Started {
  std::vector<double> losses;  // three steps, the same on all ranks
  double largest_share = 0;    // the most bytes that a rank has read, over the bytes of the folder
};

Started start(const std::filesystem::path& folder, const Changes& changes, int ranks) {
  Diagnostics diagnostics;
  const Changes settings{"model.from=" + folder.string(),
                         "tokenizer={type: huggingface, path: unused}",
                         fmt::format("dataset.seq_length={}", kLength),
                         "dataset.train=unused",
                         "train.run_dir=unused",
                         "train.steps=20",
                         "train.global_batch_size=8",
                         "train.micro_batch_size=1",
                         "optimizer.lr=3e-3",
                         "mixed_precision.name=fp32"};
  const Recipe r = plan::load_recipe_text(interchange::model_source(), "model: {}\n", "quantized",
                                          with(settings, changes), diagnostics, ranks);
  REQUIRE(diagnostics.text(recipe::Severity::error) == "");
  Started result;
  std::mutex mutex;
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t =
        make_trainer(rank.device, r, std::make_shared<CountingData>(kVocabulary, kLength),
                     rank.world, kVocabulary);
    const auto source = interchange::open_hf_folder(folder);
    int64_t bytes = 0;
    for (const storage::StoredTensor* tensor : source.tensors->tensors()) bytes += tensor->bytes;
    const int64_t before = source.tensors->bytes_read();
    checkpoint::start_from(t.checkpoint_parts(), *source.source());
    const int64_t read = source.tensors->bytes_read() - before;
    std::vector<double> losses;
    for (int i = 0; i < 3; ++i) losses.push_back(t.step().loss);
    const std::lock_guard lock(mutex);
    result.largest_share = std::max(result.largest_share, double(read) / double(bytes));
    if (result.losses.empty()) result.losses = losses;
    CHECK(result.losses == losses);
  });
  return result;
}

struct Row {
  const char* name;
  int ranks;
  double largest_share;  // of the folder's bytes that a rank may read
  Changes changes;
};
// Under tp the embedding, norms and latents are not divided. Under ep only experts are.
const std::vector<Row> kRows{
    {"one rank", 1, 1.001, {}},
    {"tp 2", 2, 0.8, {"distributed.strategy=megatron_ddp", "distributed.tp_size=2"}},
    {"ep 2", 2, 0.9, {"distributed.strategy=megatron_ddp", "distributed.ep_size=2"}},
    {"fsdp2 2", 2, 0.75, {"distributed.strategy=fsdp2"}},
    {"fsdp2 2, tp 2", 4, 0.6, {"distributed.strategy=fsdp2", "distributed.tp_size=2"}},
    {"pp 2, ep 2",
     4,
     0.75,
     {"distributed.strategy=megatron_ddp", "distributed.pp_size=2", "distributed.pipeline={}",
      "distributed.ep_size=2"}}};

}  // namespace

TEST_CASE("training from weights in 8 bits equals training from the dequantized weights") {
  for (const std::string name : {"deepseek_v3", "deepseek_v2_lite", "qwen3_moe"})
    for (const storage::ScaleBlock block : {storage::ScaleBlock{}, {5, 3}}) {
      const TemporaryFolder temporary;
      write_both_forms(name, block, temporary / "8", temporary / "16", 2);
      for (const Row& row : kRows) {
        CAPTURE(name, row.name, block.rows);
        const Started quantized = start(temporary / "8", row.changes, row.ranks);
        CHECK(quantized.losses == start(temporary / "16", row.changes, row.ranks).losses);
        // The scales of a weight are read completely; blocks of 5 x 3 have many.
        if (block.rows == 128) CHECK(quantized.largest_share < row.largest_share);
      }
    }
}

}  // namespace parity_quantized_folder_test
