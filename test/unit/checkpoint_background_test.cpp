// Checkpoints that are written while training continues.
#include <atomic>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "checkpoint/background_saver.h"
#include "run/run_checkpoint.h"
#include "test/support/checkpoint_testing.h"
#include "test/support/comm_testing.h"
#include "test/support/temporary_folder.h"
#include "test/support/train_testing.h"

namespace checkpoint_background_test {

using namespace mtrain;
using namespace train_testing;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

Recipe recipe(int ranks, const Changes& changes = {}) {
  return tiny(with({"train.global_batch_size=6", "train.micro_batch_size=1"}, changes), ranks);
}

// All ranks wait for the result.
checkpoint::BackgroundSaver::Saved finish(const train::Trainer& t,
                                          checkpoint::BackgroundSaver& saver) {
  while (!t.control().any(saver.ended(std::chrono::milliseconds(1)))) {
  }
  return saver.take();
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  if (fs::exists(folder))
    for (const auto& entry : fs::directory_iterator(folder))
      names.insert(entry.path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("a save in the background has the files of one for which training waits") {
  struct Row {
    const char* name;
    int ranks;
    Changes changes;
  };
  for (const Row& row : std::vector<Row>{
           {"one", 1, {}},
           {"fsdp", 3, kFsdp2},
           {"fp8", 2,
            with(kFsdp2, {"mixed_precision.name=bf16_mixed", "mixed_precision.fp8=hybrid",
                          "mixed_precision.fp8_recipe=delayed", "debug.emulate_fp8=true"})},
           {"tp", 2, {"distributed.tp_size=2"}}}) {
    CAPTURE(row.name);
    const TemporaryFolder root;
    const Recipe r = recipe(row.ranks, row.changes);
    std::vector<double> losses, plain;
    run_ranks(row.ranks, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      checkpoint::BackgroundSaver saver(rank.device, t.checkpoint_parts(), rank.world.mailbox());
      for (int step = 1; step <= 6; ++step) {
        const double loss = t.step().loss;
        if (rank.rank() == 0) losses.push_back(loss);
        if (step % 3 != 2) continue;
        if (saver.saving()) finish(t, saver);
        run::begin_save(t, root / "background", {.exceeds_bytes = step == 2}, saver);
        CHECK(saver.saving());
      }
      const fs::path last = finish(t, saver).checkpoint;
      CHECK_FALSE(saver.saving());
      CHECK(last.empty() == (rank.rank() > 0));
    });
    run_ranks(row.ranks, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      for (int step = 1; step <= 6; ++step) {
        const double loss = t.step().loss;
        if (rank.rank() == 0) plain.push_back(loss);
        if (step % 3 == 2) run::save_run(t, root / "waits", {.exceeds_bytes = step == 2});
      }
    });
    CHECK(losses == plain);
    CHECK(names_in(root / "background") == names_in(root / "waits"));
    for (const int step : {2, 5}) {
      const fs::path folder = storage::step_name(step);
      CHECK(names_in(root / "background" / folder) == names_in(root / "waits" / folder));
      for (const std::string& name : names_in(root / "waits" / folder)) {
        INFO(name);
        CHECK((read_file(root / "background" / folder / name) ==
               read_file(root / "waits" / folder / name)));
      }
      CHECK(storage::complete_checkpoint(root / "background" / folder));
    }
  }
}

TEST_CASE("a rank that cannot write in the background is named on all ranks") {
  const TemporaryFolder root;
  const Recipe r = recipe(3, kFsdp2);
  std::mutex mutex;
  std::vector<std::string> errors;
  run_ranks(3, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    checkpoint::BackgroundSaver saver(rank.device, t.checkpoint_parts(), rank.world.mailbox());
    const auto save = [&](const std::function<void(std::string_view)>& moment) {
      t.step();
      run::begin_save(t, root / "saves", {.on_commit = moment}, saver);
      t.step();
      try {
        finish(t, saver);
      } catch (const checkpoint::SaveError& e) {
        const std::lock_guard lock(mutex);
        errors.emplace_back(e.what());
      }
    };
    save([&](std::string_view moment) {  // a folder has the name of a file
      if (rank.rank() != 1 || moment != "write") return;
      for (const auto& entry : fs::directory_iterator(root / "saves"))
        fs::create_directories(entry.path() / "optimizer-00001.safetensors" / "x");
    });
    save([&](std::string_view moment) {
      if (moment == "rename") throw RunError("the folder is lost", "find it");
    });
    save({});
  });
  REQUIRE(errors.size() == 6);
  for (size_t i = 0; i < 3; ++i)
    CHECK_THAT(errors[i], Catch::StartsWith("rank 1: ") && Contains("optimizer-00001.safetensors"));
  for (size_t i = 3; i < 6; ++i) CHECK(errors[i] == "rank 0: the folder is lost\n  hint: find it");
  CHECK(names_in(root / "saves") == std::set<std::string>{"latest", "step-00000005"});
}

