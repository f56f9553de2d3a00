// Sizes that no machine can hold or count are refused by their names, before a plan computes with
// them.
#include <random>

#include <fmt/core.h>

#include "base/error.h"
#include "interchange/model_source.h"
#include "plan/run_plan.h"
#include "recipe/schema/schema.h"
#include "recipe_cases.h"

namespace plan_sizes_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;

namespace {

constexpr const char* k2_30 = "1073741824";
std::string set(const char* field, const char* value) { return fmt::format("{}={}", field, value); }

}  // namespace

TEST_CASE("products of sizes that cannot be counted are refused at the fields that make them") {
  expect_error(
      {.what = "logits", .set = {set("dataset.seq_length", k2_30), set("model.vocab_size", k2_30)}},
      "dataset.seq_length", "logits of a micro-batch");
  expect_error({.what = "samples",
                .set = {"train.steps=1099511627776", set("train.global_batch_size", k2_30)}},
               "train.steps", "samples of all steps");
  expect_error({.what = "tokens",
                .set = {set("dataset.seq_length", k2_30), set("train.global_batch_size", k2_30)}},
               "dataset.seq_length", "tokens of a step");
}

TEST_CASE("a schedule of more passes than can be simulated is refused") {
  const std::vector<std::string> pipeline{"distributed.pp_size=2",
                                          "distributed.pipeline.pp_schedule=1f1b"};
  std::vector<std::string> many = pipeline;
  many.insert(many.end(), {"train.global_batch_size=1048576", "train.micro_batch_size=1"});
  expect_error({.what = "passes", .world = 2, .set = many}, "train.global_batch_size",
               "passes in a step");
  std::vector<std::string> group{
      "distributed.pp_size=2", "distributed.vpp_size=2",
      "distributed.pipeline.pp_schedule=interleaved_1f1b",
      set("distributed.pipeline.microbatch_group_size_per_vp_stage", "1099511627776")};
  expect_error({.what = "group", .world = 2, .set = group},
               "distributed.pipeline.microbatch_group_size_per_vp_stage", "must lie in");
}

TEST_CASE("recipes of any sizes are planned or refused, and never end the program") {
  std::vector<std::string> fields;
  for (const recipe::SchemaRow& row : recipe::schema_rows())
    if (row.ops->info().kind == recipe::TypeInfo::Kind::integer) fields.push_back(row.path);
  const std::vector<std::string> values{"0",       "1",   "3",          "1024",
                                        "1048576", k2_30, "4294967296", "1099511627776"};
  std::mt19937 random(7);
  const auto any = [&](const std::vector<std::string>& all) { return all[random() % all.size()]; };
  for (int i = 0; i < 400; ++i) {
    std::vector<std::string> set;
    for (int k = 0; k < 3; ++k) set.push_back(fmt::format("{}={}", any(fields), any(values)));
    INFO(fmt::format("{} {} {}", set[0], set[1], set[2]));
    Diagnostics diagnostics;
    const int64_t world = i % 2 ? 1 : 8;
    const Recipe r =
        load_recipe_text(interchange::model_source(), kBase, "base.yaml", set, diagnostics, world);
    if (diagnostics.has_errors()) continue;
    try {
      const RunPlan plan = make_plan(r, world, std::max<int64_t>(1, r.model.vocab_size));
      CHECK(plan.fullest().total() >= 0);
    } catch (const UserError& e) {
      CHECK_THAT(e.what(), Catch::Contains("too many to list"));  // micro-batches of one stage
    }
  }
}

}  // namespace plan_sizes_test
