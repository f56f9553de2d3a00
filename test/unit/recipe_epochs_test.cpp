// Tests the length of a run that is given in epochs.
#include "interchange/model_source.h"
#include "plan/options/train_options.h"
#include "recipe_cases.h"

namespace recipe_epochs_test {

using namespace mtrain;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

Recipe loaded(const std::string& lines, const Overrides& set, Diagnostics& diagnostics) {
  Recipe r = plan::load_recipe_text(interchange::model_source(), kBase + lines, "base.yaml", set,
                                    diagnostics, 1);
  INFO(listed(diagnostics));
  CHECK_FALSE(diagnostics.has_errors());
  return r;
}

Recipe loaded(const std::string& lines, const Overrides& set = {}) {
  Diagnostics diagnostics;
  return loaded(lines, set, diagnostics);
}

std::string errors(const std::string& lines, const Overrides& set = {}) {
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(), kBase + lines, "base.yaml", set, diagnostics,
                         1);
  return diagnostics.text(Severity::error);
}

}  // namespace

TEST_CASE("epochs of samples make steps, and the last one is full") {
  struct Row {
    const char* epochs;
    int64_t samples, batch, steps;
  };
  for (const Row& row : std::vector<Row>{{"2", 320, 32, 20},
                                         {"1", 321, 32, 11},
                                         {"3", 33, 32, 4},
                                         {"0.5", 100, 32, 2},
                                         {"0.7", 10, 1, 7},  // 7.000000000000001 in floating point
                                         {"0.001", 10, 32, 1},
                                         {"1000", 7, 1, 7000}}) {
    Recipe r = loaded("", {fmt::format("train.epochs={}", row.epochs),
                           fmt::format("train.global_batch_size={}", row.batch)});
    REQUIRE_FALSE(r.steps_known());
    Diagnostics diagnostics;
    plan::resolve_epochs(r, row.samples, diagnostics);
    INFO(row.epochs << " epochs of " << row.samples);
    CHECK(r.steps_known());
    CHECK(r.train.steps == row.steps);
    CHECK_THAT(diagnostics.text(Severity::resolved), Contains(fmt::format("{}:", row.steps)));
  }
}

TEST_CASE("settings that follow from the steps wait for the data") {
  Diagnostics before, after;
  Recipe r = loaded("lr_scheduler: {warmup_steps: 50}\n", {"train.epochs=2"}, before);
  CHECK(before.text(Severity::warning).empty());
  CHECK_FALSE(r.lr_scheduler.decay_steps);
  plan::resolve_epochs(r, 320, after);
  CHECK(r.lr_scheduler.decay_steps == 20);
  CHECK(r.lr_scheduler.warmup_steps == 19);
  CHECK_THAT(after.text(Severity::warning), Contains("50 is clipped to 19"));

  Recipe part = loaded("scheduler: {lr_warmup_fraction: 0.1}\n", {"train.epochs=2"});
  plan::resolve_epochs(part, 320, after);
  CHECK(part.lr_scheduler.warmup_steps == 2);

  Diagnostics wrong;
  Recipe wsd = loaded("lr_scheduler: {style: wsd, wsd_decay_steps: 5, decay_steps: 9}\n",
                      {"train.epochs=2"});
  wsd.lr_scheduler.warmup_steps = 9;
  plan::resolve_epochs(wsd, 320, wrong);
  CHECK_THAT(wrong.text(Severity::error), Contains("longer than decay_steps 9"));
}

TEST_CASE("a recipe gives steps or epochs, and a later layer replaces the other") {
  const Recipe epochs = loaded("train.steps: 5\n", {"train.epochs=2"});
  CHECK_FALSE(epochs.steps_known());
  const Recipe steps = loaded("train.epochs: 2\n", {"train.steps=5"});
  CHECK(steps.steps_known());
  CHECK(steps.train.steps == 5);
  CHECK_FALSE(loaded("train.epochs: null\n").train.epochs);
  for (const char* value : {"0", "-1", "many"})
    CHECK_THAT(errors("", {std::string("train.epochs=") + value}), Contains("train.epochs"));
}

TEST_CASE("of steps and epochs the shorter is trained") {
  CHECK(loaded("step_scheduler: {num_epochs: 2}\n").train.epochs == 2.0);
  CHECK(loaded("", {"num_epochs=2"}).train.epochs == 2.0);
  for (const char* lines :
       {"step_scheduler: {num_epochs: 2, max_steps: 9}\n", "train.steps: 9\ntrain.epochs: 2\n"})
    for (auto [samples, steps] : {std::pair<int64_t, int64_t>{320, 9}, {64, 4}, {144, 9}}) {
      Recipe both = loaded(lines);
      CHECK_FALSE(both.steps_known());
      // Both are printed, and read again.
      Diagnostics diagnostics;
      both = plan::load_recipe_text(interchange::model_source(), print_recipe(both), "printed", {},
                                    diagnostics, 1);
      REQUIRE_FALSE(both.steps_known());
      plan::resolve_epochs(both, samples, diagnostics);
      CHECK(both.steps_known());
      CHECK(both.train.steps == steps);
      CHECK(both.lr_scheduler.decay_steps == steps);
      CHECK_THAT(print_recipe(both),
                 Contains(fmt::format("  steps: {} ", steps)) && !Contains("  epochs:"));
    }
}

