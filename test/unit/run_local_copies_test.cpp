// Tests which copies a run continues from: those of its own run, if they are newer than its
// checkpoints.
#include <fstream>

#include <catch2/catch.hpp>

#include "run/local_copies.h"
#include "test/support/run_lab.h"
#include "train/build_trainer.h"

namespace run_local_copies_test {

using namespace mtrain;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

// Runs whose copies are in `local` of the lab.
struct LocalLab : Lab {
  fs::path local = path / "local";
  std::string dir = "checkpoint.local.dir=" + local.string();
  // Makes `steps` steps as if the run had been killed then.
  void die_after(int steps, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {dir, fmt::format("train.exit_interval={}", steps), "train.steps=9",
                             "checkpoint.every_steps=0", "checkpoint.at_end=false"});
    train("r", more);
  }
  void go_on(std::vector<std::string> more = {}) const {
    more.insert(more.end(),
                {dir, "train.steps=9", "checkpoint.every_steps=0", "checkpoint.load=latest"});
    train("r", more);
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> all;
    for (const auto& line : steps(run)) all.push_back(line["loss"]);
    return all;
  }
  std::string log() const { return read_file(path / "r" / "log.txt"); }
  std::vector<fs::path> parts() const {
    std::vector<fs::path> found;
    std::error_code error;
    for (fs::recursive_directory_iterator it(local, error), end; !error && it != end; ++it)
      if (storage::parse_part_name(it->path().filename().string())) found.push_back(it->path());
    std::ranges::sort(found);
    return found;
  }
  std::vector<double> expected() const {
    train("expected", {"train.steps=9", "checkpoint.every_steps=0"});
    return losses("expected");
  }
};

void change_a_byte(const fs::path& part) {
  for (const auto& e : fs::directory_iterator(part))
    if (e.path().extension() == ".safetensors") {
      std::fstream file(e.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-3, std::ios::end);
      file.put('\x5a');
      return;
    }
}

}  // namespace

TEST_CASE("a run continues from its newest copy with the losses of an uninterrupted run") {
  const LocalLab lab;
  lab.die_after(5);
  REQUIRE(lab.parts().size() == 2);
  lab.go_on();
  CHECK_THAT(lab.log(), Contains("continuing after step 5 of the local copies"));
  CHECK(lab.losses("r") == lab.expected());
  CHECK(lab.parts().empty());  // the end was saved
  CHECK_FALSE(fs::exists(lab.local / host_name()));
}

