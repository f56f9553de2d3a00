// Reads published speeds, plans them, and fits constants to times that a model with known constants
// has made.
#include <fmt/core.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "interchange/model_source.h"
#include "plan/published_rows.h"
#include "plan/stack_file.h"
#include "predict/row_calibration.h"
#include "predict/row_ranking.h"
#include "predict/step_model.h"

namespace predict_published_rows_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace mtrain::predict;
using Catch::Contains;

namespace {

namespace fs = std::filesystem;

const char* const kModels = R"({
  "small": {"num_layers": 4, "hidden_size": 1024, "num_attention_heads": 8, "num_query_groups": 8,
            "head_dim": 128, "ffn_hidden_size": 4096, "vocab_size": 32000, "activation": "gelu",
            "tie_embeddings": true},
  "large": {"num_layers": 8, "hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 8,
            "head_dim": 128, "ffn_hidden_size": 14336, "vocab_size": 64000, "activation": "swiglu",
            "tie_embeddings": false},
  "experts": {"num_layers": 4, "hidden_size": 1024, "num_attention_heads": 8,
              "num_query_groups": 8, "head_dim": 128, "ffn_hidden_size": 512, "vocab_size": 32000,
              "activation": "swiglu", "tie_embeddings": false,
              "moe": {"num_experts": 8, "router_topk": 2, "ffn_hidden_size": 512}}
})";

// A row of the stack "mine"; `more` are further keys.
std::string row(const std::string& more = "", double tokens = 1000) {
  return fmt::format(
      R"({{"source": "mine", "model": "large", "gpu": "H100", "gpus": 8, "precision": "bf16",
          "seq": 4096, "gbs": 16, "mbs": 1, "tp": 1, "pp": 1, "vp": 1, "cp": 1, "ep": 1,
          "strategy": "fsdp2", "tokens_per_s_per_gpu": {}{}}})",
      tokens, more.empty() ? "" : ", " + more);
}

std::string changed(std::string text, const std::map<std::string, std::string>& changes) {
  for (const auto& [from, to] : changes) text.replace(text.find(from), from.size(), to);
  return text;
}

struct Files {
  fs::path folder = fs::temp_directory_path() / "mtrain_published_rows";
  Files() { fs::create_directories(folder); }
  ~Files() { fs::remove_all(folder); }
  PublishedRows read(const std::string& rows, const std::string& models = kModels) const {
    std::ofstream(folder / "rows.json") << rows;
    std::ofstream(folder / "models.json") << models;
    return read_published_rows((folder / "rows.json").string(), (folder / "models.json").string());
  }
};

PublishedRows one(std::string text, const std::string& key, const std::string& value) {
  const size_t at = text.find("\"" + key + "\":"), end = text.find_first_of(",}", at);
  text.replace(at, end - at, fmt::format("\"{}\": {}", key, value));
  return Files().read("[" + text + "]");
}

}  // namespace

TEST_CASE("all mistakes of published rows are reported at once") {
  const Files files;
  CHECK_THROWS_WITH(
      files.read(R"([{"source": "mine", "gpus": 0, "gpu": "H9", "precision": "bf16", "tp": "two",
                      "colour": 1, "tokens_per_s_per_gpu": -3}, 7])",
                 R"({"small": {"num_layers": 4}})"),
      Contains("[0].model: is missing") && Contains("[0].gpus: must be an integer from 1") &&
          Contains("[0].gpu: is not a known GPU: H9") &&
          Contains("[0].tp: must be an integer from 1") && Contains("[0].colour: is unknown") &&
          Contains("[0].tokens_per_s_per_gpu: must be a number above 0") &&
          Contains("[1]: must be an object") && Contains("small.hidden_size: is missing"));
  CHECK_THROWS_AS(files.read("{}"), UserError);
  CHECK_THROWS_AS(files.read("[", "{}"), UserError);
}

