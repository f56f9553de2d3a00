// Tests that evaluations of runs measure what the runs' own validation measures, and that only ids
// in use count, whatever the sizes of tokenizer and model are.
#include <algorithm>
#include <cmath>
#include <set>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/strings.h"
#include "data/dataset/indexed_dataset.h"
#include "interchange/byte_tokenizer.h"
#include "interchange/export.h"
#include "interchange/locate_checkpoint.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "plan/options/recipe_options.h"
#include "run/evaluate_model.h"
#include "run/generate_text.h"
#include "run/run.h"
#include "storage/checkpoint_dir.h"
#include "test/support/temporary_folder.h"
#include "train/data_setup.h"

namespace run_evaluation_test {

using namespace mtrain;
using Catch::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

using Settings = std::vector<std::string>;
using Documents = std::vector<std::vector<int32_t>>;

// Documents of 3 to 40 letters, each of which ends with the byte tokenizer's end of a document. The
// letters of a document depend on its first, so that the text before a document would matter.
Documents letters(uint64_t seed, int count = 60) {
  Documents documents;
  for (int d = 0; d < count; ++d) {
    const auto draw = [&](uint64_t n, uint64_t below) {
      return int32_t(uniform_below(seed, uint64_t(d) * 64 + n, below));
    };
    std::vector<int32_t> document;
    for (int i = 0, n = 3 + draw(0, 38), first = 'a' + draw(1, 20); i < n; ++i)
      document.push_back(first + i % (2 + draw(2, 4)));
    document.push_back(256);
    documents.push_back(std::move(document));
  }
  return documents;
}

struct Lab : TemporaryFolder {
  Lab() {
    write("train", letters(1));
    write("plain", letters(2));
    write("masked", letters(3), true);
    write("more", letters(4, 100));
  }
  // The first half of masked documents does not count, and no token of some counts.
  void write(const std::string& name, const Documents& documents, bool masked = false) const {
    data::IndexedDatasetWriter writer(path / name, data::TokenType::i32, masked);
    for (const auto& tokens : documents) {
      std::vector<uint8_t> labels(tokens.size(), tokens[0] % 5 != 4);
      std::fill_n(labels.begin(), tokens.size() / 2, uint8_t{0});
      masked ? writer.add_tokens(tokens, labels) : writer.add_tokens(tokens);
      writer.end_document();
    }
    writer.finish();
  }
  std::string set(const std::string& name) const { return (path / name).string(); }

