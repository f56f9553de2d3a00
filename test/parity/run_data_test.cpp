// Tests that a resumed run trains on the data that it began with.
#include <cstdlib>
#include <fstream>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "run/data_identity.h"
#include "run/run_checkpoint.h"
#include "test/support/run_lab.h"
#include "train/build_trainer.h"

namespace parity_run_data_test {

using namespace mtrain;
using Catch::Contains;
namespace fs = std::filesystem;

TEST_CASE("a resume takes the same data under any name, and no other data under the same name") {
  const Lab lab;
  const std::string more = "train.steps=";
  const auto complaint = [&](int steps, std::vector<std::string> changes) -> std::string {
    changes.insert(changes.end(), {more + std::to_string(steps), "checkpoint.load=latest"});
    try {
      lab.train("saved", changes);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  };
  const auto copy = [](const fs::path& from, const fs::path& to) {
    fs::create_directories(to.parent_path());
    for (const char* suffix : {".bin", ".idx", ".hash", ".mask"}) {
      fs::remove(to.string() + suffix);
      if (fs::exists(from.string() + suffix))
        fs::copy_file(from.string() + suffix, to.string() + suffix);
    }
  };
  const std::string validation = "dataset.validation=" + (lab / "v").string();
  copy(lab / "b", lab / "v");
  lab.train("saved", {"train.steps=2", validation});

  // Another spelling, a link, a copy in another folder.
  CHECK(complaint(3, {"dataset.train=" + (lab / "saved/../a").string(), validation}) == "no error");
  fs::create_directory_symlink(lab.path, lab / "link");
  CHECK(complaint(4, {"dataset.train=" + (lab / "link/a").string(), validation}) == "no error");
  copy(lab / "a", lab / "moved/c");
  CHECK(complaint(5, {"dataset.train=" + (lab / "moved/c").string(), validation}) == "no error");
  CHECK(complaint(6, {"dataset.train=[" + (lab / "a").string() + "]"}) == "no error");
  CHECK(complaint(7, {validation}) == "no error");

  // Other data under the same name, of equal size.
  const fs::path kept = lab / "kept/a";
  copy(lab / "a", kept);
  copy(lab / "b", lab / "a");
  CHECK_THAT(complaint(8, {validation}),
             Contains("dataset.train: saved with " + (lab / "a").string()) &&
                 Contains("a.bin holds other data"));
  CHECK_THAT(complaint(8, {"train.seed=9"}), Contains("dataset.train") && Contains("train.seed"));
  copy(kept, lab / "a");
  std::ofstream(lab / "a.mask") << std::string(4000, '\1');
  CHECK_THAT(complaint(8, {validation}), Contains("mask is new"));
  fs::remove(lab / "a.mask");
  copy(kept, lab / "v");
  CHECK_THAT(complaint(8, {validation}),
             Contains("dataset.validation") && Contains("v.bin holds other data"));
  copy(lab / "b", lab / "v");
  CHECK_THAT(
      complaint(8, {"dataset.train=[" + (lab / "a").string() + "," + (lab / "b").string() + "]"}),
      Contains("2 data sets instead of 1"));
  CHECK(complaint(8, {validation}) == "no error");
}

TEST_CASE("a split trains and validates as data sets of these documents alone do") {
  const Lab lab;
  const auto write = [&](const char* name, int first, int last) {
    data::IndexedDatasetWriter writer(lab / name, data::TokenType::u16);
    for (int d = first; d < last; ++d) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < 300 + d; ++i) tokens.push_back((i * (d + 3)) % 200);
      writer.add_tokens(tokens);
      writer.end_document();
    }
    writer.finish();
  };
  write("all", 0, 10);
  write("first", 0, 7);
  write("next", 7, 9);
  const auto set = [&](const char* field, const char* name) {
    return fmt::format("dataset.{}={}", field, (lab / name).string());
  };
  const std::vector<std::string> validation{"validation.every_steps=2", "validation.steps=2"};
  std::vector<std::string> alone{set("train", "first"), set("validation", "next")},
      split{set("train", "all"), "dataset.split=7,2,1"};
  for (auto* changes : {&alone, &split})
    changes->insert(changes->end(), validation.begin(), validation.end());
  lab.train("alone", alone);
  lab.train("split", split);
  const auto losses = [&](const char* run) {
    std::vector<double> of_run;
    for (const auto& line : lab.steps(run)) of_run.push_back(line.at("loss").get<double>());
    return of_run;
  };
  const auto validated = [&](const char* run) {
    const std::string text = read_file(lab / run / "metrics.jsonl");
    const size_t at = text.find("\"validation_loss\"");
    REQUIRE(at != std::string::npos);
    return text.substr(at, text.find_first_of(",}", at) - at);
  };
  CHECK(losses("split") == losses("alone"));
  CHECK(validated("split") == validated("alone"));

  // Continued with other shares, the run would read other samples.
  split.insert(split.end(), {"checkpoint.load=latest", "train.steps=6", "dataset.split=6,2,1"});
  CHECK_THROWS_WITH(lab.train("split", split), Contains("dataset.split: saved with [7, 2, 1]"));
}