TEST_CASE("a folder that cannot be made ends the save on all ranks") {
  const TemporaryFolder root;
  std::ofstream(root / "file") << "x";
  const Recipe r = recipe(2, kFsdp2);
  std::atomic<int> errors = 0;
  run_ranks(2, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    checkpoint::BackgroundSaver saver(rank.device, t.checkpoint_parts(), rank.world.mailbox());
    t.step();
    run::begin_save(t, root / "file", {}, saver);
    try {
      finish(t, saver);
    } catch (const checkpoint::SaveError& e) {
      CHECK_THAT(e.what(), Contains("rank 0: ") && Contains("file"));
      ++errors;
    }
  });
  CHECK(errors == 2);
}

TEST_CASE("a save that is given up leaves no folder, and its rank does not wait for others") {
  const TemporaryFolder root;
  const Recipe r = recipe(2, kFsdp2);
  run_ranks(2, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    std::atomic<bool> dropped = false;
    std::optional<checkpoint::BackgroundSaver> saver;
    saver.emplace(rank.device, t.checkpoint_parts(), rank.world.mailbox());
    t.step();
    // Rank 1 never reports, as a rank that has died.
    run::begin_save(t, root / "saves",
                    {.on_commit =
                         [&](std::string_view moment) {
                           if (rank.rank() == 1 && moment == "write")
                             while (!dropped) std::this_thread::yield();
                         }},
                    *saver);
    t.step();
    CHECK_FALSE(saver->ended(std::chrono::milliseconds(50)));
    if (rank.rank() == 0) saver.reset();
    t.control().any(false);
    dropped = true;
    saver.reset();
  });
  CHECK(names_in(root / "saves").empty());
}

TEST_CASE("a thread that fails for another reason than its files ends its rank") {
  const TemporaryFolder root;
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  train::Trainer t = make_trainer(*device, recipe(1), std::make_shared<CountingData>());
  checkpoint::BackgroundSaver saver(*device, t.checkpoint_parts(), comm::shared_mailbox());
  t.step();
  run::begin_save(t, root / "saves",
                  {.on_commit =
                       [](std::string_view moment) {
                         if (moment == "block") throw BugError("a bug in the thread");
                       }},
                  saver);
  CHECK_THROWS_WITH(finish(t, saver), Contains("a bug in the thread"));
  CHECK_THROWS_AS(saver.take(), BugError);
  CHECK(names_in(root / "saves").empty());
}

TEST_CASE("files are added after rank 0 has decided, and before the checkpoint has its name") {
  for (const bool background : {false, true})
    for (const std::string fails : {"nothing", "begin", "write", "end"}) {
      CAPTURE(background, fails);
      const TemporaryFolder root;
      std::mutex mutex;
      std::vector<std::string> order, errors;
      const auto record = [&](const std::string& what, bool here) {
        const std::lock_guard lock(mutex);
        order.push_back(what);
        if (here && fails == what) throw RunError("no " + what);
      };
      run_ranks(3, "thread", [&](TestRank& rank) {
        train::Trainer t = make_trainer(rank.device, recipe(3, kFsdp2),
                                        std::make_shared<CountingData>(), rank.world);
        checkpoint::BackgroundSaver saver(rank.device, t.checkpoint_parts(), rank.world.mailbox());
        t.step();
        const checkpoint::AddedFiles added{
            .begin =
                [&](const fs::path& folder) {
                  CHECK(rank.rank() == 0);
                  CHECK(saver.adding_files() == background);
                  CHECK(fs::exists(folder / "index.json"));
                  std::this_thread::sleep_for(std::chrono::milliseconds(50));
                  record("begin", true);
                  return std::string("decided");
                },
            .write =
                [&](const fs::path& folder, const std::string& text,
                    const std::function<void()>& meanwhile) {
                  CHECK(text == "decided");
                  meanwhile();
                  write_file_atomic(folder / fmt::format("added-{}", rank.rank()), text);
                  record("write", rank.rank() == 1);
                },
            .end =
                [&] {
                  CHECK(rank.rank() == 0);
                  CHECK_FALSE(fs::exists(root / "saves/step-00000001"));
                  record("end", true);
                },
            .failed = [&](const std::string& error) { errors.push_back(error); }};
        if (background) {
          run::begin_save(t, root / "saves", {.added = added}, saver);
          t.step();
          finish(t, saver);
        } else {
          run::save_run(t, root / "saves", {.added = added});
        }
      });
      using Order = std::vector<std::string>;
      const Order all{"begin", "write", "write", "write", "end"};
      const size_t made = fails == "begin" ? 1 : fails == "write" ? 4 : 5;
      CHECK(order == Order(all.begin(), all.begin() + int64_t(made)));
      REQUIRE(errors.size() == size_t(fails != "nothing"));
      if (fails != "nothing")
        CHECK(errors[0] == fmt::format("rank {}: no {}", fails == "write" ? 1 : 0, fails));
      CHECK(storage::complete_checkpoint(root / "saves/step-00000001"));
    }
}

}  // namespace checkpoint_background_test
