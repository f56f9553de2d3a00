// When a run's saves begin, wait, are skipped, and fail, while earlier ones are being written.
#include <atomic>
#include <fstream>
#include <thread>

#include <catch2/catch.hpp>

#include "run/early_end.h"
#include "run/run_saver.h"
#include "storage/checkpoint_dir.h"
#include "test/support/temporary_folder.h"
#include "test/support/train_testing.h"

namespace run_saver_test {

using namespace mtrain;
using namespace train_testing;
using Catch::Contains;
using run::RunSaver;
namespace fs = std::filesystem;

namespace {

struct Saves {
  explicit Saves(const Changes& changes)
      : device(Device::cpu(1, {.stream_sanitizer = true})),
        trainer(make_trainer(*device,
                             tiny(with({"checkpoint.dir=" + (root / "saves").string(),
                                        "checkpoint.every_steps=1", "checkpoint.keep=0"},
                                       changes)),
                             std::make_shared<CountingData>())),
        early_end(nullptr, true, std::make_shared<Pulse>()),
        saver(std::in_place, RunSaver::Parts{.trainer = trainer,
                                             .job = job,
                                             .screen = nullptr,
                                             .early_end = early_end,
                                             .fault = nullptr,
                                             .require_ours = [this] { commit(); },
                                             .before_save = {},
                                             .on_saved = [this] { ++saved; }}) {
    text = saver->choose();
  }
  ~Saves() {
    held = false;
    saver.reset();
  }

  void step_and_save(const RunSaver::Request& request = {}) {
    trainer.step();
    saver->save(request);
  }
  // Called in the thread of a save.
  void commit() const {
    while (held) std::this_thread::yield();
    if (fails) throw RunError("the disk is full");
  }
  bool has(int64_t step) const { return fs::exists(root / "saves" / storage::step_name(step)); }

  TemporaryFolder root;
  const launch::Job job;
  std::unique_ptr<Device> device;
  train::Trainer trainer;
  run::EarlyEnd early_end;
  std::atomic<bool> held = false, fails = false;
  int saved = 0;
  std::optional<RunSaver> saver;
  std::string text;
};

}  // namespace

TEST_CASE("a save returns while it is being written, and its result is taken later") {
  Saves s({"checkpoint.async=true"});
  CHECK_THAT(s.text, Contains("training continues"));
  s.held = true;
  s.step_and_save();
  CHECK(s.saver->writing());
  CHECK_FALSE(s.saver->ended());
  CHECK(s.saver->newest().step == 0);
  s.trainer.step();
  s.held = false;
  s.saver->finish_write();
  CHECK_FALSE(s.saver->writing());
  CHECK(s.saver->newest().step == 1);
  CHECK(s.saved == 1);
  CHECK(s.has(1));
}

TEST_CASE("training waits for saves without async") {
  Saves s({"checkpoint.async=false"});
  s.step_and_save();
  CHECK_FALSE(s.saver->writing());
  CHECK(s.saver->newest().step == 1);
  CHECK(s.saved == 1);
}

TEST_CASE("a save that is due during another is skipped, unless it must not be") {
  Saves s({"checkpoint.async=true", "checkpoint.when_busy=skip"});
  s.held = true;
  s.step_and_save();
  s.step_and_save();  // skipped
  CHECK(s.saver->writing());
  CHECK(s.saver->written_step() == 1);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    s.held = false;
  });
  const bool best = GENERATE(true, false);
  s.step_and_save({.last = !best, .best = best, .evaluation = run::ValidationResult{.loss = 2}});
  later.join();
  s.saver->finish_write();
  CHECK(s.saver->newest().step == 3);
  CHECK(s.saver->newest().with_loss);
  CHECK(s.saver->lowest_loss() == 2);
  CHECK((s.has(1) && !s.has(2) && s.has(3)));
  s.step_and_save();  // nothing is being written
  s.saver->finish_write();
  CHECK(s.has(4));
}

TEST_CASE("a save that is due during another waits for it") {
  Saves s({"checkpoint.async=true"});
  for (int i = 0; i < 3; ++i) s.step_and_save();
  s.saver->finish_write();
  CHECK((s.has(1) && s.has(2) && s.has(3)));
  CHECK(s.saved == 3);
}

TEST_CASE("failures in the background count, and those that must end the run do") {
  Saves s({"checkpoint.async=true"});
  s.step_and_save();
  s.saver->finish_write();
  s.fails = true;
  SECTION("a lost folder at once") {
    s.step_and_save({.evaluation = run::ValidationResult{.loss = 2}});
    CHECK_THROWS_WITH(s.saver->finish_write(), "the disk is full");
    CHECK(s.saver->newest().step == 1);
    CHECK(s.saver->lowest_loss() > 2);
  }
  SECTION("three in a row") {
    s.fails = false;
    fs::rename(s.root / "saves", s.root / "away");
    std::ofstream(s.root / "saves") << "a file";
    s.step_and_save();
    s.step_and_save();
    s.trainer.step();
    s.saver->finish_write();
    CHECK(s.saver->newest().step == 1);
    s.step_and_save();
    CHECK_THROWS_WITH(s.saver->finish_write(), Contains("the third failure in a row"));
  }
  SECTION("the last save") {
    s.trainer.step();
    CHECK_THROWS_WITH(s.saver->save({.last = true}), Contains("the disk is full"));
  }
  CHECK_FALSE(s.has(2));
}

}  // namespace run_saver_test
