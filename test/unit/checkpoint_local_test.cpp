// Tests copies of a training in folders of the hosts: together they are the checkpoint of their
// step, and a failure costs no older copy.
#include <atomic>
#include <set>
#include <thread>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "checkpoint/background_saver.h"
#include "checkpoint/local_saver.h"
#include "checkpoint/needed_files.h"
#include "run/run_checkpoint.h"
#include "storage/local_part.h"
#include "test/support/checkpoint_testing.h"
#include "test/support/comm_testing.h"
#include "test/support/temporary_folder.h"
#include "test/support/train_testing.h"

namespace checkpoint_local_test {

using namespace mtrain;
using namespace train_testing;
using Catch::Contains;
using checkpoint::LocalSaver;
namespace fs = std::filesystem;

namespace {

const std::string kStart(16, 'a'), kEarlier(16, '0');

Recipe recipe(int ranks, const Changes& changes) {
  return tiny(
      with({"train.global_batch_size=8", "train.micro_batch_size=1", "train.steps=8"}, changes),
      ranks);
}

// Makes `steps` steps with a copy after each. Returns the outcomes of the copies, by step, on rank
// 0. If `saves` is not empty, also saves the last step there.
struct Lab {
  int ranks = 2, steps = 3;
  Changes changes = kFsdp2;
  fs::path copies, saves = {};
  std::function<void(int rank, LocalSaver::Options&)> set = {};
};
std::vector<LocalSaver::Outcome> outcomes_of(const Lab& lab) {
  std::vector<LocalSaver::Outcome> outcomes;
  const Recipe r = recipe(lab.ranks, lab.changes);
  run_ranks(lab.ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    LocalSaver::Options options{
        .folder = lab.copies, .start = kStart, .first_of_host = rank.rank() == 0};
    if (lab.set) lab.set(rank.rank(), options);
    LocalSaver saver(rank.device, t.checkpoint_parts(), options);
    for (int step = 1; step <= lab.steps; ++step) {
      t.step();
      run::begin_local(t, {}, saver);
      if (step == lab.steps && !lab.saves.empty()) run::save_run(t, lab.saves);
      const LocalSaver::Outcome outcome = saver.finish();
      if (rank.rank() == 0) outcomes.push_back(outcome);
    }
  });
  return outcomes;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& e : fs::directory_iterator(folder))
    names.push_back(e.path().filename().string());
  std::ranges::sort(names);
  return names;
}
std::string part(int64_t step, int rank) {
  return storage::PartName{.step = step, .start = kStart, .rank = rank}.text();
}

// Makes a checkpoint of the parts of a step.
fs::path checkpoint_of(const fs::path& copies, int64_t step, const fs::path& root) {
  const fs::path folder = root / storage::step_name(step);
  fs::create_directories(folder);
  std::vector<std::string> shards;
  for (const storage::LocalPart& p : storage::list_parts(copies)) {
    if (p.description.name.step != step) continue;
    REQUIRE(size_t(p.description.name.rank) == shards.size());
    shards.push_back(p.description.shards);
    for (const auto& [file, bytes] : p.description.sizes)
      fs::create_hard_link(p.folder / file, folder / file);
  }
  write_parts_index(folder, step, checkpoint::index_of_parts(shards));
  return folder;
}

}  // namespace

