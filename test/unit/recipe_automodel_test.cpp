// What AutoModel's recipes mean where they leave something out.
#include <fmt/core.h>
#include <catch2/catch.hpp>

#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "recipe/recipe.h"

namespace recipe_automodel_test {

using namespace mtrain;
using Catch::Contains;
using recipe::Diagnostics;
using recipe::LrStyle;
using recipe::Severity;

namespace {

const std::string kModel =
    "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, "
    "vocab_size: 128}\ndataset: {train: x}\n";
const std::string kTrainer = "recipe: TrainFinetuneRecipeForNextTokenPrediction\n";

Recipe loaded(const std::string& lines, Diagnostics& diagnostics,
              const std::vector<std::string>& overrides = {}) {
  return plan::load_recipe_text(interchange::model_source(), kModel + lines, "recipe.yaml",
                                overrides, diagnostics, 1);
}

Recipe loaded(const std::string& lines, const std::vector<std::string>& overrides = {}) {
  Diagnostics diagnostics;
  const Recipe r = loaded(lines, diagnostics, overrides);
  CHECK(diagnostics.text(Severity::error) == "");
  return r;
}

}  // namespace

TEST_CASE("AutoModel's defaults hold where its recipes leave something out, and nowhere else") {
  Diagnostics diagnostics;
  const Recipe of_automodel = loaded(kTrainer, diagnostics), own = loaded("");
  CHECK(of_automodel.lr_scheduler.style == LrStyle::constant);
  CHECK(of_automodel.train.epochs == 10.0);
  CHECK(of_automodel.train.global_batch_size == 32);
  CHECK(of_automodel.train.seed == 42);
  CHECK(of_automodel.optimizer.clip_grad == 1);
  CHECK(of_automodel.checkpoint.every_steps == 100);
  CHECK(of_automodel.validation.steps == 0);  // all held-out rows
  CHECK_FALSE(of_automodel.given("train.epochs"));
  CHECK_THAT(diagnostics.text(Severity::resolved),
             Contains("as AutoModel has it, ") && Contains("train.epochs: 10") &&
                 Contains("validation.steps: 0") && Contains("lr_scheduler.style: constant") &&
                 !Contains("clip_grad"));
  CHECK(own.lr_scheduler.style == LrStyle::cosine);
  CHECK_FALSE(own.train.epochs);
  CHECK(own.validation.steps == 10);

  // What a recipe or the command line sets stays.
  const Recipe set = loaded(kTrainer +
                                "step_scheduler: {max_steps: 7, num_epochs: 2, "
                                "ckpt_every_steps: 3}\nseed: 5\n",
                            {"optimizer.clip_grad=0", "validation.steps=4"});
  CHECK((set.train.steps == 7 && set.train.epochs == 2.0));
  CHECK((set.checkpoint.every_steps == 3 && set.train.seed == 5 && set.optimizer.clip_grad == 0));
  CHECK(set.validation.steps == 4);
  CHECK_FALSE(
      loaded(kTrainer + "step_scheduler: {num_epochs: 2}\n", {"train.steps=9"}).train.epochs);
  CHECK_FALSE(loaded(kTrainer + "step_scheduler: {max_steps: 7, num_epochs: null}\n").train.epochs);
}

TEST_CASE("a trainer, or a model or data set of nemo_automodel, makes a recipe AutoModel's") {
  const std::string target = "nemo_automodel.components.";
  for (const char* lines :
       {"recipe: {_target_: nemo_automodel.recipes.llm.train_ft.TrainFinetune}\n",
        "model._target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config\n",
        "dataset._target_: "
        "nemo_automodel.components.datasets.llm.megatron_dataset.MegatronPretraining\n"})
    CHECK(loaded(lines).automodel);
  for (const char* lines :
       {"distributed: {_target_: nemo_automodel.components.distributed.FSDP2Manager}\n",
        "optimizer: {_target_: torch.optim.AdamW}\n",
        "loss_fn: {_target_: nemo_automodel.components.loss.MaskedCrossEntropy}\n",
        "model._target_: transformers.AutoModelForCausalLM.from_config\n"})
    CHECK_FALSE(loaded(lines).automodel);
}

TEST_CASE("AutoModel's scheduler derives its warm-up and its rates") {
  const std::string lines = kTrainer + "optimizer: {_target_: torch.optim.AdamW, lr: 1e-3}\n";
  const auto with = [&](const char* scheduler, int steps) {
    return loaded(lines + scheduler, {fmt::format("train.steps={}", steps), "train.epochs=null"});
  };
  const Recipe cosine = with("lr_scheduler: {lr_decay_style: cosine}\n", 500);
  CHECK(cosine.lr_scheduler.warmup_steps == 50);
  CHECK(cosine.lr_scheduler.init_lr == Approx(1e-4));
  CHECK(cosine.lr_scheduler.min_lr == Approx(1e-5));
  CHECK(with("lr_scheduler: {lr_decay_style: cosine}\n", 50000).lr_scheduler.warmup_steps == 1000);
  const Recipe given = with("lr_scheduler: {lr_warmup_steps: 3, min_lr: 0, init_lr: 2e-4}\n", 500);
  CHECK(given.lr_scheduler.warmup_steps == 3);
  CHECK((given.lr_scheduler.min_lr == 0 && given.lr_scheduler.init_lr == 2e-4));

  // With epochs it waits for the number of steps. A printed recipe is mtrain's own.
  Recipe epochs = loaded(lines + "lr_scheduler: {lr_decay_style: cosine}\n");
  Diagnostics diagnostics;
  for (const char* scheduler : {"lr_scheduler: {lr_decay_style: cosine}\n", ""}) {
    Recipe direct = loaded(lines + scheduler);
    Recipe printed = plan::load_recipe_text(interchange::model_source(), print_recipe(direct),
                                            "printed", {}, diagnostics, 1);
    for (Recipe* r : {&direct, &printed}) plan::resolve_epochs(*r, 32 * 30, diagnostics);
    CHECK(print_recipe(direct, false) == print_recipe(printed, false));
  }
  plan::resolve_epochs(epochs, 32 * 30, diagnostics);
  CHECK(epochs.train.steps == 300);
  CHECK(epochs.lr_scheduler.warmup_steps == 30);
  const Recipe again = plan::load_recipe_text(interchange::model_source(), print_recipe(epochs),
                                              "printed", {}, diagnostics, 1);
  CHECK_FALSE(again.automodel);
  CHECK((again.train.steps == 300 && again.lr_scheduler.warmup_steps == 30));
  CHECK(again.lr_scheduler.init_lr == epochs.lr_scheduler.init_lr);
  CHECK(again.train.seed == 42);
}

TEST_CASE("each epoch of AutoModel's recipes ends with a step, whose samples need not fill it") {
  struct Row {
    const char* set;
    int64_t samples, steps;
  };
  for (const Row& row : {Row{"", 100, 20}, Row{"train.epochs=3", 128, 6}, Row{"", 5, 10},
                         Row{"train.epochs=0.5", 100, 1}, Row{"train.steps=7", 100, 7}}) {
    std::vector<std::string> set{"train.global_batch_size=64"};
    if (*row.set) set.emplace_back(row.set);
    Recipe direct = loaded(kTrainer, set);
    INFO(row.set << ", " << row.samples << " samples");
    Diagnostics diagnostics;
    Recipe printed = plan::load_recipe_text(interchange::model_source(), print_recipe(direct),
                                            "printed", {}, diagnostics, 1);
    for (Recipe* r : {&direct, &printed}) {
      if (!r->steps_known()) plan::resolve_epochs(*r, row.samples, diagnostics);
      CHECK(r->train.steps == row.steps);
    }
    CHECK_FALSE(diagnostics.has_errors());
  }
  Recipe own = loaded("", {"train.global_batch_size=64", "train.epochs=10"});
  Diagnostics diagnostics;
  plan::resolve_epochs(own, 100, diagnostics);
  CHECK(own.train.steps == 16);
}

TEST_CASE("NCCL, which all of AutoModel's recipes name, means the backend of the device") {
  Diagnostics diagnostics;
  const Recipe r = loaded(kTrainer + "dist_env: {backend: nccl}\n", diagnostics);
  CHECK(r.comm.backend == CommBackend::automatic);
  CHECK_THAT(diagnostics.text(Severity::resolved), Contains("comm.backend"));
  CHECK(loaded(kTrainer + "comm: {backend: gloo}\n").comm.backend == CommBackend::gloo);
}

TEST_CASE("AutoModel's trainers of other tasks are refused by name") {
  for (const char* name :
       {"FinetuneRecipeForVLM", "TrainFinetuneRecipe", "TrainEagle3Recipe",
        "TrainFinetuneRecipeForSequenceClassification",
        "KnowledgeDistillationRecipeForNextTokenPrediction",
        "{_target_: nemo_automodel.recipes.vlm.finetune.FinetuneRecipeForVLM}"}) {
    Diagnostics diagnostics;
    loaded(fmt::format("recipe: {}\n", name), diagnostics);
    CHECK_THAT(diagnostics.text(Severity::error), Contains("not a trainer of next tokens"));
  }
  for (const char* name :
       {"BenchmarkingRecipeForNextTokenPrediction",
        "nemo_automodel.recipes.llm.train_ft.TrainFinetuneRecipeForNextTokenPrediction"})
    CHECK(loaded(fmt::format("recipe: {}\n", name)).automodel);
}

TEST_CASE("arguments of AutoModel's classes are accepted at the value that mtrain computes") {
  const auto errors = [](const std::string& lines) {
    Diagnostics diagnostics;
    loaded(kTrainer + lines, diagnostics);
    return diagnostics.text(Severity::error);
  };
  const std::string kLoss =
      "loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy, ";
  struct Row {
    std::string harmless, refused, gist;  // nothing is refused if `refused` is empty
  };
  for (const Row& row :
       std::vector<Row>{{"step_scheduler: {start_step: 0, start_epoch: 0, preemption_signal: 15}",
                         "step_scheduler: {start_step: 5}", "checkpoint.load=latest"},
                        {"clip_grad_norm: {max_norm: 1.0, foreach: true}", "", ""},
                        {kLoss + "reduction: sum, logit_softcapping: 0.0}",
                         kLoss + "reduction: batchmean}", "mean over the labels"},
                        {"optimizer: {amsgrad: false, maximize: false}",
                         "optimizer: {amsgrad: true}", "AMSGrad"},
                        {"dataset.unshifted: false", "dataset.unshifted: true", "next tokens"},
                        {"model.local_files_only: true", "", ""}}) {
    CHECK(errors(row.harmless + "\n") == "");
    if (!row.refused.empty()) CHECK_THAT(errors(row.refused + "\n"), Contains(row.gist));
  }
}

TEST_CASE("restore_from: LATEST continues a run, and starts it if nothing is saved") {
  const Recipe r = loaded(kTrainer + "checkpoint: {restore_from: LATEST}\n");
  CHECK(r.checkpoint.load == "latest");
  CHECK(r.checkpoint.load_or_start);
  CHECK_FALSE(loaded(kTrainer + "checkpoint: {restore_from: runs/a}\n").checkpoint.load_or_start);
}

TEST_CASE("a model's revision is a part of its name") {
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(),
                         "model: {from: example/none, revision: v9}\ndataset: {train: x}\n",
                         "recipe.yaml", {}, diagnostics, 1);
  CHECK_THAT(diagnostics.text(Severity::error), Contains("hf download example/none --revision v9"));
}

}  // namespace recipe_automodel_test
