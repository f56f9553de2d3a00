// Tests which copies a run continues from: those of its own run, if they are newer than its
// checkpoints.
#include <fstream>

#include <catch2/catch.hpp>

#include "run/local_copies.h"
#include "test/support/run_lab.h"

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
    CHECK_THAT(lab.log(), Contains("is damaged, and is removed") &&
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

TEST_CASE("copies that a host has no room for are refused with both numbers") {
  CHECK(run::refusal({{"a", 100, -1}, {"b", 100, 1000}}, 0) == "");
  CHECK(run::refusal({{"a", 100, -1}}, 100) == "");
  CHECK_THAT(run::refusal({{"a", 100, -1}, {"b", 3 << 20, -1}}, 2 << 20),
             Contains("on b") && Contains("3.00 MiB") && Contains("2.00 MiB"));
  CHECK_THAT(run::refusal({{"a", 91, 100}}, 0), Contains("on a") && Contains("left"));
  CHECK(run::refusal({{"a", 90, 100}}, 0) == "");
}

}  // namespace run_local_copies_test
