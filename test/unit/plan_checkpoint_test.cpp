// Tests the settings of checkpoints: which are refused, and what a checkpoint costs.
#include <cmath>

#include "plan/checkpoint_cost.h"
#include "plan/run_plan.h"
#include "recipe_cases.h"
#include "spec/tensors.h"

namespace plan_checkpoint_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;
using Catch::Contains;

namespace {

Recipe loaded(const std::string& more, const Overrides& set = {}) {
  Diagnostics diagnostics;
  Recipe r =
      load_recipe_text(interchange::model_source(), kBase + more, "r.yaml", set, diagnostics);
  INFO(listed(diagnostics));
  REQUIRE_FALSE(diagnostics.has_errors());
  return r;
}

CheckpointCost cost_of(const Overrides& set, int64_t world = 1) {
  const Recipe r = loaded("", set);
  return checkpoint_cost(make_plan(r, world, 512), save_hardware(r.hardware));
}

}  // namespace

TEST_CASE("addresses are no folders: all of a recipe's are refused at once, with a mount") {
  struct Row {
    const char *address, *hint;
  };
  for (const Row& row :
       {Row{"s3://bucket/runs", "mount-s3"}, Row{"gs://bucket/runs", "gcsfuse"},
        Row{"hdfs://host:9000/runs", "NFS gateway"}, Row{"abfss://a@b/runs", "blobfuse2"},
        Row{"S3://B/k", "mount-s3"}, Row{"http://host/runs", "davfs2"},
        Row{"https://host/runs", "davfs2"}, Row{"msc://profile/runs", "mount it on every host"},
        Row{"file:///data/runs", "write the path alone: /data/runs"},
        Row{"file://localhost/data", "write the path alone: /data"}}) {
    for (const char* field : {"train.run_dir", "checkpoint.dir", "checkpoint.load"}) {
      INFO(field << " " << row.address);
      const Overrides set{std::string(field) + "=" + row.address};
      expect_error({.what = row.address, .set = set}, field, "is an address");
      CHECK_THAT(listed(check(1, set)), Contains(row.hint));
    }
  }
  const Diagnostics all = check(
      1, {"train.run_dir=s3://a/b", "checkpoint.dir=gs://c/d", "checkpoint.load=https://e/f"});
  CHECK(count(all, Severity::error) == 3);
  for (const char* path : {"runs/a", "/data/s3:/x", "a:b", "://x", "c:/runs", "a b://c"})
    expect_accepts({.what = path, .set = {std::string("train.run_dir=") + path}});
}

TEST_CASE("multiples are kept beside the newest, if they are saved at all") {
  CHECK(loaded("checkpoint: {keep_every: 1000}\n").checkpoint.keep_every == 1000);
  CHECK(loaded("checkpoint: {save_retain_interval: 50}\n").checkpoint.keep_every == 50);
  CHECK(loaded("checkpoint: {keep_every: null, keep: null}\n").checkpoint.keep == 0);
  CHECK(make_plan(loaded("checkpoint: {keep_every: 7}\n"), 1, 512).checkpoint.keep_every == 7);
  expect_no_warning(
      {.what = "multiples", .set = {"checkpoint.every_steps=10", "checkpoint.keep_every=50"}});
  expect_warning(
      {.what = "never saved", .set = {"checkpoint.every_steps=10", "checkpoint.keep_every=15"}},
      "checkpoint.keep_every", "only every 30 steps");
  expect_warning({.what = "all stay", .set = {"checkpoint.keep=0", "checkpoint.keep_every=15"}},
                 "checkpoint.keep_every", "keeps all");
  expect_warning({.what = "none", .set = {"checkpoint.enabled=false", "checkpoint.keep_every=15"}},
                 "checkpoint.keep_every", "checkpoint.enabled is false");
  expect_error({.what = "negative", .set = {"checkpoint.keep_every=-1"}}, "checkpoint.keep_every",
               "");
}

