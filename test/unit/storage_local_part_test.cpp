// Tests the folders of local copies: what counts as a part, and what is removed.
#include <sys/stat.h>
#include <unistd.h>
#include <fstream>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "storage/file_sums.h"
#include "storage/local_list.h"
#include "storage/local_part.h"
#include "test/support/temporary_folder.h"

namespace storage_local_part_test {

using namespace mtrain;
using namespace mtrain::storage;
using namespace std::chrono_literals;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

const std::string kStart = "00000000deadbeef";

fs::path write_part(const fs::path& root, int64_t step, int rank) {
  PartWriter writer(root, {.step = step, .start = kStart, .rank = rank});
  const fs::path file = writer.folder() / "weights.safetensors";
  std::ofstream(file) << "weights of " << rank;
  write_file_atomic(sums_path(file), make_sums(file));
  std::ofstream(writer.folder() / "state.json") << "{}";
  return writer.commit(2, "shards");
}

int mode_of(const fs::path& path) {
  struct stat info;
  REQUIRE(::stat(path.c_str(), &info) == 0);
  return int(info.st_mode & 07777);
}

}  // namespace

TEST_CASE("names of parts are read back, and no other names") {
  const PartName name{.step = 37, .start = kStart, .rank = 3};
  CHECK(name.text() == "step-00000037.00000000deadbeef.rank-00003");
  CHECK(parse_part_name(name.text()) == name);
  for (const char* text :
       {"", "step-00000037", "step-00000037.00000000deadbeef.rank-3",
        "step-37.00000000deadbeef.rank-00003", "step-00000037.00000000deadbee/.rank-00003",
        ".step-00000037.00000000deadbeef.rank-00003",
        "step-00000037.00000000deadbeef.rank-00003.old"})
    CHECK_FALSE(parse_part_name(text));
}

TEST_CASE("a part is listed when it is complete") {
  const TemporaryFolder root;
  const fs::path part = write_part(root.path, 37, 1);
  const auto listed = [&] { return list_parts(root.path).size(); };
  REQUIRE(listed() == 1);
  const LocalPart found = list_parts(root.path)[0];
  CHECK(found.folder == part);
  CHECK(found.description.ranks == 2);
  CHECK(found.description.shards == "shards");
  CHECK(found.description.sizes.size() == 3);
  CHECK(is_sound_part(found));
  SECTION("a writer that ends without commit leaves nothing") {
    { const PartWriter writer(root.path, {.step = 38, .start = kStart, .rank = 1}); }
    CHECK(std::distance(fs::directory_iterator(root.path), fs::directory_iterator()) == 1);
  }
  SECTION("a file with another size") {
    fs::resize_file(part / "weights.safetensors", 3);
    CHECK(listed() == 0);
  }
  SECTION("a file that is gone") {
    fs::remove(part / "weights.safetensors.sums");
    CHECK(listed() == 0);
  }
  SECTION("a state that was changed") {
    std::ofstream(part / "state.json") << "[]";
    CHECK(listed() == 0);
  }
  SECTION("a description that was changed") {
    std::string text = read_file(part / kPartFile);
    text[text.size() / 2] ^= 1;
    std::ofstream(part / kPartFile) << text;
    CHECK(listed() == 0);
  }
  SECTION("another name") {
    fs::rename(part, root.path / PartName{.step = 38, .start = kStart, .rank = 1}.text());
    CHECK(listed() == 0);
  }
  SECTION("a tensor that was changed is found by reading all bytes") {
    std::ofstream(part / "weights.safetensors") << "weights of 7";
    CHECK(listed() == 1);
    CHECK_FALSE(is_sound_part(found));
  }
}

TEST_CASE("the folder of a run is private, and is not made in a folder of others") {
  const TemporaryFolder root;
  const LocalFolder folder(root.path / "dir", "node0", "run-1");
  CHECK(folder.path() == root.path / "dir" / "node0" / "run-1");
  for (const fs::path& p : {root.path / "dir", root.path / "dir" / "node0", folder.path()})
    CHECK(mode_of(p) == 0700);
  fs::create_directory(root.path / "open");
  fs::permissions(root.path / "open", fs::perms(0777));
  fs::create_symlink(root.path / "dir", root.path / "link");
  std::ofstream(root.path / "file") << "x";
  CHECK_THROWS_WITH(LocalFolder(root.path / "open", "node0", "run"), Contains("others may write"));
  CHECK_THROWS_WITH(LocalFolder(root.path / "link", "node0", "run"), Contains("is a link"));
  CHECK_THROWS_WITH(LocalFolder(root.path / "file", "node0", "run"), Contains("a file"));
  CHECK_THROWS_WITH(LocalFolder(root.path / "absent" / "dir", "node0", "run"), Contains("absent"));
  if (::geteuid() == 0) {
    fs::create_directory(root.path / "theirs");
    REQUIRE(::chown((root.path / "theirs").c_str(), 12345, 12345) == 0);
    CHECK_THROWS_WITH(LocalFolder(root.path / "theirs", "node0", "run"),
                      Contains("belongs to another user"));
  }
}