TEST_CASE("the data sets of a blend agree in their order") {
  const Lab lab;
  const auto blend = [&](const char* first, const char* second) {
    return "dataset.train=[" + (lab / first).string() + "," + (lab / second).string() + "]";
  };
  lab.train("saved", {"train.steps=2", blend("a", "b")});
  CHECK_THROWS_WITH(
      lab.train("saved", {"train.steps=3", "checkpoint.load=latest", blend("b", "a")}),
      Contains("b.bin holds other data") && Contains("a.bin holds other data"));
  CHECK_THROWS_WITH(lab.train("saved", {"train.steps=3", "checkpoint.load=latest", blend("a", "b"),
                                        "dataset.train_weights=[1,2]"}),
                    Contains("dataset.train_weights"));
  CHECK_NOTHROW(lab.train("saved", {"train.steps=3", "checkpoint.load=latest", blend("./a", "b")}));
}

TEST_CASE("without a record of the data's content, a checkpoint's names of data are compared") {
  const Lab lab;
  const auto device = Device::cpu(1);
  const auto resume = [&](const char* prefix, const fs::path& checkpoint) {
    const RunPlan plan = lab.plan("old", {"dataset.train=" + (lab / prefix).string()});
    run::DataIdentity data(plan);
    train::Trainer trainer = train::build_trainer(
        *device, plan, train::open_training_data(plan.dataset, {plan.model.vocab}),
        comm::World::alone());
    return run::resume_run(trainer, checkpoint, &data);
  };
  const RunPlan plan = lab.plan("old");
  train::Trainer trainer = train::build_trainer(
      *device, plan, train::open_training_data(plan.dataset, {plan.model.vocab}),
      comm::World::alone());
  trainer.step();
  const fs::path old = run::save_run(trainer, lab / "old/checkpoints");
  CHECK_THAT(resume("a", old), Contains("only the name of dataset.train was compared"));
  CHECK_THROWS_WITH(resume("./a", old), Contains("dataset.train: saved with"));
  const run::DataIdentity data(plan);
  const fs::path now = run::save_run(trainer, lab / "new/checkpoints", {.data = &data});
  CHECK(resume("./a", now).empty());
  CHECK_THROWS_WITH(resume("b", now), Contains("b.bin holds other data"));
}

TEST_CASE("a tokenizer with other content is refused, and a missing one is not") {
  const Lab lab;
  lab.train("base", {"checkpoint.save_consolidated=final"});
  const fs::path hf = lab.step("base", 4) / "consolidated", file = lab / "tokenizer/tokenizer.json";
  fs::create_directory(lab / "tokenizer");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy_file(hf / name, lab / "tokenizer" / name);
  const auto train = [&](const char* steps, std::vector<std::string> more) {
    more.push_back(std::string("train.steps=") + steps);
    RunPlan made = lab.plan("saved", more);
    if (fs::exists(file)) made.dataset.tokenizer.path = file.parent_path().string();
    run::run_training(made, {});
  };
  train("2", {});
  const std::string text = read_file(file);
  write_file_atomic(file, text + "\n");
  CHECK_THROWS_WITH(train("3", {"checkpoint.load=latest"}),
                    Contains("tokenizer: saved with") && Contains("tokenizer.json has"));
  fs::rename(lab / "tokenizer", lab / "gone");
  CHECK_NOTHROW(train("3", {"checkpoint.load=latest"}));
  // The checkpoint still records the data that it was made with.
  fs::rename(lab / "gone", lab / "tokenizer");
  CHECK_THROWS_WITH(train("4", {"checkpoint.load=latest"}),
                    Contains("tokenizer: saved with") && Contains("tokenizer.json has"));
  write_file_atomic(file, text);
  CHECK_NOTHROW(train("4", {"checkpoint.load=latest"}));
}

TEST_CASE("data that only differ where no sample was taken end the run before its next save") {
  const Lab lab;
  ::setenv("XDG_CACHE_HOME", (lab / "cache").c_str(), 1);
  {
    data::IndexedDatasetWriter writer(lab / "large", data::TokenType::u16);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 1 << 24; ++i) tokens.push_back((i * 7 + i / 4096) % 200);
    writer.add_tokens(tokens);
    writer.finish();
  }
  const std::string large = "dataset.train=" + (lab / "large").string(),
                    latest = "checkpoint.load=latest";
  lab.train("saved", {large, "train.steps=2"});
  {
    std::fstream bin(lab / "large.bin", std::ios::in | std::ios::out | std::ios::binary);
    bin.seekp(4096 + 10);  // between two blocks of the sample
    bin.put('\1');
  }
  try {
    lab.train("saved", {large, latest, "train.steps=1000000", "checkpoint.every_steps=0"});
    FAIL("the run goes on");
  } catch (const RunError& e) {
    CHECK_THAT(e.what(), Contains("dataset.train holds different data") &&
                             Contains("large.bin holds other data"));
  }
  // The next start refuses at once.
  CHECK_THROWS_AS(lab.train("saved", {large, latest, "train.steps=100000"}), UserError);
  CHECK_FALSE(fs::exists(lab.step("saved", 1000000)));
  ::unsetenv("XDG_CACHE_HOME");
}

}  // namespace parity_run_data_test