TEST_CASE("local copies need a folder, and are off without one") {
  CHECK_FALSE(make_plan(loaded(""), 1, 512).checkpoint.local.on());
  const LocalCopyOptions local =
      make_plan(loaded("checkpoint:\n  local: {dir: /dev/shm/x, every_steps: 3, replicas: 2, "
                       "max_gib: 0.5, replica_gbps: 8}\n"),
                1, 512)
          .checkpoint.local;
  CHECK(local.on());
  CHECK(local.every_steps == 3);
  CHECK(local.replicas == 2);
  CHECK(local.max_bytes == 1 << 29);
  CHECK(local.replica_bytes_per_s == 1e9);
  CHECK(loaded("checkpoint: {local: /dev/shm/y}\n").checkpoint.local.dir == "/dev/shm/y");
  for (const char* set : {"every_steps=2", "replicas=1", "max_gib=1", "replica_gbps=1"})
    expect_error({.what = set, .set = {std::string("checkpoint.local.") + set}},
                 "checkpoint.local." + std::string(set).substr(0, std::string(set).find('=')),
                 "needs the folder");
  expect_error({.what = "an address", .set = {"checkpoint.local.dir=s3://a/b"}},
               "checkpoint.local.dir", "is an address");
  expect_error(
      {.what = "three replicas", .set = {"checkpoint.local.dir=/x", "checkpoint.local.replicas=3"}},
      "checkpoint.local.replicas", "");
  expect_warning(
      {.what = "no checkpoints", .set = {"checkpoint.local.dir=/x", "checkpoint.enabled=false"}},
      "checkpoint.local.dir", "checkpoint.enabled is false");
}

TEST_CASE("a checkpoint to load has a path, and may be absent") {
  const Recipe r = loaded("checkpoint:\n  load: {path: runs/a, or_start: true}\n");
  CHECK(r.checkpoint.load == "runs/a");
  CHECK(r.checkpoint.load_or_start);
  const FolderOptions folders = make_plan(r, 1, 512).folders;
  CHECK(folders.load_path == "runs/a");
  CHECK(folders.load_or_start);
  CHECK(loaded("checkpoint: {load: {path: latest}}\n").checkpoint.load == "latest");
  CHECK_FALSE(loaded("checkpoint: {load: runs/a}\n").checkpoint.load_or_start);
  CHECK(loaded("", {"checkpoint.load.path=runs/b"}).checkpoint.load == "runs/b");
  // A printed recipe loads to the same.
  const Recipe again = loaded("", {});
  CHECK_FALSE(again.checkpoint.load_or_start);
  Diagnostics diagnostics;
  const Recipe printed =
      load_recipe_text(interchange::model_source(), print_recipe(r), "printed", {}, diagnostics);
  CHECK(printed.checkpoint.load == "runs/a");
  CHECK(printed.checkpoint.load_or_start);
  expect_error({.what = "nothing to load", .set = {"checkpoint.load_or_start=true"}},
               "checkpoint.load_or_start", "names nothing to load");
  expect_error({.what = "another key", .set = {"checkpoint.load={path: a, else: b}"}},
               "checkpoint.load.else", "is not a key");
  expect_error({.what = "no path", .set = {"checkpoint.load={}"}}, "checkpoint.load",
               "names no path");
}

TEST_CASE("a failed save continues or stops the run") {
  CHECK_FALSE(make_plan(loaded(""), 1, 512).checkpoint.stop_on_error);
  CHECK(make_plan(loaded("checkpoint: {on_error: stop}\n"), 1, 512).checkpoint.stop_on_error);
  expect_error({.what = "another word", .set = {"checkpoint.on_error=retry"}},
               "checkpoint.on_error", "");
}

TEST_CASE("checkpoints are written in the background by the names of other programs, too") {
  using Async = CheckpointOptions::Async;
  const auto of = [](const std::string& section) {
    return make_plan(loaded(section), 1, 512).checkpoint;
  };
  CHECK(of("").async == Async::automatic);
  CHECK_FALSE(of("").skip_when_busy);
  CHECK(of("checkpoint: {async: auto}\n").async == Async::automatic);
  for (const char* name : {"async", "is_async", "async_save"})
    for (const auto& [value, async] :
         {std::pair("true", Async::on), {"false", Async::off}, {"off", Async::off}})
      CHECK(of(fmt::format("checkpoint: {{{}: {}}}\n", name, value)).async == async);
  CHECK(of("checkpoint: {when_busy: skip}\n").skip_when_busy);
  CHECK_FALSE(of("checkpoint: {when_busy: wait}\n").skip_when_busy);
  expect_error({.what = "another word", .set = {"checkpoint.async=maybe"}}, "checkpoint.async", "");
  expect_error({.what = "another word", .set = {"checkpoint.when_busy=drop"}},
               "checkpoint.when_busy", "");
  CHECK_FALSE(of("").saves_during_training());
  CHECK(of("checkpoint: {every_steps: 5}\n").saves_during_training());
  CHECK_FALSE(of("checkpoint: {every_steps: 5, enabled: false}\n").saves_during_training());
}

