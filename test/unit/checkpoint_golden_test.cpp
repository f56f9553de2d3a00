// A checkpoint of format 1, as an earlier version has written it, stays readable.
#include <catch2/catch.hpp>

#include "interchange/export.h"
#include "storage/checkpoint_dir.h"
#include "test/support/checkpoint_testing.h"
#include "test/support/run_lab.h"

namespace checkpoint_golden_test {

using namespace mtrain;
namespace fs = std::filesystem;

namespace {

struct GoldenLab : TemporaryFolder {
  GoldenLab() {
    fs::copy(std::string(MTRAIN_SOURCE_DIR) + "/test/golden/checkpoint_format_1/step-00000002",
             path / "step-00000002");
    data::IndexedDatasetWriter writer(path / "data", data::TokenType::u16);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 4000; ++i) tokens.push_back((i * 7 + 'a') % 16);
    writer.add_tokens(tokens);
    writer.finish();
  }
  fs::path checkpoint() const { return path / "step-00000002"; }
};

}  // namespace

TEST_CASE("a checkpoint of format 1 has the tensors that were saved") {
  const GoldenLab lab;
  REQUIRE(storage::complete_checkpoint(lab.checkpoint())->step == 2);
  const auto weights = saved_tensors(lab.checkpoint(), storage::TensorSet::weights),
             moments = saved_tensors(lab.checkpoint(), storage::TensorSet::optimizer);
  CHECK(weights.size() == 9);
  CHECK(moments.size() == 2 * weights.size());
  CHECK(weights.at("embedding.weight").size() == 16 * 8);
  CHECK(weights.at("layers.0.mlp.down.weight")[0] == -0.009524602442979813f);
  CHECK(moments.at("layers.0.mlp.down.weight.m")[0] == -2.5804965844145045e-05f);
  CHECK_NOTHROW(interchange::export_hf(lab.checkpoint(), lab / "hf", {}));
}

TEST_CASE("a run continues from a checkpoint of format 1, and saves format 2") {
  const GoldenLab lab;
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe_text(
      interchange::model_source(), "model: {}\n", "golden",
      {"model.num_layers=1", "model.hidden_size=8", "model.num_attention_heads=2",
       "model.ffn_hidden_size=8", "model.vocab_size=16", "tokenizer.type=NullTokenizer",
       "tokenizer.vocab_size=16", "dataset.train=" + (lab / "data").string(),
       "dataset.seq_length=16", "train.steps=4", "train.global_batch_size=2",
       "train.micro_batch_size=2", "train.threads=1", "lr_scheduler.style=constant",
       "mixed_precision.name=fp32", "checkpoint.load=" + lab.checkpoint().string(),
       "train.run_dir=" + (lab / "run").string()},
      diagnostics);
  diagnostics.throw_if_errors();
  run::run_training(plan::make_plan(r, 1, train::vocabulary(plan::tokenizer_options(r))), {});
  std::vector<double> losses;
  const std::string text = read_file(lab / "run/metrics.jsonl");
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    if (const auto line = nlohmann::json::parse(text.substr(at, text.find('\n', at) - at));
        line.contains("loss"))
      losses.push_back(line["loss"]);
  // The losses of the version that has saved the checkpoint.
  REQUIRE(losses.size() == 2);
  CHECK(losses[0] == Approx(2.7721598148345947).epsilon(1e-5));
  CHECK(losses[1] == Approx(2.768699496984482).epsilon(1e-5));
  const fs::path saved = lab / "run/checkpoints/step-00000004";
  CHECK(fs::exists(saved / "index.json"));
  CHECK(saved_tensors(saved, storage::TensorSet::weights).size() == 9);
}

}  // namespace checkpoint_golden_test
