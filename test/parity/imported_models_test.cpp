// Models of Hugging Face folders under every layout: the losses are those of one rank, and a rank
// reads only what it owns. Runs under the stream sanitizer.
#include <mutex>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/read_weights.h"
#include "interchange/hf_folder.h"
#include "interchange/model_source.h"
#include "test/support/comm_testing.h"
#include "test/support/interchange_testing.h"
#include "test/support/temporary_folder.h"
#include "test/support/train_testing.h"

namespace parity_imported_models_test {

using namespace mtrain;
using namespace train_testing;
using Catch::Contains;

namespace {

constexpr int64_t kVocabulary = 64, kLength = 16;  // the golden folders' sizes

// Loads a recipe that begins with the model of a folder, without GPT-2's dropout of attention.
// Returns the errors, or "".
std::string load(const std::string& folder, const Changes& changes, int64_t ranks, Recipe& r) {
  Diagnostics diagnostics;
  const Changes settings{"model.from=" + folder,
                         "model.attention_dropout=0",
                         "tokenizer={type: huggingface, path: unused}",
                         fmt::format("dataset.seq_length={}", kLength),
                         "dataset.train=unused",
                         "train.run_dir=unused",
                         "train.steps=20",
                         "train.global_batch_size=8",
                         "train.micro_batch_size=1",
                         "optimizer.lr=3e-3",
                         "mixed_precision.name=fp32"};
  r = plan::load_recipe_text(interchange::model_source(), "model: {}\n", "imported",
                             with(settings, changes), diagnostics, ranks);
  return diagnostics.text(recipe::Severity::error);
}

struct Started {
  std::vector<double> losses;  // five steps, the same on all ranks
  // The least and the most of: bytes that a rank has read, over the bytes in the folder of the
  // tensors that it owns.
  double min_read = 1e9, max_read = 0;
};

Started start(const std::string& name, const Changes& changes, int ranks) {
  Recipe r;
  const std::string folder = (golden_hf() / name).string();
  REQUIRE(load(folder, changes, ranks, r) == "");
  Started result;
  std::mutex mutex;
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t =
        make_trainer(rank.device, r, std::make_shared<CountingData>(kVocabulary, kLength),
                     rank.world, kVocabulary);
    const auto source = interchange::open_hf_folder(folder);  // each rank counts what it reads
    const int64_t before = source.tensors->bytes_read();
    checkpoint::start_from(t.checkpoint_parts(), *source.source());
    const int64_t read = source.tensors->bytes_read() - before;
    const std::string table = source.map.find("embedding.weight")->pieces.front().hf_name;
    const int64_t width = dtype_size(source.tensors->info(table).dtype.value());
    int64_t owned = 0;
    for (const model::Parameter* p : t.params().params())
      for (const model::OwnedPart& part : owned_parts(*p)) owned += part.count * width;
    std::vector<double> losses;
    for (int i = 0; i < 5; ++i) losses.push_back(t.step().loss);
    const std::lock_guard lock(mutex);
    result.max_read = std::max(result.max_read, double(read) / double(owned));
    result.min_read = std::min(result.min_read, double(read) / double(owned));
    if (result.losses.empty()) result.losses = losses;
    CHECK(result.losses == losses);
  });
  return result;
}

struct Row {
  const char* name;
  int ranks;
  Changes changes;
  bool experts = false;  // only for models with experts
};
const std::vector<Row> kRows{
    {"tp 2", 2, {"distributed.strategy=megatron_ddp", "distributed.tp_size=2"}},
    {"pp 2",
     2,
     {"distributed.strategy=megatron_ddp", "distributed.pp_size=2", "distributed.pipeline={}"}},
    {"fsdp2 4", 4, {"distributed.strategy=fsdp2"}},
    {"fsdp2 2, tp 2", 4, {"distributed.strategy=fsdp2", "distributed.tp_size=2"}},
    {"ep 2", 2, {"distributed.strategy=megatron_ddp", "distributed.ep_size=2"}, true},
    {"fsdp2 2, ep 2", 4, {"distributed.strategy=fsdp2", "distributed.ep_size=2"}, true}};

}  // namespace

TEST_CASE("an imported model trains alike under every layout, and ranks read what they own") {
  for (const std::string name : {"llama",       "qwen3_tied",       "phi3",
                                 "gpt2",        "gpt2_untied",      "smollm3",
                                 "olmo2",       "gemma2",           "gemma3_text",
                                 "seed_oss",    "granite",          "granite_tied",
                                 "mixtral",     "qwen2_moe",        "dots1",
                                 "glm4_moe",    "deepseek_v2_lite", "deepseek_v2_limited",
                                 "deepseek_v3", "glm4_moe_lite"}) {
    const Started alone = start(name, {}, 1);
    CHECK(alone.losses.back() < alone.losses.front());
    Recipe r;
    REQUIRE(load((golden_hf() / name).string(), {}, 1, r) == "");
    const bool experts = r.model.moe.num_experts > 0;
    for (const Row& row : kRows) {
      if (row.experts && !experts) continue;
      CAPTURE(name, row.name);
      const Started started = start(name, row.changes, row.ranks);
      check_close(alone.losses, started.losses, 1e-5);
      CHECK(started.min_read >= 1.0);
      CHECK(started.max_read <= 1.05);
    }
  }
}

TEST_CASE("heads of a folder that tp does not divide are refused with both numbers") {
  const TemporaryFolder folder;
  auto config = nlohmann::json::parse(read_file(golden_hf() / "llama/config.json"));
  config["num_attention_heads"] = config["num_key_value_heads"] = 3;
  write_file_atomic(folder / "config.json", config.dump());
  Recipe r;
  const std::string two = load(folder.path.string(), {"distributed.tp_size=2"}, 2, r);
  CHECK_THAT(two, Contains("distributed.tp_size") &&
                      Contains("tp_size 2 does not divide the 3 attention heads"));
  CHECK(load(folder.path.string(), {}, 1, r) == "");
}

}  // namespace parity_imported_models_test