TEST_CASE("a copy of a checkpoint is divided over the ranks") {
  const CheckpointCost one = cost_of({}), eight = cost_of({}, 8);
  CHECK(one.staged == one.bytes);
  CHECK(eight.staged == Approx(eight.bytes / 8));
  CHECK(eight.ranks_per_node == 8);
  CHECK(one.ranks_per_node == 1);
  CHECK(cost_of({"train.global_batch_size=32"}, 32).ranks_per_node == 8);
  // The stage with the tables has more than half.
  Diagnostics diagnostics;
  const Recipe pipelined =
      load_recipe_text(interchange::model_source(), kBase, "r.yaml",
                       {"distributed.pp_size=2", "distributed.pipeline={}"}, diagnostics, 2);
  REQUIRE_FALSE(diagnostics.has_errors());
  const CheckpointCost stages =
      checkpoint_cost(make_plan(pipelined, 2, 512), save_hardware(pipelined.hardware));
  CHECK(stages.staged >= stages.bytes / 2);
  CHECK(stages.staged < stages.bytes);
}

TEST_CASE("each rank has four threads for its files unless the recipe has another number") {
  CHECK(make_plan(loaded(""), 1, 512).checkpoint.io_threads == 4);
  CHECK(make_plan(loaded("checkpoint: {io_threads: 1}\n"), 1, 512).checkpoint.io_threads == 1);
  for (const char* wrong : {"0", "65", "-1"})
    expect_error(
        {.what = "a number of threads", .set = {fmt::format("checkpoint.io_threads={}", wrong)}},
        "checkpoint.io_threads", "");
}

TEST_CASE("a checkpoint has weights and the optimizer's state in the types of the training") {
  const RunPlan plan = make_plan(loaded(""), 1, 512);
  const double parameters = plan.parameters.total();
  CHECK(cost_of({}).bytes == 12 * parameters);
  CHECK(cost_of({"optimizer.moments=bf16", "mixed_precision=bf16_mixed"}).bytes == 8 * parameters);
  // Without master weights the weights are bf16.
  const Overrides narrow{"mixed_precision=bf16_mixed", "optimizer.master_weights=false"};
  CHECK(cost_of(narrow).bytes == 10 * parameters);
  Overrides narrowest = narrow;
  narrowest.push_back("optimizer.moments=bf16");
  CHECK(cost_of(narrowest).bytes == 6 * parameters);
  // Muon keeps one momentum for each matrix of a layer, and two moments for the other parameters.
  double matrices = 0;
  for (const spec::TensorSpec& p : spec::parameters(plan.model))
    if (p.role == TensorRole::matrix) matrices += double(p.full_shape.count());
  REQUIRE(matrices > 0);
  CHECK(cost_of({"optimizer.name=muon"}).bytes == 12 * parameters - 4 * matrices);
}

TEST_CASE("the interval between saves is Young's, for the nodes of the job") {
  CHECK_FALSE(cost_of({}).seconds);
  const CheckpointCost timed = cost_of({"hardware.disk_gbps=16"});
  CHECK(*timed.seconds == Approx(timed.bytes / 2e9));
  CHECK_FALSE(timed.interval_s);
  CHECK_FALSE(cost_of({"hardware.mtbf_hours=1000"}).interval_s);
  const Overrides both{"hardware.disk_gbps=1", "hardware.mtbf_hours=1000",
                       "train.global_batch_size=32"};
  const CheckpointCost one = cost_of(both), four = cost_of(both, 32);
  CHECK(one.nodes == 1);
  CHECK(four.nodes == 4);
  CHECK(*four.mtbf_s == Approx(1000. * 3600 / 4));
  CHECK(*four.interval_s == Approx(std::sqrt(2 * *four.seconds * *four.mtbf_s)));
  CHECK(*one.interval_s == Approx(2 * *four.interval_s));
  // No other interval loses less: a save each interval, and half an interval at each failure.
  const auto lost = [&](double interval) {
    return *four.seconds / interval + interval / (2 * *four.mtbf_s);
  };
  CHECK(four.lost == Approx(lost(*four.interval_s)));
  for (const double factor : {0.5, 0.9, 1.1, 2.0})
    CHECK(lost(*four.interval_s * factor) > four.lost);
  expect_error({.what = "no rate", .set = {"hardware.disk_gbps=0"}}, "hardware.disk_gbps", "");
  expect_error({.what = "no time", .set = {"hardware.mtbf_hours=-1"}}, "hardware.mtbf_hours", "");
}

}  // namespace plan_checkpoint_test