TEST_CASE("a recipe with epochs prints as one that loads to the same length") {
  Recipe r = loaded("", {"train.epochs=2"});
  const std::string unknown = print_recipe(r);
  CHECK_THAT(unknown, Contains("epochs: 2") && !Contains("  steps: 1000 "));
  Diagnostics diagnostics;
  CHECK(plan::load_recipe_text(interchange::model_source(), unknown, "printed", {}, diagnostics)
            .train.epochs == 2.0);
  plan::resolve_epochs(r, 320, diagnostics);
  const std::string known = print_recipe(r);
  CHECK_THAT(known, Contains("# derived, by train.epochs=2") && !Contains("  epochs:"));
  const Recipe again =
      plan::load_recipe_text(interchange::model_source(), known, "printed", {}, diagnostics);
  CHECK(again.train.steps == 20);
  CHECK(again.lr_scheduler.decay_steps == 20);
  CHECK_FALSE(diagnostics.has_errors());
}

TEST_CASE("a reference to steps that the data decide is refused") {
  CHECK_THAT(errors("train.epochs: 2\nvalidation: {every_steps: '${train.steps}'}\n"),
             Contains("${train.steps} is not known yet"));
  CHECK(errors("train.steps: 2\ncheckpoint: {every_steps: '${train.steps}'}\n").empty());
}

TEST_CASE("epochs that make more steps than can be counted are refused") {
  Recipe r = loaded("", {"train.epochs=1000000", "train.global_batch_size=1"});
  Diagnostics diagnostics;
  plan::resolve_epochs(r, int64_t{1} << 40, diagnostics);
  CHECK_THAT(diagnostics.text(Severity::error), Contains("1.1e+18 steps"));
}

TEST_CASE("checkpoints are kept by a validation loss that is measured more than once") {
  const Overrides data{"dataset.validation=y", "validation.every_steps=10",
                       "checkpoint.keep_best=1"};
  CHECK(errors("", data).empty());
  CHECK_THAT(
      errors("", {"validation.every_steps=0", "dataset.validation=y", "checkpoint.keep_best=1"}),
      Contains("measured only at the end") && Contains("set validation.every_steps"));
  CHECK_THAT(errors("", {"checkpoint.keep_best=1"}),
             Contains("there is no validation data") && Contains("set dataset.validation"));
  CHECK_THAT(errors("", {"checkpoint.keep_best=-1"}), Contains("checkpoint.keep_best"));
  CHECK_THAT(errors("load_best_model_at_end: true\n"), Contains("`checkpoint.keep_best`: 1"));
}

TEST_CASE("a run of epochs ends with its samples, whatever the size of earlier batches") {
  struct Row {
    const char* what;
    std::optional<double> epochs;
    int64_t steps, batch, steps_done, samples_done, last, samples = steps * batch;
  };
  for (const Row& row :
       std::vector<Row>{{"steps count steps", {}, 20, 8, 5, 20, 20},
                        {"the beginning", 1., 20, 8, 0, 0, 20},
                        {"the same batch", 1., 20, 8, 5, 40, 20},
                        {"smaller batches before", 1., 20, 8, 10, 40, 25},
                        {"larger batches before", 1., 20, 8, 5, 80, 15},
                        {"a part of a batch is left", 1., 20, 8, 6, 78, 17},
                        {"all samples are done", 1., 20, 8, 40, 160, 40},
                        {"a part of a batch too many", 1., 20, 8, 11, 165, 11},
                        {"too many of the same batch", 1., 20, 8, 25, 200, 20},
                        {"the data end within a batch", 1., 7, 16, 5, 40, 9, 100},
                        {"finished by another batch", 1., 16, 64, 100, 1000, 100, 1000},
                        {"finished by the same batch", 1., 7, 16, 7, 112, 7, 100}}) {
    INFO(row.what);
    const plan::TrainOptions train{.epochs = row.epochs,
                                   .epoch_samples = row.samples,
                                   .steps = row.steps,
                                   .global_batch_size = row.batch};
    CHECK(plan::last_step(train, row.steps_done, row.samples_done) == row.last);
  }
}

}  // namespace recipe_epochs_test