TEST_CASE("rows that say nothing about mtrain's steps have an obstacle") {
  const auto obstacle = [](const std::string& key, const std::string& value) {
    const PublishedRows all = one(row(), key, value);
    return row_obstacle(all.rows[0], all);
  };
  CHECK(obstacle("gpus", "8").empty());
  CHECK(obstacle("model", R"("huge")") == "the model's shapes are unknown");
  CHECK(obstacle("precision", R"("nvfp4")") == "mtrain has no nvfp4");
  CHECK(obstacle("mbs", "null") == "mbs is not published");
  CHECK(obstacle("gbs", "15") == "the batch is not a whole number of micro-batches");
  CHECK(obstacle("tp", "3") == "the sizes do not divide the GPUs");
  CHECK(obstacle("tokens_per_s_per_gpu", "null") ==
        "neither tokens/s nor TFLOP/s by a known convention");
}

TEST_CASE("rows of one configuration differ in their release alone") {
  const PublishedRows all =
      Files().read("[" + row(R"("release": "1")") + "," + row(R"("release": "2")") + "," +
                   row(R"("recompute": "full")") + "]");
  CHECK(configuration_of(all.rows[0]) == configuration_of(all.rows[1]));
  CHECK(configuration_of(all.rows[0]) != configuration_of(all.rows[2]));
}

TEST_CASE("a published row becomes a plan of the same layout") {
  const auto plan = [](const std::string& more, const std::string& strategy) {
    std::string text = row(more);
    const std::string from = R"("strategy": "fsdp2")";
    text.replace(text.find(from), from.size(), fmt::format(R"("strategy": "{}")", strategy));
    const PublishedRows all = Files().read("[" + text + "]");
    const PublishedRow& r = all.rows[0];
    return plan_of(r, *all.model_of(r), interchange::model_source());
  };
  const RunPlan full = plan(R"("recompute": "full")", "fsdp1 full shard");
  CHECK(full.layout.world == 8);
  CHECK(full.layout.micro_batches == 2);
  CHECK(full.data_parallel.shards == plan::ShardLevel::parameters);
  const RunPlan zero = plan("", "megatron_ddp+distributed_optimizer");
  CHECK(zero.data_parallel.shards == plan::ShardLevel::optimizer);
}

TEST_CASE("micro-batches that torchtitan does not publish are its default ones") {
  const auto micro_batch = [](const char* notes) {
    const std::string text = changed(
        row(fmt::format(R"("notes": "{}")", notes)),
        {{R"("source": "mine")", R"("source": "torchtitan")"}, {R"("pp": 1)", R"("pp": 2)"}});
    return Files().read("[" + text + "]").rows[0].micro_batch;
  };
  // A rank of the four that share the batch has four samples, for two pipeline ranks.
  CHECK(micro_batch("micro-batch and virtual stages not published") == 2);
  CHECK(micro_batch("1F1B") == 1);
}

TEST_CASE("the machines of a row are those that it names") {
  const auto cluster = [](const std::string& more) {
    return cluster_of(Files().read("[" + row(more) + "]").rows[0]);
  };
  CHECK(cluster("").domain_gpus == 8);
  CHECK(cluster("").nodes == 1);
  const plan::Cluster small = cluster(R"("gpus_per_node": 4, "gpu_variant": "H100 2.4 TB/s")");
  CHECK(small.domain_gpus == 4);
  CHECK(small.nodes == 2);
  CHECK(small.memory_bytes_per_s == Approx(2.4e12));
}

TEST_CASE("TFLOP/s become tokens by the row's own convention") {
  const PublishedRows all = Files().read("[" + row() + "]");
  const PublishedModel& large = all.models.at("large");
  PublishedRow r = all.rows[0];
  const double tokens = 5000;
  r.tokens_per_s = tokens;
  const double step = measured_step(r, large);
  CHECK(step == Approx(16 * 4096 / 8.0 / tokens));
  r.tokens_per_s.reset();
  r.flops_convention = "causal";
  r.tflops = tokens * flops_of_token(large, 4096) / 1e12;
  CHECK(measured_step(r, large) == Approx(step));
  r.flops_convention = "full";
  r.tflops = tokens * (flops_of_token(large, 4096) + 6.0 * 8 * 4096 * 4096) / 1e12;
  CHECK(measured_step(r, large) == Approx(step));
}

