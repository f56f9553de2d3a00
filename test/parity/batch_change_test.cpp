// Runs that resume with another size of the global batch.
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/train_checkpoint.h"
#include "optim/lr_schedule.h"
#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "test/support/damage_testing.h"
#include "test/support/run_lab.h"
#include "test/support/temporary_folder.h"
#include "train_ranks.h"

namespace parity_batch_change_test {

using namespace mtrain;
using namespace train_testing;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

// With such a rate no weight changes, so the loss of a step depends on its samples alone.
const Changes kStill{"optimizer.lr=1e-30", "lr_scheduler.style=constant",
                     "train.micro_batch_size=1"};

std::string batch_of(int64_t size) { return fmt::format("train.global_batch_size={}", size); }

// A part of a run: `steps` steps of one start.
struct Start {
  int ranks;
  int64_t batch;
  int64_t steps;
  Changes changes = {};
};

// Makes the steps of a start from the checkpoint in `from`, if given, and saves into `root`.
std::vector<train::StepStats> train_start(const Start& start,
                                          std::shared_ptr<const data::Dataset> data,
                                          const fs::path& from, const fs::path& root) {
  const Recipe r = tiny(with(start.changes, {batch_of(start.batch)}), start.ranks);
  std::vector<train::StepStats> stats;
  run_ranks(start.ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, data, rank.world);
    if (!from.empty()) run::resume_run(t, from);
    std::vector<train::StepStats> own;
    for (int64_t i = 0; i < start.steps; ++i) own.push_back(t.step());
    run::save_run(t, root);
    if (rank.rank() == 0) stats = own;
  });
  return stats;
}

fs::path newest(const fs::path& root) {
  const auto found = storage::find_latest(root);
  REQUIRE(found);
  return found->path;
}

// Removes the numbers of samples from a checkpoint, as an earlier version would have saved it.
void remove_samples(const fs::path& checkpoint, int64_t step) {
  nlohmann::json state = nlohmann::json::parse(read_file(checkpoint / "state.json"));
  state["values"].erase("samples");
  write_file_atomic(checkpoint / "state.json", state.dump());
  seal_again(checkpoint, step);
}

int64_t labels_of(const data::Dataset& data, int64_t sample) {
  data::Sample s;
  data.sample(sample, s);
  return int64_t(s.label.size()) - std::ranges::count(s.label, -1);
}

}  // namespace

TEST_CASE("after each change of the batch, the steps train on the samples that follow") {
  const Changes fsdp2 = with(kStill, kFsdp2),
                packs =
                    with(kStill, {fmt::format("packed_sequence.packed_sequence_size={}", kSeq)});
  struct Row {
    const char* what;
    std::shared_ptr<const data::Dataset> data;
    std::vector<Start> starts;
  };
  const auto plain = std::make_shared<CountingData>();
  for (const Row& row : std::vector<Row>{
           {"one rank", plain, {{1, 4, 3, kStill}, {1, 6, 2, kStill}, {1, 2, 4, kStill}}},
           {"two ranks", plain, {{2, 4, 3, kStill}, {2, 6, 2, kStill}, {2, 2, 4, kStill}}},
           {"one, two and one", plain, {{1, 3, 3, kStill}, {2, 4, 2, fsdp2}, {1, 5, 2, kStill}}},
           {"packs",
            std::make_shared<PackedCountingData>(),
            {{2, 4, 3, packs}, {1, 6, 2, packs}, {2, 2, 4, packs}}}}) {
    INFO(row.what);
    const TemporaryFolder folder;
    int64_t total = 0;
    for (const Start& s : row.starts) total += s.steps * s.batch;
    std::vector<double> ones;
    for (const auto& s :
         train_start({1, 1, total, row.starts[0].changes}, row.data, {}, folder / "ones"))
      ones.push_back(s.loss);
    int64_t sample = 0, step = 0;
    fs::path from;
    for (const Start& start : row.starts) {
      for (const auto& s : train_start(start, row.data, from, folder / "run")) {
        double sum = 0;
        int64_t labels = 0;
        for (int64_t i = sample; i < sample + start.batch; ++i) {
          const int64_t n = labels_of(*row.data, i);
          sum += ones[size_t(i)] * double(n), labels += n;
        }
        sample += start.batch;
        INFO("samples up to " << sample);
        CHECK(s.loss == Approx(sum / double(labels)).epsilon(1e-5));
        CHECK((s.step == ++step && s.samples == sample));
      }
      from = newest(folder / "run");
      CHECK(storage::TrainState::load(from / "state.json").integer("samples") == sample);
    }
    CHECK(sample == total);
    // Neighbours differ by more than the bound, so other samples would be found.
    CHECK(std::abs(ones[0] - ones[1]) > 1e-3);
  }
}

