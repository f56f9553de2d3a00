// Tests that every key of a recipe has an outcome, whoever wrote it.
#include <map>

#include "interchange/model_source.h"
#include "recipe/print/explain_recipe.h"
#include "recipe_cases.h"

namespace recipe_explain_test {

using namespace mtrain;
using namespace recipe_cases;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

TEST_CASE("every key of a recipe has an outcome") {
  const std::string text =
      "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
      "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 512}\n"
      "step_scheduler: {max_steps: 500, gc_every_steps: 10}\n"
      "ci: {recipe_owner: somebody}\n"
      "_texts: {a: b}\n"
      "skypilot: {cloud: kubernetes}\n"
      "autocast: {dtype: bfloat16}\n"
      "nvtx: false\n"
      "neftune: {noise_alpha: 5}\n"
      "dataset:\n"
      "  _target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset\n"
      "  dataset_name: rajpurkar/squad\n"
      "  split: train[:7]\n"
      "  padding: max_length\n"
      "optimizer:\n  _target_: flashoptim.FlashAdamW\n  lr: 1.0e-5\n  master_weight_bits: 24\n"
      "distributed: {ep_size: null}\n"
      "model.backend: {compile_attn: true, fuse_x: true, fuse_y: false}\n"
      "nonsense: {a: 1}\n";
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe_text(interchange::model_source(), text, "r.yaml", {},
                                          diagnostics, 0, {.dry_run = true});
  std::map<std::string, std::string> outcomes;
  for (const KeyOutcome& key : explain_recipe(text, "r.yaml", r, diagnostics))
    outcomes[key.key] = key.outcome;
  CHECK(outcomes.at("step_scheduler.max_steps") == "train.steps: 500");
  CHECK_THAT(outcomes.at("step_scheduler.gc_every_steps"), Contains("garbage collector"));
  CHECK_THAT(outcomes.at("ci"), Contains("tests of AutoModel"));
  CHECK_THAT(outcomes.at("_texts"), Contains("begins with _"));
  CHECK_THAT(outcomes.at("skypilot"), Contains("machines of a cloud"));
  CHECK_THAT(outcomes.at("neftune"), StartsWith("error: noise on embeddings"));
  CHECK(outcomes.at("optimizer.lr") == "optimizer.lr: 1.0e-05");
  CHECK_THAT(outcomes.at("optimizer._target_"), Contains("optimizer.name: adamw") &&
                                                    Contains("optimizer.moments: bf16") &&
                                                    Contains("the nearest type"));
  CHECK_THAT(outcomes.at("optimizer.master_weight_bits"), Contains("master weights are fp32"));
  CHECK_THAT(outcomes.at("dataset._target_"),
             Contains("dataset.train_samples.format: prompt_completion"));
  CHECK_THAT(outcomes.at("dataset.dataset_name"), Contains("dataset.train_samples.files: "));
  CHECK(outcomes.at("dataset.split") == "dataset.train_samples.split: 'train[:7]'");
  CHECK_THAT(outcomes.at("dataset.padding"), Contains("without padding"));
  CHECK(outcomes.at("distributed.ep_size") == "nothing is set");
  for (const char* key : {"model.backend.compile_attn", "model.backend.fuse_x"})
    CHECK_THAT(outcomes.at(key), StartsWith("is ignored: mtrain chooses its kernels"));
  CHECK(outcomes.at("model.backend.fuse_y") == "as in mtrain, so nothing is set");
  CHECK_THAT(diagnostics.text(Severity::warning), Contains("model.backend.compile_attn") &&
                                                      Contains("model.backend.fuse_x") &&
                                                      !Contains("fuse_y"));
  CHECK(outcomes.at("autocast.dtype") == "as in mtrain, so nothing is set");
  CHECK_THAT(outcomes.at("nonsense"), StartsWith("error: there is no such key"));
  for (const auto& [key, outcome] : outcomes) {
    INFO(key);
    CHECK(outcome != "");
    CHECK(outcome != "is not read");
  }
}

}  // namespace recipe_explain_test