TEST_CASE("the newer one of a copy and a checkpoint is the start") {
  const LocalLab lab;
  lab.die_after(6, {});
  SECTION("a copy") {
    lab.go_on({"train.exit_interval=8"});  // saves step 8
    CHECK_THAT(lab.log(), Contains("continuing after step 6 of the local copies"));
    CHECK(fs::exists(lab.step("r", 8)));
    lab.go_on();
    CHECK_THAT(lab.log(), Contains("continuing after step 8 of " + lab.step("r", 8).string()));
  }
  SECTION("a checkpoint") {
    const fs::path kept = lab.path / "kept";
    fs::copy(lab.local, kept, fs::copy_options::recursive);
    lab.go_on({"train.exit_interval=8"});
    fs::copy(kept, lab.local, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    lab.go_on();
    CHECK_THAT(lab.log(), Contains("continuing after step 8 of " + lab.step("r", 8).string()));
  }
  CHECK(lab.losses("r") == lab.expected());
}

TEST_CASE("a damaged copy costs a step, and not the run") {
  const LocalLab lab;
  lab.die_after(5);
  const auto parts = lab.parts();
  REQUIRE(parts.size() == 2);
  change_a_byte(parts[1]);
  SECTION("the copy before it is sound") {
    lab.go_on();
    CHECK_THAT(lab.log(), Contains("is damaged, and is not used") &&
                              Contains("continuing after step 4 of the local copies"));
  }
  SECTION("no copy is sound") {
    change_a_byte(parts[0]);
    lab.go_on();
    CHECK_THAT(lab.log(), !Contains("continuing"));
  }
  CHECK(lab.losses("r") == lab.expected());
}

TEST_CASE("copies of another run in the same folder are not used") {
  const LocalLab lab;
  lab.die_after(5);
  SECTION("the folder of the run was deleted") { fs::remove_all(lab.path / "r"); }
  SECTION("its record was deleted") { fs::remove(lab.path / "r" / "local.txt"); }
  SECTION("its record names nothing") {
    std::ofstream(lab.path / "r" / "local.txt") << "../../etc\n";
  }
  lab.go_on();
  CHECK_THAT(lab.log(), !Contains("local copies in"));
  CHECK(lab.losses("r") == lab.expected());
}

TEST_CASE("a new run removes the copies of the one that it replaces") {
  const LocalLab lab;
  lab.die_after(5);
  const auto before = lab.parts();
  lab.train("r",
            {lab.dir, "train.steps=9", "checkpoint.every_steps=0", "checkpoint.load_or_start=true",
             "checkpoint.load=" + (lab.path / "none").string()});
  CHECK_THAT(lab.log(), !Contains("local copies in"));
  for (const fs::path& part : before) CHECK_FALSE(fs::exists(part));
}

TEST_CASE("a restart of a job uses its copies, although it loads nothing") {
  const LocalLab lab;
  const std::vector<std::string> settings{lab.dir, "train.steps=9", "checkpoint.every_steps=0"};
  auto dies = settings;
  dies.insert(dies.end(), {"train.exit_interval=5", "checkpoint.at_end=false"});
  lab.train("r", dies, "job");
  lab.train("r", settings, "job");
  CHECK_THAT(lab.log(), Contains("restart 1: continuing after step 5 of the local copies"));
  CHECK(lab.losses("r") == lab.expected());
}

TEST_CASE("a folder that cannot be used costs a warning") {
  const LocalLab lab;
  const auto expect = [&](const std::string& setting, const std::string& text) {
    INFO(setting);
    fs::remove_all(lab.path / "r");
    lab.train("r", {lab.dir, setting, "train.steps=9", "checkpoint.every_steps=0"});
    CHECK_THAT(lab.log(), Contains("no local copies are made") && Contains(text));
    CHECK(lab.losses("r").size() == 9);
  };
  expect("checkpoint.local.dir=" + (lab.path / "no/such").string(), "cannot make");
  std::ofstream(lab.path / "file") << "x";
  expect("checkpoint.local.dir=" + (lab.path / "file").string(), "not a folder");
  expect("checkpoint.local.max_gib=0.000001", "max_gib allows");
}

TEST_CASE("the need of a host is its parts, its replicas, and what is staged") {
  using run::RankNeed;
  const auto rank = [](const char* host, int64_t part) {
    return RankNeed{.host = host, .part = part, .staged = part + 1, .memory = 100, .room = 200};
  };
  std::vector<RankNeed> ranks{rank("a", 10), rank("a", 20), rank("b", 5)};
  ranks[1].memory = 90;
  ranks[1].in_memory = true;
  ranks[2].room = -1;
  auto hosts = run::needs_of_hosts(ranks, 0);
  REQUIRE(hosts.size() == 2);
  CHECK(hosts[0].host == "a");
  CHECK(hosts[0].parts == 2 * 30);  // the newest step, and the one that is being written
  CHECK(hosts[0].staged == 32);
  CHECK(hosts[0].bytes() == 92);
  CHECK(hosts[0].bytes_of_memory() == 92);
  CHECK(hosts[0].memory == 90);
  CHECK(hosts[0].room == 200);
  CHECK(hosts[1].parts == 2 * 5);
  CHECK(hosts[1].bytes_of_memory() == 6);
  CHECK(hosts[1].room == -1);
  for (const int replicas : {1, 2}) {  // there is one other host
    hosts = run::needs_of_hosts(ranks, replicas);
    CHECK(hosts[0].parts == 3 * (30 + 5));  // also the newest step that has all replicas
    CHECK(hosts[1].parts == 3 * (5 + 30));
    CHECK(hosts[1].staged == 6);
  }
  CHECK(run::needs_of_hosts({rank("a", 10)}, 1)[0].parts == 2 * 10);
}

TEST_CASE("copies that a host has no room for are refused with both numbers") {
  using run::LocalNeed;
  using run::refusal;
  const LocalNeed fits{.host = "a", .parts = 100, .staged = 50, .memory = 1000, .room = 100};
  CHECK(refusal({fits, fits}, 0) == "");
  CHECK(refusal({fits}, 150) == "");
  CHECK_THAT(refusal({fits, {.host = "b", .parts = 2 << 20, .staged = 1 << 20}}, 2 << 20),
             Contains("on b") && Contains("3.00 MiB") && Contains("max_gib allows 2.00 MiB"));
  LocalNeed need = fits;
  need.memory = 55;  // a tenth stays free
  CHECK_THAT(refusal({need}, 0), Contains("50 B of memory on a") && Contains("55 B left"));
  need.memory = 56;
  CHECK(refusal({need}, 0) == "");
  need.in_memory = true;
  CHECK_THAT(refusal({need}, 0), Contains("150 B of memory on a"));
  need = fits;
  need.room = 99;
  CHECK_THAT(refusal({need}, 0), Contains("100 B in the folder on a") && Contains("99 B left"));
}

namespace {

std::vector<std::string> everything_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& e : fs::recursive_directory_iterator(folder)) names.push_back(e.path());
  std::ranges::sort(names);
  return names;
}

}  // namespace