TEST_CASE("the learning-rate schedule counts samples, and its steps are of the present batch") {
  const Changes schedule{"lr_scheduler.style=cosine", "lr_scheduler.warmup_steps=4",
                         "lr_scheduler.decay_steps=16", "lr_scheduler.min_lr=1e-4",
                         "train.micro_batch_size=1"};
  const TemporaryFolder folder;
  const auto data = std::make_shared<CountingData>();
  const optim::LrSchedule rates(
      make_trainer(*Device::cpu(1), tiny(schedule), data).plan().lr_schedule);
  const auto expect = [&](const Start& start, const fs::path& from, double first, double by) {
    for (const auto& s : train_start(start, data, from, folder / "run")) {
      INFO("step " << s.step);
      CHECK(s.lr == rates.at(first));
      first += by;
    }
  };
  expect({1, 4, 6, schedule}, {}, 1, 1);                            // 24 samples
  expect({1, 8, 2, schedule}, newest(folder / "run"), 4, 1);        // 24 are 3 steps of 8
  expect({2, 6, 3, schedule}, newest(folder / "run"), 46. / 6, 1);  // 40 samples before
}

TEST_CASE("a resume with the same batch, from a checkpoint with and without samples, is the same") {
  const TemporaryFolder folder;
  const auto data = std::make_shared<CountingData>();
  const Changes recipe{"train.micro_batch_size=1", "model.hidden_dropout=0.1"};
  const auto straight = train_start({2, 4, 6, recipe}, data, {}, folder / "straight");
  train_start({2, 4, 3, recipe}, data, {}, folder / "run");
  const fs::path from = newest(folder / "run");
  for (const bool old : {false, true}) {
    if (old) remove_samples(from, 3);
    const auto resumed = train_start({2, 4, 3, recipe}, data, from, folder / "again");
    for (size_t i = 0; i < 3; ++i) {
      CHECK(resumed[i].loss == straight[i + 3].loss);
      CHECK(resumed[i].lr == straight[i + 3].lr);
      CHECK(resumed[i].samples == straight[i + 3].samples);
    }
  }
  // An earlier version saved the samples of its own batch.
  const auto wider = train_start({1, 6, 1, recipe}, data, from, folder / "wider");
  CHECK(wider[0].samples == 3 * 4 + 6);
}

TEST_CASE("earlier versions refuse a state whose samples are not its steps times the batch") {
  const TemporaryFolder folder;
  const auto data = std::make_shared<CountingData>();
  const auto format = [&] {
    return nlohmann::json::parse(read_file(newest(folder / "run") / "state.json")).at("format");
  };
  train_start({1, 4, 2, kStill}, data, {}, folder / "run");
  CHECK(format() == 1);
  train_start({1, 4, 1, kStill}, data, newest(folder / "run"), folder / "run");
  CHECK(format() == 1);
  train_start({1, 6, 1, kStill}, data, newest(folder / "run"), folder / "run");
  CHECK(format() == 2);
  train_start({1, 6, 1, kStill}, data, newest(folder / "run"), folder / "run");
  CHECK(format() == 2);
}