TEST_CASE("the bytes of a folder count a file with two names once, and no holes") {
  const TemporaryFolder root;
  const LocalFolder folder(root.path / "dir", "node0", "run-1");
  CHECK(folder.bytes() == 0);
  const fs::path part = folder.path() / "part", start = folder.path() / ".start";
  fs::create_directory(part);
  fs::create_directory(start);
  std::ofstream(part / "a") << std::string(100'000, 'a');
  CHECK(folder.bytes() == 100'000);
  fs::create_hard_link(part / "a", start / "a");
  fs::create_symlink(part / "a", start / "b");
  CHECK(folder.bytes() == 100'000);
  std::ofstream(start / "c").close();
  fs::resize_file(start / "c", 50'000'000);
  CHECK(folder.bytes() == 100'000);
  std::ofstream(start / "d") << "1234";
  CHECK(folder.bytes() == 100'004);
}

TEST_CASE("leftovers are removed, and folders that a process uses stay") {
  const TemporaryFolder root;
  const fs::path host = root.path / "dir" / "node0";
  const LocalFolder own(root.path / "dir", "node0", "own");
  const LocalFolder used(root.path / "dir", "node0", "used");
  { const LocalFolder dead(root.path / "dir", "node0", "dead"); }
  fs::create_directory(host / "not-of-a-run");
  const fs::path part = write_part(own.path(), 1, 0);
  fs::create_directory(own.path() / ".step-00000002.x.rank-00000.1");
  fs::create_directory(own.path() / ".in-x");
  own.remove_temporaries();
  CHECK(fs::exists(part));
  CHECK_FALSE(fs::exists(own.path() / ".in-x"));
  CHECK_FALSE(fs::exists(own.path() / ".step-00000002.x.rank-00000.1"));
  CHECK(own.remove_leftovers(1h).empty());  // none is that old
  CHECK(own.remove_leftovers(0s) == std::vector<std::string>{"dead"});
  CHECK_FALSE(fs::exists(host / "dead"));
  for (const char* name : {"own", "used", "not-of-a-run"}) CHECK(fs::exists(host / name));
}

TEST_CASE("the parts of local copies are listed with their state, at each level of the folder") {
  const TemporaryFolder root;
  const fs::path run = root / "node1/run-1";
  fs::create_directories(run);
  write_part(run, 37, 0);
  const fs::path damaged = write_part(run, 37, 1);
  std::ofstream(damaged / "state.json") << "{ }";
  const PartWriter writing(run, {.step = 38, .start = kStart, .rank = 0});
  fs::create_directories(run / ".in-step-00000038.00000000deadbeef.rank-00001");
  fs::create_directories(run / ".start/step-00000037");
  std::ofstream(run / ".used").close();
  for (const fs::path& path : {root.path, root / "node1", run})
    CHECK(folders_of_parts(path) == std::vector<fs::path>{run});
  CHECK(folders_of_parts(root / "absent").empty());
  CHECK(folders_of_parts(damaged).empty());
  const std::vector<ListedPart> parts = listed_parts(run);
  using State = ListedPart::State;
  REQUIRE(parts.size() == 4);
  CHECK((parts[0].name.step == 37 && parts[0].name.rank == 0 && parts[0].ranks == 2));
  CHECK(parts[0].state == State::complete);
  CHECK(parts[0].host == host_name());
  CHECK((parts[0].bytes > 0 && parts[0].saved_at > 0));
  CHECK(parts[1].state == State::damaged);
  CHECK_THAT(parts[1].fault, Contains((damaged / "state.json").string()));
  CHECK((parts[2].name.step == 38 && parts[2].state == State::unfinished && parts[2].ranks == 0));
  CHECK((parts[3].name.rank == 1 && parts[3].state == State::unfinished));
}

}  // namespace storage_local_part_test
