// Tests whole runs, each in a folder of its own: what they write, continue and refuse.
#include <unistd.h>
#include <csignal>
#include <map>
#include <numeric>
#include <set>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/ignore_sigpipe.h"
#include "base/strings.h"
#include "checkpoint/read_weights.h"
#include "data/dataset/indexed_dataset.h"
#include "interchange/export.h"
#include "interchange/locate_checkpoint.h"
#include "interchange/model_source.h"
#include "launch/end_signals.h"
#include "plan/load_recipe.h"
#include "plan/options/recipe_options.h"
#include "plan/saved_recipe.h"
#include "run/evaluate_model.h"
#include "run/generate_text.h"
#include "run/run.h"
#include "run/run_checkpoint.h"
#include "run/run_folder.h"
#include "run/signal_guard.h"
#include "storage/safetensors.h"
#include "test/support/checkpoint_testing.h"
#include "test/support/damage_testing.h"
#include "test/support/run_lab.h"
#include "train/build_trainer.h"
#include "train/data_setup.h"

namespace parity_run_test {

using namespace mtrain;
using Catch::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

TEST_CASE("a run and its continuation write the metrics of one run") {
  const Lab lab;
  lab.train("whole", {"train.steps=6"});
  lab.train("cut");
  lab.train("cut", {"train.steps=6", "checkpoint.load=latest"});
  const auto whole = lab.steps("whole"), cut = lab.steps("cut");
  REQUIRE(whole.size() == 6);
  REQUIRE(cut.size() == 6);
  for (size_t i = 0; i < 6; ++i) {
    CHECK(cut[i]["step"] == i + 1);
    CHECK(cut[i]["tokens"] == (i + 1) * 2 * 16);
    CHECK(cut[i]["loss"] == whole[i]["loss"]);
    int64_t of_categories = 0;
    for (const char* category : {"params", "grads", "optimizer", "activations", "buffers"}) {
      const int64_t bytes = cut[i][fmt::format("memory_peak.{}", category)];
      CHECK(cut[i]["memory_peak"] > bytes);
      of_categories += bytes;
    }
    CHECK(cut[i]["memory_peak"] <= of_categories);
    CHECK_FALSE(
        cut[i].contains("memory_peak.workspace"));  // only the kernels of GPUs use workspace
  }
}

TEST_CASE("a run in bf16 without master weights continues bit for bit") {
  const Lab lab;
  const std::vector<std::string> bf16{"mixed_precision.name=bf16_mixed", "train.steps=6"},
      alone{"optimizer.master_weights=false"};
  const auto with = [](std::vector<std::string> a, const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  lab.train("master", bf16);
  lab.train("whole", with(bf16, alone));
  lab.train("cut", with(with(bf16, alone), {"train.steps=4"}));
  lab.train("cut", with(with(bf16, alone), {"checkpoint.load=latest"}));
  const auto master = lab.steps("master"), whole = lab.steps("whole"), cut = lab.steps("cut");
  REQUIRE(cut.size() == 6);
  for (size_t i = 0; i < 6; ++i) {
    CHECK(cut[i]["loss"] == whole[i]["loss"]);
    CHECK(double(whole[i]["loss"]) == Approx(double(master[i]["loss"])).epsilon(2e-2));
  }
  CHECK(whole[5]["loss"] != master[5]["loss"]);
}

TEST_CASE("a run in fp16 records its scale, skips what overflows, and continues bit for bit") {
  const Lab lab;
  // A first scale under which gradients overflow.
  const auto run = [&](const char* name, std::vector<std::string> more) {
    more.insert(more.end(), {"mixed_precision.name=fp16_mixed", "optimizer.loss_scale_window=2",
                             "mixed_precision.initial_loss_scale=16777216"});
    lab.train(name, more);
  };
  run("whole", {"train.steps=12"});
  run("cut", {"train.steps=2"});
  run("cut", {"train.steps=12", "checkpoint.load=latest"});
  const auto whole = lab.steps("whole"), cut = lab.steps("cut");
  REQUIRE((whole.size() == 12 && cut.size() == 12));
  CHECK(whole[0]["loss_scale"] == 16777216);
  CHECK(whole[1]["skipped"] == 1);
  CHECK(whole[11]["skipped"] == 0);
  int clean = 0;
  for (size_t i = 0; i < 12; ++i) {
    const bool skipped = whole[i]["skipped"] == 1;
    CHECK(whole[i]["grad_norm"].is_null() == skipped);
    for (const char* metric : {"loss", "loss_scale", "skipped", "grad_norm"})
      CHECK(cut[i][metric] == whole[i][metric]);
    clean = skipped ? 0 : clean + 1;
    const double factor = skipped ? 0.5 : clean == 2 ? 2 : 1;
    if (clean == 2) clean = 0;
    if (i < 11)
      CHECK(double(whole[i + 1]["loss_scale"]) == factor * double(whole[i]["loss_scale"]));
  }
}

TEST_CASE("a checkpoint of another model or other data is refused with every difference") {
  const Lab lab;
  lab.train("saved", {"train.steps=2"});
  const auto complaint = [&](std::vector<std::string> changes) -> std::string {
    changes.insert(changes.end(), {"train.steps=3", "checkpoint.load=latest"});
    try {
      lab.train("saved", changes);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  };
  // None of these changes the shape of a tensor.
  CHECK_THAT(complaint({"model.num_attention_heads=8", "model.num_query_groups=8",
                        "model.rotary_base=500", "model.norm_epsilon=1e-3"}),
             Contains("model.num_attention_heads: saved with 4, now 8") &&
                 Contains("model.rotary_base") && Contains("model.norm_epsilon"));
  CHECK_THAT(complaint({"model.window_size=8"}), Contains("model.window_size"));
  CHECK_THAT(complaint({"dataset.train=" + (lab / "b").string()}), Contains("dataset.train"));
  CHECK_THAT(complaint({"dataset.seed=9"}), Contains("dataset.seed"));
  CHECK_THAT(complaint({"train.seed=9"}), Contains("train.seed"));
  CHECK_THAT(complaint({"model.qk_layernorm=true"}), Contains("model.qk_layernorm"));
  CHECK(lab.steps("saved").size() == 2);
  CHECK(complaint({"optimizer.lr=1e-4", "model.init_method_std=0.5",
                   "train.global_batch_size=4"}) == "no error");
}

TEST_CASE("tensors that the model lacks are refused") {
  const Lab lab;
  lab.train("two", {"train.steps=2", "model.num_layers=2"});
  const auto device = Device::cpu(1, {});
  Stream& stream = device->stream(device::StreamKind::compute);
  model::ParamStore params;
  CHECK(plan::read_saved_run(interchange::model_source(),
                             checkpoint::saved_recipe(lab.step("two", 2)))
            .model.layer_count() == 2);
  model::Gpt model(stream, params, lab.plan("one").model, 16);
  params.materialize(stream, DType::f32, false);
  CHECK_THROWS_WITH(checkpoint::load_weights(stream, params, {}, lab.step("two", 2)),
                    Contains("layers.1."));
}

TEST_CASE("a run does not take over the folder of another") {
  const Lab lab;
  lab.train("a");
  lab.train("b", {"train.seed=2"});
  const auto metrics = read_file(lab / "a/metrics.jsonl");
  CHECK_THROWS_WITH(lab.train("a"), Contains("step 4") && Contains("checkpoint.load=latest"));
  CHECK_THROWS_WITH(lab.train("a", {lab.load("b", 2), "train.seed=2"}),
                    Contains("is a checkpoint of another"));
  CHECK_THROWS_WITH(lab.train("a", {"checkpoint.dir=" + (lab / "b/checkpoints").string(),
                                    "train.seed=2", "checkpoint.load=latest"}),
                    Contains("are not of the run that wrote"));
  CHECK(read_file(lab / "a/metrics.jsonl") == metrics);
  CHECK(lab.checkpoints("a").count("step-00000004"));
  // A run in a new folder may continue from a checkpoint, or from the newest checkpoint of a run.
  lab.train("c", {lab.load("b", 2), "train.seed=2", "train.steps=3"});
  CHECK(lab.steps("c").size() == 1);
  lab.train("d", {"checkpoint.load=" + (lab / "b").string(), "train.seed=2", "train.steps=5"});
  CHECK(lab.steps("d").front()["step"] == 5);
}

TEST_CASE("a run that died before its first checkpoint keeps its metrics") {
  const Lab lab;
  fs::create_directories(lab / "a");
  write_file_atomic(lab / "a/metrics.jsonl", "{\"step\":1,\"loss\":5.0}\n");
  CHECK_THROWS_WITH(lab.train("a"), Contains("saved nothing"));
  CHECK(lab.steps("a").size() == 1);
  lab.train("a", {"checkpoint.load=latest"});
  CHECK(lab.steps("a").size() == 4);
  CHECK(read_file(lab / "a/metrics.jsonl.abandoned") == "{\"step\":1,\"loss\":5.0}\n");
}

TEST_CASE("a job that starts again begins with checkpoint.load until it has saved") {
  const Lab lab;
  const auto with = [](std::vector<std::string> a, const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  lab.train("other", {"train.steps=8"});
  lab.train("whole", {lab.load("other", 4), "train.steps=8"});
  struct Row {
    std::string run;
    std::vector<std::string> given;
    std::string begins;
  };
  for (const Row& row :
       std::vector<Row>{{.run = "random", .given = {"train.steps=8"}, .begins = "step 1"},
                        {.run = "latest",
                        .given = {"train.steps=8", "checkpoint.load=latest"},
                        .begins = "step 1"},
                        {.run = "branch",
                        .given = {"train.steps=8", lab.load("other", 4)},
                        .begins = lab.step("other", 4)},
                        {.run = "branch of the newest",
                        .given = {"train.steps=14", "checkpoint.load=" + (lab / "other").string()},
                        .begins = lab.step("other", 8)},
                        {.run = "branch elsewhere",
                        .given = {"train.steps=8", lab.load("other", 4),
                                  "checkpoint.dir=" + (lab / "elsewhere").string()},
                        .begins = lab.step("other", 4)}}) {
    INFO(row.run);
    CHECK(lab.start(row.run, row.given, "job") == row.begins);
    lab.train_and_die(row.run, with(row.given, {"train.exit_interval=5"}), "job");
    CHECK(lab.start(row.run, row.given, "job") == row.begins);
    lab.train(row.run, with(row.given, {"train.exit_interval=6"}), "job");
    CHECK(fs::exists(lab / row.run / "metrics.jsonl.abandoned"));
    const auto saved = storage::find_latest(lab.recipe(row.run, row.given).checkpoint.dir);
    REQUIRE(saved);
    CHECK(lab.start(row.run, row.given, "job") == saved->path.string());
    lab.train(row.run, row.given, "job");
  }
  const auto whole = lab.steps("whole");
  for (const char* run : {"branch", "branch elsewhere"}) {
    const auto again = lab.steps(run);
    REQUIRE(again.size() == whole.size());
    for (size_t i = 0; i < whole.size(); ++i) CHECK(again[i]["loss"] == whole[i]["loss"]);
  }
}

TEST_CASE("a job that goes back in its run starts again from there until it has saved") {
  const Lab lab;
  lab.train("a", {"train.steps=8"});
  const auto with = [](std::vector<std::string> a, const std::string& b) {
    a.push_back(b);
    return a;
  };
  const std::vector<std::string> back{lab.load("a", 4), "train.steps=8", "checkpoint.keep=1"};
  CHECK(lab.start("a", back, "job") == lab.step("a", 4));
  lab.train_and_die("a", with(back, "train.exit_interval=5"), "job");
  CHECK(lab.start("a", back, "job") == lab.step("a", 4));
  lab.train("a", with(back, "train.exit_interval=6"), "job");
  CHECK_FALSE(fs::exists(lab.step("a", 4)));  // the checkpoint that the job began with
  CHECK(lab.start("a", back, "job") == lab.step("a", 6));
  // Another job resumes from a checkpoint that was set aside; the folder's newest is of step 6.
  const std::string aside = lab.step("a", 8).string() + ".abandoned";
  const std::vector<std::string> forth{"checkpoint.load=" + aside, "train.steps=10"};
  lab.train_and_die("a", with(forth, "train.exit_interval=9"), "second job");
  CHECK(lab.start("a", forth, "second job") == aside);
  lab.train("a", forth, "second job");
  CHECK(lab.start("a", forth, "second job") == lab.step("a", 10));
}

TEST_CASE("a job does not take another job's files for its own") {
  const Lab lab;
  lab.train_and_die("a", {}, "first job");
  CHECK_THROWS_WITH(lab.start("a", {}, "second job"), Contains("saved nothing"));
  CHECK_THROWS_WITH(lab.start("a", {}, ""), Contains("saved nothing"));
  lab.train("a", {}, "first job");
  CHECK_THROWS_WITH(lab.start("a", {}, "second job"), Contains("step 4"));
  CHECK(lab.start("a", {lab.load("a", 2)}, "second job") == lab.step("a", 2));
  // Every host has a launcher of its own.
  run::write_job(lab.plan("a").folders, {"host 0", "host 0", "host 1", ""}, 0, std::nullopt);
  for (const char* id : {"host 0", "host 1"}) {
    CHECK(run::claim_run_folder(lab.plan("a").folders, {.restarts = 1, .id = id})->step == 4);
    CHECK_THROWS_AS(run::claim_run_folder(lab.plan("a").folders, {.restarts = 0, .id = id}),
                    UserError);
  }
  CHECK_THROWS_AS(lab.start("a", {}, ""), UserError);
}

TEST_CASE("a job that trains twice in one start follows its settings both times") {
  const Lab lab;
  lab.train("a", {}, "job");
  CHECK_THROWS_WITH(lab.train_again("a", {}, "job"), Contains("step 4"));
  lab.train_again("a", {lab.load("a", 2), "train.steps=3"}, "job");
  CHECK(lab.steps("a").size() == 3);
}

TEST_CASE("a restart begins from the checkpoint that the first start found in a folder") {
  const Lab lab;
  lab.train("other");
  const std::vector<std::string> given{"checkpoint.load=" + (lab / "other").string(),
                                       "train.steps=8"};
  auto dies = given;
  dies.push_back("train.exit_interval=5");
  lab.train_and_die("a", dies, "job");
  lab.train("other", {"checkpoint.load=latest", "train.steps=6"});
  CHECK(lab.start("a", given, "job") == lab.step("other", 4));
}

TEST_CASE("without at_end a run leaves the checkpoints of every_steps, and no others") {
  Lab lab;
  lab.train("none", {"checkpoint.every_steps=0", "checkpoint.at_end=false"});
  REQUIRE(lab.steps("none").size() == 4);
  REQUIRE(!fs::exists(lab.step("none", 4)));
  lab.train("some", {"checkpoint.every_steps=3", "checkpoint.at_end=false"});
  REQUIRE(fs::exists(lab.step("some", 3)));
  REQUIRE(!fs::exists(lab.step("some", 4)));
}

TEST_CASE("a run that goes back sets the later checkpoints aside") {
  const Lab lab;
  lab.train("a", {"train.steps=8"});
  for (const char* suffix : {".abandoned", ".abandoned-2"}) {
    lab.train("a", {lab.load("a", 4), "train.steps=6", "checkpoint.keep=2"});
    CHECK(storage::find_latest(lab / "a/checkpoints")->step == 6);
    CHECK(lab.steps("a").size() == 6);
    CHECK(lab.checkpoints("a").count("step-00000006" + std::string(suffix)));
    CHECK(fs::exists(lab / ("a/metrics.jsonl" + std::string(suffix))));
  }
  const auto names = lab.checkpoints("a");
  CHECK(names.count("step-00000004"));
  CHECK(names.count("step-00000008.abandoned"));
}

TEST_CASE("a file that cannot be opened is named with its field") {
  const Lab lab;
  CHECK_THROWS_WITH(lab.train("a", {"dataset.train=" + (lab / "none").string()}),
                    Contains("dataset.train") && Contains("none.bin") && Contains("data build"));
  CHECK_THROWS_WITH(lab.train("a", {"dataset.validation=" + (lab / "none").string()}),
                    Contains("dataset.validation") && Contains("data build"));
  write_file_atomic(lab / "file", "x");
  CHECK_THROWS_WITH(lab.train("file/run"), Contains("train.run_dir"));
  CHECK_THROWS_AS(lab.train("file/run"), UserError);
}

TEST_CASE("the prompt is printed only when the model is loaded") {
  const Lab lab;
  lab.train("a", {"train.steps=1", "checkpoint.dir=" + (lab / "elsewhere").string()});
  std::string said;
  const auto go_on = [&](const char* run, const char* prompt) {
    run::generate_text({.model = (lab / run).string(), .prompts = {prompt}}, {.tokens = 3},
                       {.text = [&](size_t, std::string_view bytes) { said += bytes; },
                        .end = [](size_t, generate::End) {}});
  };
  CHECK_THROWS_AS(go_on("none", "Hello"), UserError);
  CHECK_THROWS_AS(go_on("a", ""), UserError);
  CHECK_THROWS_WITH(go_on("a", "sixteen bytes are"), Contains("the model's context is 16"));
  CHECK(said.empty());
  go_on("a", "Hello");
  CHECK_THAT(said, Catch::StartsWith("Hello"));
  // The model of a checkpoint with biases of routers has them, too.
  lab.train("b", {"train.steps=2", "model.moe=4", "model.moe.router_bias_update_rate=0.1",
                  "model.moe.load_balancing_type=global_aux_loss", "model.moe.aux_loss_coeff=0.1"});
  said.clear();
  go_on("b", "Hello");
  CHECK_THAT(said, Catch::StartsWith("Hello"));
}

TEST_CASE("an evaluation is the mean loss of the windows' tokens") {
  const Lab lab;
  lab.train("a", {"train.steps=1"});
  lab.train("packed", {"train.steps=1", "packed_sequence.packed_sequence_size=16"});
  const run::EvaluateJob job{
      .model = (lab / "a").string(), .data = {(lab / "b").string()}, .stride = 16};
  const run::Evaluation apart = run::evaluate_model(job);
  CHECK((apart.windows == 250 && apart.window == 16 && apart.stride == 16));
  CHECK(apart.tokens == 4000 - 250);
  CHECK(apart.bytes == apart.tokens);  // a token is a byte
  CHECK(apart.perplexity() == Approx(std::exp(apart.nats_per_token)));
  CHECK(apart.bits_per_byte() == Approx(apart.nats_per_token / std::log(2.0)));
  // The windows on which training would validate.
  struct Windows : data::Dataset {
    explicit Windows(const fs::path& prefix) : tokens(prefix) {}
    int64_t seq_length() const override { return 16; }
    int64_t size() const override { return 250; }
    void sample(int64_t i, data::Sample& out) const override {
      out = {};
      out.input.resize(16), out.position.resize(16);
      tokens.read(16 * i, out.input);
      std::iota(out.position.begin(), out.position.end(), 0);
      out.label.assign(out.input.begin() + 1, out.input.end());
      out.label.push_back(-1);
    }
    data::IndexedDataset tokens;
  };
  const auto windows = std::make_shared<Windows>(lab / "b");
  const auto device = Device::cpu(1);
  train::Trainer trainer = train::build_trainer(*device, lab.plan("a"), windows);
  run::resume_run(trainer, interchange::locate_checkpoint(lab / "a")->path);
  const double want = trainer.evaluate(data::ValidationLoader(windows, 0, {.micro_batch = 2}));
  CHECK(apart.nats_per_token == Approx(want).epsilon(1e-6));

  run::EvaluateJob overlapping = job;
  overlapping.stride = 5;
  const run::Evaluation close = run::evaluate_model(overlapping);
  CHECK(close.tokens == 3999);
  CHECK(close.nats_per_token != apart.nats_per_token);
  overlapping.overrides = {"train.micro_batch_size=1"};
  CHECK(run::evaluate_model(overlapping).nats_per_token ==
        Approx(close.nats_per_token).epsilon(1e-6));
  // Only weights are read, so windows may have other lengths than in the training.
  run::EvaluateJob other = job;
  other.stride = 8;
  other.overrides = {"dataset.seq_length=8", "train.seed=5", "train.global_batch_size=4"};
  CHECK(run::evaluate_model(other).windows == 500);
  run::EvaluateJob packed = job;
  packed.model = (lab / "packed").string();
  const run::Evaluation together = run::evaluate_model(packed);
  CHECK(together.tokens == apart.tokens);
  packed.overrides = {"train.micro_batch_size=1"};
  CHECK(run::evaluate_model(packed).nats_per_token ==
        Approx(together.nats_per_token).epsilon(1e-6));

  run::EvaluateJob bad = job;
  bad.data = {(lab / "none").string()};
  CHECK_THROWS_WITH(run::evaluate_model(bad), Contains("--data"));
  bad = job, bad.model = (lab / "none").string();
  CHECK_THROWS_WITH(run::evaluate_model(bad), Contains("no complete checkpoint"));
  bad = job, bad.stride = 17;
  CHECK_THROWS_WITH(run::evaluate_model(bad), Contains("stride is 17"));
}

TEST_CASE("a run ends on signals, and continues without the reader of its output") {
  for (int number : launch::kEndSignals) {
    const run::SignalGuard signals;
    CHECK(signals.signal() == 0);
    std::raise(number);
    CHECK(signals.signal() == number);
  }
  const auto before = std::signal(SIGHUP, SIG_IGN);  // as under nohup
  {
    const run::SignalGuard signals;
    std::raise(SIGHUP);
    CHECK(signals.signal() == 0);
  }
  std::signal(SIGHUP, before);
  const IgnoreSigpipe pipes;
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  ::close(ends[0]);
  CHECK(::write(ends[1], "x", 1) == -1);
  ::close(ends[1]);
}

}  // namespace parity_run_test