TEST_CASE("constants are found again from the times that they make") {
  const Files files;
  StackConstants truth;
  truth.gemm = 0.7;
  truth.attention = 0.45;
  truth.memory = 0.6;
  std::string text;
  const auto add = [&](const std::string& more) {
    // Measured: what the model predicts with these constants.
    const PublishedRows all = files.read("[" + row(more) + "]");
    const PublishedRow& r = all.rows[0];
    const plan::Cluster cluster = cluster_of(r);
    const StepModel model(plan_of(r, *all.model_of(r), interchange::model_source()), cluster);
    const double step = model.price(SheetCosts(cluster, truth)).step_s;
    text += (text.empty() ? "" : ",") + row(more, 16 * 4096 / 8.0 / step);
  };
  // `etp` makes configurations distinct, and changes nothing in models without experts.
  for (const char* recompute : {"none", "full"})
    for (const int etp : {1, 2})
      add(fmt::format(R"("recompute": "{}", "etp": {})", recompute, etp));
  const PublishedRows all = files.read("[" + text + "]");
  const RowCalibration fit = calibrate_rows(all, {.gpu = Gpu::h100, .stack = "mine"},
                                            interchange::model_source(), [](const std::string&) {});
  REQUIRE(fit.configurations.size() == 4);
  for (const FittedConfiguration& c : fit.configurations) {
    CHECK(c.fitted == Approx(c.measured).epsilon(0.02));
    CHECK(c.left_out == Approx(c.measured).epsilon(0.03));
  }
}

TEST_CASE("a published layout has a place among the layouts that a search finds") {
  const auto with = [](const std::string& tp, const std::string& more) {
    return changed(row(more), {{R"("gpus": 8)", R"("gpus": 16)"},
                               {R"("gbs": 16)", R"("gbs": 128)"},
                               {R"("mbs": 1)", R"("mbs": 4)"},
                               {R"("tp": 1)", R"("tp": )" + tp}});
  };
  // Tensor parallelism of 8 sends activations of a model that fits devices without it. `etp` makes
  // configurations distinct, and changes nothing in models without experts.
  const Files files;
  const PublishedRows all =
      files.read("[" + with("1", R"("etp": 1)") + "," + with("1", R"("etp": 2)") + "," +
                 with("8", R"("recompute": "none")") + "," + row() + "]");
  const recipe::ModelSource& models = interchange::model_source();
  const auto quiet = [](const std::string&) {};
  const RowCalibration fit =
      calibrate_rows(all, {.gpu = Gpu::h100, .stack = "mine"}, models, quiet);
  REQUIRE(fit.configurations.size() == 4);
  const std::vector<JudgedLayout> judged = judge_layouts(all, fit, models, quiet);
  REQUIRE(judged.size() == 2);
  for (const JudgedLayout& j : judged) {
    CHECK(j.fits);
    REQUIRE(j.ranked.size() > 3);
    CHECK(std::ranges::is_sorted(j.ranked, {}, &RankedLayout::step_s));
  }
  // Both searches see the same layouts.
  CHECK(judged[0].ranked[0].step_s == Approx(judged[1].ranked[0].step_s));
  CHECK(judged[0].over_best() < 1.05);
  CHECK(judged[0].place() <= 3);
  CHECK(judged[1].over_best() > 1.05);
  CHECK(judged[1].place() > 3);
  CHECK_THAT(judged_text(judged), Contains("1 of 2 published layouts"));
}

TEST_CASE("a stack file is read as it was written") {
  StackFile stack{.kind = recipe::cluster_kind(Gpu::h200)};
  stack.constants.gemm = 0.625;
  stack.constants.launch_s = 3e-6;
  Diagnostics diagnostics;
  const StackFile read = read_stack_text(print_stack(stack, "Of my program.\nSecond line."),
                                         "mine_h200.yaml", diagnostics);
  diagnostics.throw_if_errors();
  CHECK(read.kind == stack.kind);
  for_each_constant([&](const auto& field) {
    CHECK(read.constants.*field.member == Approx(stack.constants.*field.member));
  });
  read_stack_text("constants: {gem: 0.5, memory: -1}\n", "wrong.yaml", diagnostics);
  CHECK_THROWS_WITH(diagnostics.throw_if_errors(),
                    Contains("gem") && Contains("memory") && Contains("gpu: is missing"));
}

}  // namespace predict_published_rows_test