TEST_CASE("numbers of samples that no training has are damage") {
  const TemporaryFolder folder;
  const auto data = std::make_shared<CountingData>();
  train_start({1, 4, 3, kStill}, data, {}, folder / "run");
  const fs::path from = newest(folder / "run");
  const std::string sound = read_file(from / "state.json");
  using Values = std::map<std::string, int64_t>;
  for (const Values& wrong :
       {Values{{"samples", 2}}, Values{{"samples", -12}}, Values{{"updated_samples", 13}},
        Values{{"updated_samples", 2}}, Values{{"updates", 4}}}) {
    nlohmann::json state = nlohmann::json::parse(sound);
    for (const auto& [key, value] : wrong) state["values"][key] = value;
    write_file_atomic(from / "state.json", state.dump());
    seal_again(from, 3);
    CHECK_THROWS_WITH(checkpoint::read_progress(interchange::model_source(), from),
                      Contains("state.json"));
  }
  nlohmann::json state = nlohmann::json::parse(sound);
  state["values"]["updates"] = 2, state["values"]["updated_samples"] = 9;
  write_file_atomic(from / "state.json", state.dump());
  seal_again(from, 3);
  const auto progress = checkpoint::read_progress(interchange::model_source(), from);
  CHECK((progress.steps_done == 3 && progress.updates == 2));
  CHECK((progress.samples == 12 && progress.updated_samples == 9));
}

TEST_CASE("a changed batch changes neither the validation's samples nor the best checkpoints") {
  const Lab lab;
  const fs::path root = lab / "a/checkpoints";
  // With such a rate all losses over the same samples are equal, and the first step stays the best.
  const Changes common{"dataset.validation=" + (lab / "b").string(),
                       "validation.every_steps=2",
                       "checkpoint.keep_best=1",
                       "checkpoint.keep=1",
                       "optimizer.lr=1e-30",
                       "train.micro_batch_size=1"};
  struct Row {
    const char* what;
    int64_t steps, batch, validation_steps;
    int64_t samples, best;  // expected
  };
  for (const Row& row : std::vector<Row>{{"the start", 4, 2, 3, 6, 2},
                                         {"another batch", 8, 5, 3, 6, 2},
                                         {"the same batch again", 10, 5, 3, 6, 2},
                                         {"a third batch", 12, 3, 3, 6, 2},
                                         {"another number of batches", 16, 3, 4, 12, 14},
                                         {"the first batch", 18, 2, 4, 12, 14}}) {
    INFO(row.what);
    lab.train("a", with(common, {fmt::format("train.steps={}", row.steps), batch_of(row.batch),
                                 fmt::format("validation.steps={}", row.validation_steps),
                                 row.steps == 4 ? "train.log_every=1" : "checkpoint.load=latest"}));
    const auto state = storage::TrainState::load(newest(root) / "state.json");
    CHECK(state.integer("step") == row.steps);
    CHECK(state.integer(storage::kValidationSamples) == row.samples);
    CHECK(storage::named_steps(root).best == row.best);
    CHECK(fs::exists(root / storage::step_name(row.best)));
  }
  const std::string log = read_file(lab / "a/log.txt");
  CHECK_THAT(log, Contains("a validation still has 6 samples, not 15: "));
  CHECK_THAT(log, Contains("a validation still has 6 samples, not 9: "));
  CHECK_THAT(log, Contains("a validation still has 12 samples, not 8: "));
  CHECK_THAT(log, !Contains("still has 6 samples, not 12"));
}

TEST_CASE("a checkpoint of an earlier version gives the validation's samples by its recipe") {
  const Lab lab;
  const Changes common{"dataset.validation=" + (lab / "b").string(), "validation.steps=3"};
  lab.train("a", common);
  const fs::path from = lab.step("a", 2);
  nlohmann::json state = nlohmann::json::parse(read_file(from / "state.json"));
  CHECK(state["values"].erase(storage::kValidationSamples) == 1);
  write_file_atomic(from / "state.json", state.dump());
  seal_again(from, 2);
  lab.train("b", with(common, {batch_of(4), lab.load("a", 2)}));
  CHECK(storage::TrainState::load(lab.step("b", 4) / "state.json")
            .integer(storage::kValidationSamples) == 6);
  // Of a run without validation there is nothing to keep.
  lab.train("none");
  lab.train("c", with(common, {batch_of(4), lab.load("none", 2)}));
  CHECK(storage::TrainState::load(lab.step("c", 4) / "state.json")
            .integer(storage::kValidationSamples) == 12);
}

}  // namespace parity_batch_change_test
