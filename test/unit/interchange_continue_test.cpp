// The ready recipes/continue.yaml, cut down: continues an export of recipes/quickstart.yaml on
// different text, with sequences of a different length.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/rng.h"
#include "base/strings.h"
#include "data/dataset/indexed_dataset.h"
#include "interchange/export.h"
#include "interchange/locate_checkpoint.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "plan/options/recipe_options.h"
#include "run/evaluate_model.h"
#include "run/run.h"
#include "test/support/temporary_folder.h"
#include "train/data_setup.h"

namespace interchange_continue_test {

using namespace mtrain;
namespace fs = std::filesystem;

namespace {

using Changes = std::vector<std::string>;

struct Lab : TemporaryFolder {
  // Writes a text of random words.
  void write_text(const char* name, std::vector<std::string> words, uint64_t seed) const {
    std::vector<int32_t> ids;
    for (uint64_t i = 0; ids.size() < 20'000; ++i)
      for (const char c : words[size_t(uniform_below(seed, i, words.size()))] + " ")
        ids.push_back(static_cast<unsigned char>(c));
    data::IndexedDatasetWriter writer(path / name, data::TokenType::u16);
    writer.add_tokens(ids);
    writer.finish();
  }

  // Trains a ready recipe, and returns the losses of its steps.
  std::vector<double> train(const std::string& recipe, const std::string& run,
                            const std::string& text, const Changes& changes) const {
    Changes all{"dataset.train=" + (path / text).string(),
                "dataset.validation=" + (path / (text + "_valid")).string(),
                "train.run_dir=" + (path / run).string(),
                "train.threads=1",
                "train.global_batch_size=4",
                "train.micro_batch_size=4",
                "train.log_every=1",
                "lr_scheduler.warmup_steps=2"};
    all.insert(all.end(), changes.begin(), changes.end());
    Diagnostics diagnostics;
    const Recipe r =
        plan::load_recipe(interchange::model_source(),
                          MTRAIN_SOURCE_DIR "/recipes/" + recipe + ".yaml", all, diagnostics);
    diagnostics.throw_if_errors();
    const RunPlan plan = plan::make_plan(r, 1, train::vocabulary(plan::tokenizer_options(r)));
    run::run_training(plan, {});
    std::vector<double> losses;
    for (const std::string& line : split(read_file(path / run / "metrics.jsonl"), '\n')) {
      const auto metrics = nlohmann::json::parse(line, nullptr, false);
      if (metrics.is_object() && metrics.contains("loss"))
        losses.push_back(metrics["loss"].get<double>());
    }
    return losses;
  }

  double nats(const fs::path& model) const {
    return run::evaluate_model({.model = model.string(),
                                .data = {(path / "other_valid").string()},
                                .overrides = {"dataset.seq_length=24", "train.threads=1"}})
        .nats_per_token;
  }
};

}  // namespace

TEST_CASE("continue.yaml continues an exported quickstart, on other text of another length") {
  const Lab lab;
  const std::vector<std::string> words{"in", "the", "beginning", "was", "a", "word"},
      others{"the", "rank", "was", "a", "stage", "wording", "begin"};
  lab.write_text("first", words, 1), lab.write_text("first_valid", words, 2);
  lab.write_text("other", others, 3), lab.write_text("other_valid", others, 4);
  const auto first =
      lab.train("quickstart", "first-run", "first",
                {"model.num_layers=2", "model.hidden_size=64", "model.num_attention_heads=4",
                 "model.num_query_groups=2", "dataset.seq_length=48", "train.steps=60"});
  const fs::path folder = lab / "hf";
  interchange::export_hf(interchange::locate_checkpoint(lab / "first-run")->path, folder, {});
  const double before = lab.nats(folder);

  const Changes shorter{"model.from=" + folder.string(), "dataset.seq_length=24", "train.steps=30"};
  const auto second = lab.train("continue", "second-run", "other", shorter);
  REQUIRE(first.size() == 60);
  REQUIRE(second.size() == 30);
  // It begins with the first run's knowledge of letters and words that both texts have.
  CHECK(second.front() < first.front() - 1);
  CHECK(second.front() == Approx(before).margin(0.3));
  CHECK(lab.nats(lab / "second-run") < before - 0.3);

  auto random = shorter;
  random.emplace_back("model.init=random");
  CHECK(lab.train("continue", "random-run", "other", random).front() ==
        Approx(first.front()).margin(0.3));
}

}  // namespace interchange_continue_test