TEST_CASE("the parts of all ranks are the checkpoint of their step, under any layout") {
  struct Row {
    const char* name;
    int ranks;
    Changes changes;
  };
  for (const Row& row :
       {Row{"one", 1, {}}, Row{"fsdp", 2, kFsdp2},
        Row{"ddp", 2, {"distributed.strategy=megatron_ddp"}},
        Row{"pp", 2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"}},
        Row{"tp", 2, {"distributed.tp_size=2"}},
        Row{"muon", 2, with(kFsdp2, {"optimizer.name=muon"})}}) {
    INFO(row.name);
    const TemporaryFolder copies, saves, made;
    for (const LocalSaver::Outcome& o : outcomes_of({.ranks = row.ranks,
                                        .changes = row.changes,
                                        .copies = copies.path,
                                        .saves = saves.path})) {
      CHECK(o.written);
      CHECK(o.error + o.not_sent == "");
    }
    const fs::path folder = checkpoint_of(copies.path, 3, made.path);
    const auto saved = storage::find_latest(saves.path);
    REQUIRE(saved);
    REQUIRE(storage::complete_checkpoint(folder));
    for (const auto set : {storage::TensorSet::weights, storage::TensorSet::optimizer})
      CHECK(same_tensors(folder, saved->path, set));
    CHECK(read_file(folder / "state.json") == read_file(saved->path / "state.json"));
  }
}

TEST_CASE("a rank needs the files that have its elements, and reads no others") {
  const TemporaryFolder copies, root;
  outcomes_of({.ranks = 4, .copies = copies.path});
  const fs::path full = checkpoint_of(copies.path, 3, root / "full");
  const storage::CheckpointIndex index = read_index(full, storage::read_manifest(full));
  REQUIRE(index.files.size() == 8);
  struct Row {
    const char* name;
    int ranks;
    Changes changes;
    std::vector<int64_t> files;  // by rank
  };
  for (const Row& row :
       {Row{"the same", 4, kFsdp2, {2, 2, 2, 2}}, Row{"fewer ranks", 2, kFsdp2, {4, 4}},
        Row{"one", 1, {}, {8}}, Row{"ddp", 2, {"distributed.strategy=megatron_ddp"}, {}},
        Row{"tp", 2, {"distributed.tp_size=2"}, {}},
        Row{"pp", 2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"}, {}}}) {
    INFO(row.name);
    std::vector<int64_t> files(size_t(row.ranks), -1);
    const Recipe r = recipe(row.ranks, row.changes);
    const fs::path saves = root / fmt::format("saves of {}", row.name);
    run_ranks(row.ranks, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      const std::vector<bool> needed = needed_files(t.checkpoint_parts(), index);
      files[size_t(rank.rank())] = std::ranges::count(needed, true);
      // The other files are holes: to read one is an error.
      const fs::path own = root / fmt::format("{} {}", row.name, rank.rank()) / full.filename();
      fs::create_directories(own.parent_path());
      fs::copy(full, own);
      for (size_t i = 0; i < needed.size(); ++i) {
        if (needed[i]) continue;
        const auto bytes = fs::file_size(own / index.files[i]);
        fs::resize_file(own / index.files[i], 0);
        fs::resize_file(own / index.files[i], bytes);
      }
      run::resume_run(t, own);
      run::save_run(t, saves);
    });
    const auto saved = storage::find_latest(saves);
    REQUIRE(saved);
    for (const auto set : {storage::TensorSet::weights, storage::TensorSet::optimizer})
      CHECK(same_tensors(full, saved->path, set));
    if (!row.files.empty()) CHECK(files == row.files);
  }
}

TEST_CASE("two steps stay, and those of an earlier start until the first copy is complete") {
  const TemporaryFolder copies;
  const std::string old = storage::PartName{.step = 40, .start = kEarlier, .rank = 7}.text();
  fs::create_directory(copies / old);
  outcomes_of({.steps = 1, .copies = copies.path});
  CHECK(names_in(copies.path) == std::vector<std::string>{part(1, 0), part(1, 1), old});
  outcomes_of({.steps = 5, .copies = copies.path});
  CHECK(names_in(copies.path) ==
        std::vector<std::string>{part(4, 0), part(4, 1), part(5, 0), part(5, 1)});
}

TEST_CASE("a rank that cannot write fails the copy on all ranks, and older copies stay") {
  const TemporaryFolder copies;
  std::atomic<int> copy = 0;
  const auto outcomes =
      outcomes_of({.steps = 4, .copies = copies.path, .set = [&](int rank, auto& o) {
                     if (rank != 1) return;
                     o.admit = [&](int64_t bytes) {
                       if (++copy >= 3) throw RunError(fmt::format("no room for {}", bytes));
                     };
                   }});
  REQUIRE(outcomes.size() == 4);
  CHECK(outcomes[1].written);
  for (const int failed : {2, 3}) {
    CHECK_FALSE(outcomes[size_t(failed)].written);
    CHECK_THAT(outcomes[size_t(failed)].error, Contains("rank 1 on") && Contains("no room for"));
  }
  const std::vector<std::string> names = names_in(copies.path);
  for (const int rank : {0, 1}) CHECK(std::ranges::count(names, part(2, rank)) == 1);
  // Rank 0 also has step 4, but not step 3, which is not complete either.
  CHECK(storage::list_parts(copies.path).size() == 3);
  CHECK(std::ranges::count(names, part(4, 0)) == 1);
}

TEST_CASE("parts are sent to peers, and a peer that is gone fails no copy") {
  const TemporaryFolder copies, replicas;
  const comm::ProvenSocket::Options socket{.token = Token::random(),
                                           .patience = std::chrono::seconds(2)};
  const comm::FileServer server(
      {.address = "127.0.0.1", .socket = socket, .root = replicas.path, .admit = {}});
  std::vector<LocalSaver::Outcome> outcomes =
      outcomes_of({.steps = 1, .copies = copies.path, .set = [&](int, LocalSaver::Options& o) {
                     o.socket = socket;
                     o.peers = {{.host = "node1", .address = "127.0.0.1", .port = server.port()}};
                   }});
  CHECK(outcomes[0].not_sent == "");
  REQUIRE(storage::list_parts(replicas.path).size() == 2);
  for (const storage::LocalPart& p : storage::list_parts(replicas.path)) {
    CHECK(storage::is_sound_part(p));
    const fs::path own = copies.path / p.description.name.text();
    for (const auto& [file, bytes] : p.description.sizes)
      CHECK(read_file(own / file) == read_file(p.folder / file));
  }
  outcomes = outcomes_of({.steps = 1, .copies = copies.path, .set = [&](int rank, auto& o) {
                            o.socket = socket;
                            if (rank == 1) o.peers = {{"node2", "127.0.0.1", 1}};
                          }});
  CHECK(outcomes[0].written);
  CHECK_THAT(outcomes[0].not_sent, Contains("rank 1 on") && Contains("no replica on node2"));
}

TEST_CASE("the newest step with all replicas stays until a newer one has all") {
  const TemporaryFolder copies, replicas;
  const comm::ProvenSocket::Options socket{.token = Token::random(),
                                           .patience = std::chrono::seconds(2)};
  // The replicas of the copies `refused` are not accepted: the server asks once for each.
  std::atomic<int> asked = 0;
  const std::set<int> refused{3, 4};
  const comm::FileServer server(
      {.address = "127.0.0.1", .socket = socket, .root = replicas.path, .admit = [&](int64_t) {
         if (refused.contains(++asked)) throw RunError("no room");
       }});
  const auto steps_after = [&](int steps) {
    for (const fs::path& root : {copies.path, replicas.path})
      for (const std::string& name : names_in(root)) fs::remove_all(root / name);
    asked = 0;
    const auto outcomes =
        outcomes_of({.steps = steps, .copies = copies.path, .set = [&](int rank, auto& o) {
                       o.socket = socket;
                       if (rank == 1) o.peers = {{"node1", "127.0.0.1", server.port()}};
                     }});
    for (int step = 1; step <= steps; ++step) {
      INFO(step);
      CHECK(outcomes[size_t(step - 1)].written);
      CHECK(outcomes[size_t(step - 1)].not_sent.empty() == !refused.contains(step));
    }
    std::set<int64_t> kept;
    for (const storage::LocalPart& p : storage::list_parts(copies.path))
      kept.insert(p.description.name.step);
    CHECK(storage::list_parts(copies.path).size() == 2 * kept.size());
    return kept;
  };
  CHECK(steps_after(2) == std::set<int64_t>{1, 2});
  CHECK(steps_after(3) == std::set<int64_t>{2, 3});
  CHECK(steps_after(4) == std::set<int64_t>{2, 3, 4});
  CHECK(steps_after(5) == std::set<int64_t>{2, 4, 5});
  CHECK(steps_after(6) == std::set<int64_t>{5, 6});
}

TEST_CASE("copies of an earlier start stay until a step of this one has all replicas") {
  const TemporaryFolder copies;
  const std::string old = storage::PartName{.step = 40, .start = kEarlier, .rank = 7}.text();
  fs::create_directory(copies / old);
  outcomes_of({.steps = 3, .copies = copies.path, .set = [&](int rank, LocalSaver::Options& o) {
                 o.socket = {.token = Token::random(), .patience = std::chrono::seconds(2)};
                 if (rank == 1) o.peers = {{"node1", "127.0.0.1", 1}};  // nobody listens
               }});
  CHECK(names_in(copies.path) ==
        std::vector<std::string>{part(2, 0), part(2, 1), part(3, 0), part(3, 1), old});
}

TEST_CASE("a copy is written from the memory of a checkpoint of the same step") {
  const TemporaryFolder copies, saves;
  const Recipe r = recipe(2, kFsdp2);
  run_ranks(2, "thread", [&](TestRank& rank) {  // with the stream sanitizer
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    checkpoint::BackgroundSaver background(rank.device, t.checkpoint_parts(), rank.world.mailbox());
    std::atomic<bool> saved = false;
    LocalSaver local(rank.device, t.checkpoint_parts(),
                     {.folder = copies.path,
                      .start = kStart,
                      .first_of_host = rank.rank() == 0,
                      .admit = [&](int64_t) {  // the copy is written after the checkpoint
                        while (!saved) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                      }});
    for (const bool both : {false, true, false, true}) {
      t.step();
      saved = !both;
      if (both) run::begin_save(t, saves.path, {}, background);
      run::begin_local(t, {}, local, both ? background.staged() : nullptr);
      CHECK(local.reads_staged() == both);
      t.step();  // the training continues while both read the memory
      if (both) {
        while (!t.control().any(background.ended(std::chrono::milliseconds(1)))) {
        }
        background.take();
      }
      saved = true;
      CHECK(local.finish().written);
      CHECK_FALSE(local.reads_staged());
    }
  });
  const auto latest = storage::find_latest(saves.path);
  REQUIRE(latest);
  CHECK(latest->step == 7);
  const fs::path saved = latest->path;
  const TemporaryFolder made;
  const fs::path folder = checkpoint_of(copies.path, latest->step, made.path);
  for (const auto set : {storage::TensorSet::weights, storage::TensorSet::optimizer})
    CHECK(same_tensors(folder, saved, set));
  CHECK(read_file(folder / "state.json") == read_file(saved / "state.json"));
}

TEST_CASE("copies change no loss") {
  std::vector<double> losses[2];
  const TemporaryFolder copies;
  for (const int with_copies : {0, 1})
    run_ranks(2, "thread", [&](TestRank& rank) {
      const Recipe r = recipe(2, kFsdp2);
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      std::optional<LocalSaver> saver;
      if (with_copies)
        saver.emplace(rank.device, t.checkpoint_parts(),
                      LocalSaver::Options{.folder = copies.path, .start = kStart});
      for (int step = 1; step <= 6; ++step) {
        const double loss = t.step(!with_copies).loss;
        if (rank.rank() == 0) losses[with_copies].push_back(loss);
        if (!saver) continue;
        saver->finish();
        run::begin_local(t, {}, *saver);
      }
      if (saver) saver->finish();
    });
  CHECK(losses[0] == losses[1]);
}

}  // namespace checkpoint_local_test