TEST_CASE("a start that ends early removes no copies, and leaves no checkpoint of its own") {
  const LocalLab lab;
  lab.die_after(5);
  const fs::path of_run = lab.parts()[0].parent_path();
  fs::create_directory(of_run / ".in-a-torn-transfer");
  // The folder of a dead job, long ago.
  const fs::path dead = of_run.parent_path() / "dead-1";
  fs::copy(of_run, dead, fs::copy_options::recursive);
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(24);
  for (const std::string& name : everything_in(dead)) fs::last_write_time(name, old);
  fs::last_write_time(dead, old);
  change_a_byte(lab.parts().back());
  const auto before = everything_in(lab.local);
  std::ofstream(lab.path / "file") << "x";
  const std::string no_folder = "checkpoint.dir=" + (lab.path / "file").string();
  SECTION("the data differ") {
    CHECK_THROWS_WITH(lab.go_on({"dataset.train=" + (lab.path / "b").string()}), Contains("data"));
    CHECK(everything_in(lab.local) == before);
  }
  SECTION("all steps are done") {
    lab.train("r",
              {lab.dir, "train.steps=3", "checkpoint.every_steps=0", "checkpoint.load=latest"});
    CHECK_THAT(lab.log(), Contains("nothing to do"));
    CHECK(everything_in(lab.local) == before);
  }
  SECTION("a new run cannot save") {
    CHECK_THROWS(lab.train(
        "r", {lab.dir, "checkpoint.every_steps=0", no_folder, "checkpoint.load_or_start=true",
              "checkpoint.load=" + (lab.path / "none").string()}));
    for (const std::string& name : before) CHECK(fs::exists(name));
  }
  fs::remove(lab.path / "file");
  lab.go_on({"train.exit_interval=6", "checkpoint.at_end=false"});  // this one is accepted
  CHECK_THAT(lab.log(), Contains("continuing after step 4 of the local copies"));
  CHECK_FALSE(fs::exists(of_run / ".in-a-torn-transfer"));
  CHECK_FALSE(fs::exists(of_run / ".start"));
  CHECK_FALSE(fs::exists(dead));
}

namespace {

// The copies of a run that has died, and the start of the next one.
struct NextStart {
  explicit NextStart(const LocalLab& lab)
      : plan(lab.plan("r", {lab.dir, "train.steps=9", "checkpoint.load=latest"})),
        device(Device::cpu(1)),
        ids(train::id_check(plan.dataset.tokenizer, plan.model.vocab)),
        trainer(train::build_trainer(*device, plan, train::open_training_data(plan.dataset, ids),
                                     comm::World::alone())),
        copies(trainer, std::make_shared<Pulse>(), /*continues=*/true) {
    copies.improve(start);
  }
  storage::DamagedCheckpoint damage() const {
    const fs::path file = start->path / "weights-00000.safetensors";
    return {start->path, storage::DamagedFile(file, 0, "a block differs", ""), "damaged", ""};
  }
  const RunPlan plan;
  std::unique_ptr<Device> device;
  const data::IdCheck ids;
  train::Trainer trainer;
  run::LocalCopies copies;
  run::ChosenStart start;
};

}  // namespace

TEST_CASE("a copy that is damaged when it is loaded is replaced by the one before it") {
  const LocalLab lab;
  lab.die_after(5);
  const auto parts = lab.parts();
  REQUIRE(parts.size() == 2);
  {
    NextStart next(lab);
    REQUIRE(next.start.is_local());
    CHECK(next.start->step == 5);
    const bool changes = GENERATE(false, true);
    if (changes) {
      change_a_byte(parts[1]);
    } else {  // sound when it is read again, but damaged when it is loaded again
      next.copies.leave(next.start, next.damage());
      CHECK(next.start->step == 5);
    }
    next.copies.leave(next.start, next.damage());
    CHECK(next.start->step == 4);
    for (const fs::path& part : parts) CHECK(fs::exists(part));  // the start is not accepted yet
    SECTION("no other copy is left, and no checkpoint") {
      change_a_byte(parts[0]);
      CHECK_THROWS_AS(next.copies.leave(next.start, next.damage()), storage::DamagedCheckpoint);
      CHECK_FALSE(fs::exists(parts[0]));
      CHECK_FALSE(next.start);
    }
    SECTION("the start is accepted") {
      next.copies.accept_start();
      CHECK(fs::exists(parts[0]));
      CHECK_FALSE(fs::exists(parts[1]));
    }
  }
  CHECK_FALSE(fs::exists(parts[0].parent_path() / ".start"));
}

TEST_CASE("a copy and a checkpoint of the same step are staged once") {
  const LocalLab lab;
  lab.train("r", {lab.dir, "train.steps=9", "checkpoint.every_steps=3", "checkpoint.async=true"});
  std::vector<int64_t> staged;
  for (const auto& line : lab.steps("r"))
    staged.push_back(line.value("checkpoint.local_staged_bytes", int64_t(-1)));
  REQUIRE(staged.size() == 9);
  const int64_t bytes = staged[1];
  CHECK(bytes > 0);
  // A copy is in the record of the step after it; steps 3 and 6 are also saved.
  CHECK(staged == std::vector<int64_t>{-1, bytes, bytes, 0, bytes, bytes, 0, bytes, bytes});
  CHECK(lab.losses("r") == lab.expected());
}

}  // namespace run_local_copies_test
