// Tests that recipes accept the schedules of lib/schedule, and no others.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "plan/recipe_schedule.h"
#include "plan/run_plan.h"
#include "plan/schedule_bounds.h"
#include "schedule/catalog.h"
#include "schedule/render.h"
#include "test/support/temporary_folder.h"

namespace plan_schedule_test {

using namespace mtrain;
using namespace mtrain::plan;

namespace {

const char* kBase =
    "model: {num_layers: 64, hidden_size: 256, num_attention_heads: 8, vocab_size: 512}\n"
    "dataset: {train: x, seq_length: 1024}\n"
    "train: {micro_batch_size: 1}\n"
    "distributed: {pipeline: {}}\n";

schedule::Schedule from_text(const std::string& text) {
  return schedule_from_text(text, "test.csv");
}

std::string refused(const std::string& text) {
  try {
    from_text(text);
    return "";
  } catch (const UserError& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("a size that the recipe allows is one that the schedule can have, and no other") {
  int64_t allowed = 0, refused_sizes = 0;
  for (const auto& [value, name] : enum_names(ScheduleId{})) {
    if (enum_name(value) != name) continue;  // another name of an earlier one
    for (const int64_t pp : {2, 4})
      for (const int64_t v : {1, 2, 3})
        for (const int64_t m : {1, 3, 4, 5, 8, 9})
          for (const int64_t group : {0, 3, 4, 8}) {
            std::vector<std::string> overrides{
                fmt::format("distributed.pipeline.pp_schedule={}", name),
                fmt::format("distributed.pp_size={}", pp),
                fmt::format("distributed.vpp_size={}", v),
                fmt::format("train.global_batch_size={}", m)};
            if (group)
              overrides.push_back(
                  fmt::format("distributed.pipeline.microbatch_group_size_per_vp_stage={}", group));
            Diagnostics diagnostics;
            const Recipe r = load_recipe_text(interchange::model_source(), kBase, "base.yaml",
                                              overrides, diagnostics, pp);
            INFO(name << " pp " << pp << " stages " << v << " micro-batches " << m << " group "
                      << group << "\n"
                      << diagnostics.text(recipe::Severity::error));
            bool legal = true;
            try {
              schedule::check_size(schedule::schedule_named(name), {pp, v, m, group});
            } catch (const UserError&) {
              legal = false;
            }
            REQUIRE(legal == !diagnostics.has_errors());
            ++(legal ? allowed : refused_sizes);
            if (!legal) continue;
            const schedule::Schedule s = make_plan(r, pp, 0).schedule;
            REQUIRE(s.name == name);
            REQUIRE(s.stages == pp * v);
            REQUIRE(s.micro_batches == m);
          }
  }
  CHECK(allowed > 100);
  CHECK(refused_sizes > 100);
}

TEST_CASE("a schedule is known by every spelling of its name") {
  CHECK(schedule_name("ZBVZeroBubble") == "v_schedule");
  CHECK(schedule_name("Interleaved-1F1B") == "interleaved_1f1b");
  CHECK(schedule_name("bogus") == "bogus");
}

TEST_CASE("a schedule survives its table") {
  for (const schedule::ScheduleKind& kind : schedule::schedule_kinds()) {
    const schedule::Schedule made = schedule::make_schedule(kind, {3, kind.min_stages, 6});
    const schedule::Schedule read = from_text(schedule_csv(made));
    CHECK(read.rank_of_stage == made.rank_of_stage);
    CHECK(schedule_csv(read) == schedule_csv(made));
  }
}

TEST_CASE("the cost of a table follows from its lists") {
  const TemporaryFolder folder;
  const std::string path = (folder / "schedule.csv").string();
  for (const schedule::ScheduleKind& kind : schedule::schedule_kinds()) {
    // The rules of the schedule's name do not apply to its table.
    const schedule::ScheduleSize size{2, kind.min_stages, 8};
    write_file_atomic(path, schedule_csv(make_schedule(kind, size)));
    Diagnostics diagnostics;
    const Recipe r = load_recipe_text(
        interchange::model_source(), kBase, "test.yaml",
        {"distributed.pp_size=2", fmt::format("distributed.vpp_size={}", kind.min_stages),
         "distributed.pipeline.pp_schedule_csv=" + path, "train.global_batch_size=8"},
        diagnostics, 2);
    INFO(kind.name << diagnostics.text(recipe::Severity::error));
    REQUIRE_FALSE(diagnostics.has_errors());
    const ScheduleShape shape = make_plan(r, 2, 0).schedule_shape;
    // A table lists no pairs, and a pair returns its results only at its common end.
    if (kind.name != "dualpipev")
      CHECK(bubble_fraction(shape) == Approx(bubble_fraction(kind, size)));
    for (int64_t rank = 0; rank < 2; ++rank) {
      CHECK(chunks_in_flight(shape, rank) == chunks_in_flight(kind, size, rank));
      CHECK(stages_of_rank(shape, rank) == stages_of_rank(kind, size, rank));
    }
  }
}

TEST_CASE("a table that cannot be run is refused with its place") {
  CHECK(from_text("0F0,,0B0\n,1F0,1B0\n").stages == 2);
  CHECK_THAT(refused(""), Catch::Contains("test.csv: holds no actions"));
  CHECK_THAT(refused("0F0\n"), Catch::Contains("test.csv: rank 0 does neither 0B0 nor 0I0"));
  CHECK_THAT(refused("0F0,0B0,0F9223372036854775807\n"),
             Catch::Contains("too few for stage 0 and micro-batch 9223372036854775807"));
  CHECK_THAT(refused("0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0,\n,2F0\n"),
             Catch::Contains("rank 2 does neither 2B0 nor 2I0"));
  CHECK_THAT(refused("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"),
             Catch::Contains("deadlock: rank 0 waits at 0RECV_B0 for rank 1"));
}

}  // namespace plan_schedule_test