  void train(const std::string& run, const Settings& changes = {}) const {
    Settings settings{"model.num_layers=2",
                      "model.hidden_size=32",
                      "model.num_attention_heads=4",
                      "dataset.seq_length=16",
                      "dataset.train=" + set("train"),
                      "train.steps=20",
                      "train.global_batch_size=4",
                      "train.micro_batch_size=1",
                      "train.threads=1",
                      "lr_scheduler.style=constant",
                      "optimizer.lr=1e-2",
                      "mixed_precision.name=fp32",
                      "checkpoint.every_steps=0",
                      "train.run_dir=" + set(run)};
    settings.insert(settings.end(), changes.begin(), changes.end());
    Diagnostics diagnostics;
    const Recipe r = plan::load_recipe_text(interchange::model_source(), "model: {}\n", "lab",
                                            settings, diagnostics);
    diagnostics.throw_if_errors();
    const RunPlan plan = plan::make_plan(r, 1, train::vocabulary(plan::tokenizer_options(r)));
    run::run_training(plan, {.job = {}});
  }
  // Returns the last validation loss of a run.
  double validated(const std::string& run) const {
    double loss = NAN;
    for (const std::string& line : split(read_file(path / run / "metrics.jsonl"), '\n'))
      if (const json metrics = json::parse(line, nullptr, false);
          metrics.contains("validation_loss"))
        loss = metrics["validation_loss"].get<double>();
    return loss;
  }
  run::EvaluateJob job(const std::string& run, const Settings& data = {}) const {
    run::EvaluateJob job;
    job.model = set(run);
    for (const std::string& name : data) job.data.push_back(set(name));
    return job;
  }
  run::Evaluation evaluate(const std::string& run, const Settings& data = {}) const {
    return run::evaluate_model(job(run, data));
  }
  std::string generate(run::GenerateJob job) const {
    std::string text;
    run::generate_text(job, {.tokens = 3, .echo_prompt = false},
                       {.text = [&](size_t, std::string_view bytes) { text += bytes; },
                        .end = [](size_t, generate::End) {}});
    return text;
  }
  fs::path checkpoint(const std::string& run) const {
    return interchange::locate_checkpoint(path / run)->path;
  }
  // Returns the names, sizes and times of all files below a folder, but for the log.
  std::set<std::string> files(const std::string& run) const {
    std::set<std::string> all;
    for (const auto& e : fs::recursive_directory_iterator(path / run))
      if (e.is_regular_file() && e.path().filename() != "log.txt")
        all.insert(fmt::format("{} {} {}", e.path().string(), e.file_size(),
                               e.last_write_time().time_since_epoch().count()));
    return all;
  }
};

const Settings kPacked{"packed_sequence.packed_sequence_size=48"};
Settings with(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("an evaluation measures what the run's validation measures") {
  const Lab lab;
  struct Row {
    const char* name;
    Settings sets;  // the validation's
    Settings changes;
  };
  for (const Row& row : std::vector<Row>{
           {"plain", {"plain"}, {"train.micro_batch_size=2"}},
           {"masked",
            {"masked"},
            {"train.micro_batch_size=4", "dataset.train=" + lab.set("masked")}},
           {"packed", {"plain"}, kPacked},
           {"masked_packed", {"masked"}, with(kPacked, {"dataset.train=" + lab.set("masked")})},
           {"blended", {"plain", "more"}, {}},
           {"blended_masked", {"plain", "masked", "more"}, {}},
           {"blended_packed", {"more", "masked"}, kPacked}}) {
    CAPTURE(row.name);
    std::string sets;
    for (const std::string& name : row.sets) sets += (sets.empty() ? "" : ",") + lab.set(name);
    lab.train(row.name,
              with(row.changes, {"dataset.validation=[" + sets + "]", "validation.steps=0"}));
    const double own = lab.validated(row.name);
    REQUIRE(own > 0);
    const run::Evaluation given = lab.evaluate(row.name, row.sets),
                          recipes = lab.evaluate(row.name);
    CHECK(std::abs(given.nats_per_token - own) < 1e-6);
    CHECK(recipes.nats_per_token == given.nats_per_token);
    CHECK(recipes.tokens == given.tokens);
    CHECK(given.stride == 0);
  }
  // A part of the set, by the recipe, and its weights.
  lab.train("weighed", {"dataset.validation=[" + lab.set("plain") + "," + lab.set("more") + "]",
                        "dataset.validation_weights=[3,1]", "validation.steps=2"});
  const run::Evaluation part = lab.evaluate("weighed");
  CHECK(part.windows == 8);
  CHECK(std::abs(part.nats_per_token - lab.validated("weighed")) < 1e-6);
  CHECK_THROWS_WITH((lab.train("without"), lab.evaluate("without")),
                    Contains("no dataset.validation") && Contains("--data"));
}

TEST_CASE("with a mask or under packs each document stands by itself in an evaluation") {
  const Lab lab;
  lab.train("plain");
  lab.train("packed", kPacked);
  // The order does not matter if no document sees the ones before it.
  const Documents documents = letters(5, 40), backward(documents.rbegin(), documents.rend());
  for (const auto& [model, masked] :
       {std::pair{"plain", true}, std::pair{"packed", true}, std::pair{"packed", false}}) {
    lab.write("forward", documents, masked);
    lab.write("backward", backward, masked);
    for (const int64_t stride : {0, 5}) {
      CAPTURE(model, masked, stride);
      const auto evaluate = [&lab, name = model, stride](const char* set) {
        run::EvaluateJob job = lab.job(name, {set});
        job.stride = stride;
        return run::evaluate_model(job);
      };
      const run::Evaluation a = evaluate("forward"), b = evaluate("backward");
      CHECK(a.tokens == b.tokens);
      CHECK(a.bytes == b.bytes);
      CHECK(a.bytes < a.tokens);  // ends of documents have none
      CHECK(a.nats_per_token == Approx(b.nats_per_token).epsilon(1e-6));
    }
  }
}

TEST_CASE("a text shorter than a sample is evaluated, and strides reach the last tokens") {
  const Lab lab;
  lab.train("run");
  lab.write("short", {{'a', 'b', 'a', 'b', 256}});
  CHECK(lab.evaluate("run", {"short"}).tokens == 4);
  lab.write("rest", {std::vector<int32_t>(40, 'a')});
  const run::Evaluation e = lab.evaluate("run", {"rest"});
  CHECK(e.tokens == 32);
  CHECK_THAT(e.note, Contains("last 7 tokens") && Contains("--stride 16"));
  run::EvaluateJob strided = lab.job("run", {"rest"});
  strided.stride = 16;
  CHECK(run::evaluate_model(strided).tokens == 40 - 3);
  strided.data.push_back(lab.set("short"));
  CHECK_THROWS_WITH(run::evaluate_model(strided), Contains("--stride needs one --data"));
}

TEST_CASE("a tokenizer with more ids than the model has rows is of use") {
  const Lab lab;
  const Settings ascii{"tokenizer.type=byte", "model.vocab_size=128",
                       "dataset.train=" + lab.set("ascii")};
  Documents documents = letters(6);
  for (auto& document : documents) document.pop_back();
  lab.write("ascii", documents);
  lab.train("run", ascii);
  CHECK(lab.evaluate("run", {"ascii"}).bytes > 0);
  CHECK(lab.generate({.model = lab.set("run"), .prompts = {"abc"}}).size() <= 3);
  interchange::export_hf(lab.checkpoint("run"), lab / "hf", {});
  CHECK(json::parse(read_file(lab / "hf/config.json"))["vocab_size"] == 128);

  // Data with such an id are refused, and the token is named with its place.
  CHECK_THROWS_WITH(
      lab.generate({.model = lab.set("run"), .prompts = {"a\xc3\xa9"}}),
      Contains("token 1 of the prompt has the id 195 (\"\\xc3\")") && Contains("has 128 ids"));
  documents[7][2] = 256;
  lab.write("late", documents);
  const auto names_it = [&](const auto& f, const std::string& place = "document 7, in sample") {
    CHECK_THROWS_WITH(f(), Contains("late.bin (token 2 of " + place) &&
                               Contains("id 256 (the end of a document)") &&
                               Contains("vocabulary has 128 ids"));
  };
  names_it([&] { lab.evaluate("run", {"late"}); });
  names_it([&] { lab.train("late_run", with(ascii, {"dataset.train=" + lab.set("late")})); });
  names_it([&] {
    lab.train("late_packed", with(with(ascii, kPacked), {"dataset.train=" + lab.set("late")}));
  });
  // Masked tokens give no loss, but they are inputs. Samples without any label are not read.
  for (auto& document : documents) document[2] = 256;
  lab.write("late", documents, true);
  names_it([&] { lab.evaluate("run", {"late"}); }, "document ");
  names_it([&] { lab.train("late_masked", with(ascii, {"dataset.train=" + lab.set("late")})); },
           "document ");
}

TEST_CASE("data with ids above the largest of the tokenizer that a recipe names are refused") {
  const Lab lab;
  Documents documents = letters(7);
  documents[3][1] = 300;
  lab.write("others", documents);
  const Settings named{"tokenizer.type=byte", "model.vocab_size=512",
                       "dataset.train=" + lab.set("others")};
  CHECK_THROWS_WITH(lab.train("run", named),
                    Contains("id 300") && Contains("largest id of the tokenizer (byte) is 256") &&
                        Contains("tokenizer.path"));
  lab.train("bytes", {"tokenizer.type=byte", "model.vocab_size=512"});
  CHECK_THROWS_WITH(lab.evaluate("bytes", {"others"}), Contains("id 300") && Contains("tokenizer"));
  CHECK_FALSE(interchange::exceeds_bytes(lab.checkpoint("bytes")));
}

TEST_CASE("without a tokenizer ids of any kind are trained on, and texts then need its name") {
  const Lab lab;
  Documents documents = letters(8);
  documents[3][1] = 300;
  lab.write("others", documents);
  const Settings others{"model.vocab_size=512", "dataset.train=" + lab.set("others")};
  const auto refuses = [&](const std::string& run, const char* why) {
    CHECK_THROWS_WITH(lab.generate({.model = lab.set(run), .prompts = {"abc"}}),
                      Contains(why) && Contains("--tokenizer"));
  };
  lab.train("others_run", others);
  CHECK(interchange::exceeds_bytes(lab.checkpoint("others_run")));
  refuses("others_run", "names no tokenizer");
  // Data of bytes, too, since the model does not read bytes.
  for (const char* set : {"others", "plain"})
    CHECK_THROWS_WITH(lab.evaluate("others_run", {set}),
                      Contains("names no tokenizer") && Contains("--tokenizer"));
  CHECK(lab.generate({.model = lab.set("others_run"), .tokenizer = "byte", .prompts = {"abc"}})
            .size() <= 3);
  interchange::export_hf(lab.checkpoint("others_run"), lab / "hf", {});
  CHECK_FALSE(fs::exists(lab / "hf/tokenizer.json"));
  lab.train("others_run", with(others, {"checkpoint.load=latest", "train.steps=21"}));
  CHECK(interchange::exceeds_bytes(lab.checkpoint("others_run")));

  // The byte tokenizer gives bytes per token; with NullTokenizer they are unknown.
  lab.train("bytes", {"model.vocab_size=512"});
  CHECK_FALSE(interchange::exceeds_bytes(lab.checkpoint("bytes")));
  CHECK(lab.evaluate("bytes", {"plain"}).bytes > 0);
  lab.train("null", with(others, {"tokenizer.type=NullTokenizer"}));
  CHECK_FALSE(interchange::exceeds_bytes(lab.checkpoint("null")));
  const run::Evaluation e = lab.evaluate("null", {"others"});
  CHECK((e.tokens > 0 && e.bytes == 0));
  refuses("null", "NullTokenizer");
}

TEST_CASE(
    "with fewer steps than the checkpoint has there is nothing to do, and only the log is "
    "written") {
  const Lab lab;
  lab.train("run", {"train.steps=4", "checkpoint.every_steps=1", "checkpoint.keep=0"});
  const auto before = lab.files("run");
  const std::string second = (lab.path / "run/checkpoints/step-00000002").string();
  for (const Settings& less : {Settings{"train.steps=3", "checkpoint.load=latest"},
                               Settings{"train.steps=1", "checkpoint.load=" + second}})
    lab.train("run", with(less, {"dataset.validation=" + lab.set("plain"),
                                 "debug.trace=" + lab.set("trace.json")}));
  CHECK(lab.files("run") == before);
  CHECK_FALSE(fs::exists(lab / "trace.json"));
  CHECK(storage::find_latest(lab / "run/checkpoints")->step == 4);
}

}  // namespace run_evaluation_test
