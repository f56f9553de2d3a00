// Tests which checkpoints stay, under every kind of rule.
#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>
#include <set>

#include "storage/checkpoint_dir.h"
#include "storage/read_mark.h"
#include "storage/retention.h"
#include "storage/safetensors.h"
#include "storage/state.h"
#include "test/support/temporary_folder.h"

namespace storage_retention_test {

using namespace mtrain;
using namespace mtrain::storage;
namespace fs = std::filesystem;

namespace {

using Steps = std::set<int64_t>;

// A run of 60 steps that saves at every step, as CheckpointWriter does: after each save the rule
// decides what is deleted.
Steps left_of_60(const KeepRule& rule, const Steps& pinned = {}, const Steps& damaged = {}) {
  // The loss falls until step 31 and then grows, with a dip at step 50.
  const auto loss = [](int64_t step) {
    return step == 50 ? 0.5 : 1 + double(step < 31 ? 31 - step : step - 31);
  };
  Steps there;
  for (int64_t step = 1; step <= 60; ++step) {
    there.insert(step);
    RetainedFrom from{.steps = {}, .ranking = {}, .pinned = pinned, .saved = step};
    for (const int64_t s : there)
      if (!damaged.contains(s)) from.steps.push_back(s);
    from.ranking = from.steps;
    std::ranges::stable_sort(from.ranking, [&](int64_t a, int64_t b) { return loss(a) < loss(b); });
    const Steps kept = steps_to_keep(from, rule);
    std::erase_if(there, [&](int64_t s) { return !kept.contains(s) && !damaged.contains(s); });
  }
  return there;
}

Steps all_60() {
  Steps all;
  for (int64_t step = 1; step <= 60; ++step) all.insert(step);
  return all;
}

Steps with(Steps a, const Steps& b) {
  a.insert(b.begin(), b.end());
  return a;
}

void save(const fs::path& root, int64_t step, const KeepRule& keep) {
  CheckpointWriter writer(root, step, keep);
  const std::vector<float> x(10, float(step));
  SafetensorsWriter model(writer.folder() / "model.safetensors", {{"x", DType::f32, {10}}}, {},
                          SafetensorsWriter::Sums::beside);
  model.write("x", {x.data(), 10, DType::f32});
  model.commit();
  TrainState state;
  state.set("step", step);
  state.save(writer.folder() / "state.json");
  writer.commit();
}

Steps steps_in(const fs::path& root) {
  Steps steps;
  for (const CheckpointRef& ref : checkpoints_after(root, 0)) steps.insert(ref.step);
  return steps;
}

}  // namespace

TEST_CASE("what stays of 60 steps, under each rule and their combinations") {
  const Steps tens{10, 20, 30, 40, 50, 60};
  struct Row {
    const char* what;
    KeepRule rule;
    Steps pinned, damaged, stay;
  };
  for (const Row& row : std::vector<Row>{
           {"keep 0 keeps all", {.newest = 0}, {}, {}, all_60()},
           {"keep 0 wins over the others", {.newest = 0, .best = 1, .every = 7}, {}, {}, all_60()},
           {"the newest alone", {.newest = 1}, {}, {}, {60}},
           {"the newest two", {.newest = 2}, {}, {}, {59, 60}},
           {"more than there are", {.newest = 100}, {}, {}, all_60()},
           {"multiples", {.newest = 1, .every = 10}, {}, {}, tens},
           {"multiples and the newest", {.newest = 3, .every = 25}, {}, {}, {25, 50, 58, 59, 60}},
           {"a multiple beyond the run", {.newest = 1, .every = 61}, {}, {}, {60}},
           {"every step is a multiple of 1", {.newest = 1, .every = 1}, {}, {}, all_60()},
           {"the best", {.newest = 1, .best = 1}, {}, {}, {50, 60}},
           // The earlier of two equal losses ranks higher: 30 stays, and 32 goes when 50 comes.
           {"the best three", {.newest = 1, .best = 3}, {}, {}, {30, 31, 50, 60}},
           {"all three rules",
            {.newest = 2, .best = 2, .every = 20},
            {},
            {},
            {20, 31, 40, 50, 59, 60}},
           {"what a program reads or a name points at", {.newest = 1}, {7, 33}, {}, {7, 33, 60}},
           {"damaged ones neither count nor go",
            {.newest = 2},
            {},
            {57, 58, 59},
            {56, 57, 58, 59, 60}},
           {"a damaged multiple", {.newest = 1, .every = 30}, {}, {30}, {30, 60}},
           {"a damaged best", {.newest = 1, .best = 1}, {}, {50}, {31, 50, 60}},
           {"all of it",
            {.newest = 2, .best = 1, .every = 20},
            {3},
            {5},
            with({3, 5, 50, 59, 60}, {20, 40})}}) {
    INFO(row.what);
    CHECK(left_of_60(row.rule, row.pinned, row.damaged) == row.stay);
  }
}

TEST_CASE("without a save, the newest of a folder count, and pinned ones stay") {
  const RetainedFrom from{.steps = {10, 20, 30, 40}, .ranking = {10}, .pinned = {20}, .saved = {}};
  CHECK(steps_to_keep(from, {.newest = 1}) == Steps{20, 40});
  CHECK(steps_to_keep(from, {.newest = 2}) == Steps{20, 30, 40});
  CHECK(steps_to_keep(from, {.newest = 1, .best = 1}) == Steps{10, 20, 40});
}

TEST_CASE("saves keep the multiples on disk, and what a program reads") {
  const TemporaryFolder folder;
  const fs::path root = folder / "root";
  const KeepRule rule{.newest = 1, .every = 4};
  for (int64_t step = 1; step <= 5; ++step) save(root, step, rule);
  CHECK(steps_in(root) == Steps{4, 5});
  {
    const ReadMark reading(root / "step-00000005");
    CHECK(is_being_read(root / "step-00000005"));
    CHECK_FALSE(is_being_read(root / "step-00000004"));
    save(root, 6, rule);
    save(root, 7, rule);
    CHECK(steps_in(root) == Steps{4, 5, 7});
  }
  CHECK_FALSE(is_being_read(root / "step-00000005"));
  save(root, 9, rule);
  CHECK(steps_in(root) == Steps{4, 9});
  fs::remove(root / "step-00000009/state.json");  // damaged ones stay
  save(root, 10, rule);
  save(root, 11, rule);
  CHECK(steps_in(root) == Steps{4, 9, 11});
}

}  // namespace storage_retention_test
