// Tests that data are identified by their content.
#include <fcntl.h>
#include <sys/stat.h>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>

#include <catch2/catch.hpp>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/file.h"
#include "data/dataset/content.h"
#include "data/dataset/indexed_dataset.h"
#include "test/support/temporary_folder.h"

namespace data_content_test {

using namespace mtrain;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

// Writes a data set of `tokens` 16-bit tokens.
void write_set(const fs::path& prefix, int tokens, bool masked = false) {
  data::IndexedDatasetWriter writer(prefix, data::TokenType::u16, masked);
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (int i = 0; i < tokens; ++i) ids[size_t(i)] = (i * 7 + i / 1000) % 200;
  writer.add_tokens(ids);
  writer.finish();
}

// Changes a byte, but not the size and the time of the last write.
void change_byte(const fs::path& file, int64_t at) {
  const auto time = fs::last_write_time(file);
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(at);
  const int old = f.get();
  f.seekp(at);
  f.put(char(old ^ 1));
  f.close();
  fs::last_write_time(file, time);
}

// A cache folder for the programs of this test.
struct Cache : TemporaryFolder {
  Cache() { ::setenv("XDG_CACHE_HOME", path.c_str(), 1); }
  ~Cache() { ::unsetenv("XDG_CACHE_HOME"); }
};

bool all_known(const data::Content& content) {
  for (const auto& file : content)
    if (file.full_hash.empty()) return false;
  return true;
}

constexpr int kLarge = 1 << 24;             // tokens: 32 MiB, of which every other block is sampled
constexpr int64_t kBetween = 4096 + 10;     // a byte outside of the sampled blocks
constexpr int64_t kSampled = 2 * 4096 + 1;  // a byte of a sampled block

}  // namespace

TEST_CASE("data build writes the hashes of all files beside them") {
  const TemporaryFolder folder;
  write_set(folder / "set", 5000, true);
  std::string expected = "mtrain content 1\n";
  for (const char* part : {"bin", "idx", "mask"}) {
    const std::string bytes = read_file(folder / (std::string("set.") + part)),
                      hash = content_hash(bytes);
    expected +=
        std::string(part) + " " + std::to_string(bytes.size()) + " " + hash + " " + hash + "\n";
  }
  CHECK(read_file(folder / "set.hash") == expected);
  // Another build without a mask leaves no stale hashes.
  write_set(folder / "set", 4000);
  CHECK(read_file(folder / "set.hash").find("mask") == std::string::npos);
  CHECK(all_known(data::content_of_tokens(folder / "set")));
}

TEST_CASE("any changed byte of a small set changes its identity") {
  const TemporaryFolder folder;
  const Cache cache;
  write_set(folder / "set", 3000, true);
  const data::Content before = data::content_of_tokens(folder / "set");
  for (const auto& [part, at] :
       {std::pair{"bin", 0}, {"bin", 5999}, {"bin", 3001}, {"mask", 2999}}) {
    const fs::path file = folder / (std::string("set.") + part);
    change_byte(file, at);
    CAPTURE(part, at);
    CHECK(data::content_difference(before, data::content_of_tokens(folder / "set")) ==
          file.string() + " holds other data");
    change_byte(file, at);
  }
  CHECK(data::content_difference(before, data::content_of_tokens(folder / "set")).empty());
  fs::remove(folder / "set.mask");
  CHECK(data::content_difference(before, data::content_of_tokens(folder / "set")) ==
        "mask is missing now");
  write_set(folder / "set", 3001, true);
  CHECK_THAT(data::content_difference(before, data::content_of_tokens(folder / "set")),
             Contains("set.bin has 6002 bytes, but had 6000"));
}

TEST_CASE("a large set is sampled at the start, and read whole once") {
  const TemporaryFolder folder;
  const Cache cache;
  const fs::path prefix = folder / "set", bin = folder / "set.bin";
  write_set(prefix, kLarge);
  const data::Content built = data::content_of_tokens(prefix);
  CHECK(all_known(built));  // by data build
  CHECK(built[0].full_hash == content_hash(read_file(bin)));
  CHECK(built[0].full_hash != built[0].sample);
  fs::remove(folder / "set.hash");
  CHECK_FALSE(all_known(data::content_of_tokens(prefix)));
  CHECK(data::content_difference(built, data::content_of_tokens(prefix)).empty());

  change_byte(bin, kSampled);
  CHECK_FALSE(data::content_difference(built, data::content_of_tokens(prefix)).empty());
  change_byte(bin, kSampled);
  change_byte(bin, kBetween);
  CHECK(data::content_difference(built, data::content_of_tokens(prefix)).empty());

  int pieces = 0;
  CHECK(data::hash_file(bin, [&] { return ++pieces < 3; }).empty());
  CHECK(pieces == 3);  // it stops when the callback returns false
  CHECK_FALSE(all_known(data::content_of_tokens(prefix)));
  CHECK(data::hash_file(bin, [] { return true; }) == content_hash(read_file(bin)));
  const data::Content known = data::content_of_tokens(prefix);
  CHECK(all_known(known));  // by the cache folder
  CHECK(data::content_difference(built, known) == bin.string() + " holds other data");
  // Neither size nor time show this change, yet the kept hashes no longer count.
  change_byte(bin, kBetween);
  CHECK_FALSE(all_known(data::content_of_tokens(prefix)));
}

TEST_CASE("a kept hash counts once its file has been as it is for a while") {
  const TemporaryFolder folder;
  const Cache cache;
  const fs::path file = folder / "rows.jsonl";
  write_file_atomic(file, "one");
  const auto hash = [&] { return data::hash_file(file, [] { return true; }); };
  CHECK(data::settled_hash(file).empty());
  const std::string first = hash();
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  CHECK(hash() == first);
  CHECK(data::settled_hash(file) == first);
  write_file_atomic(file, "two");
  CHECK(data::settled_hash(file).empty());
  CHECK(hash() != first);
}

TEST_CASE("of those that ask at once for a hash, one reads the file") {
  const TemporaryFolder folder;
  const Cache cache;
  const fs::path file = folder / "rows.jsonl";
  write_file_atomic(file, std::string(int64_t(9) << 20, 'x'));
  std::this_thread::sleep_for(
      std::chrono::milliseconds(200));  // a hash of a newer file is not kept
  std::atomic<bool> done = false;
  std::atomic<int> late_calls = 0;  // more than one only if the thread reads the file itself
  std::string other;
  std::optional<std::thread> second;
  const std::string hash = data::known_or_read_hash(file, [&] {
    if (!second)
      second.emplace([&] {
        other = data::known_or_read_hash(file, [&] {
          late_calls += done;
          return true;
        });
      });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return true;
  });
  done = true;
  second->join();
  CHECK(other == hash);
  CHECK(late_calls <= 1);
  CHECK(data::settled_hash(file) == hash);
  for (const auto& kept : fs::recursive_directory_iterator(cache.path))
    CHECK(kept.path().extension() != ".lock");
}

TEST_CASE("hashes that lie beside other data are not believed") {
  const TemporaryFolder folder;
  const Cache cache;
  const fs::path hash = folder / "set.hash";
  write_set(folder / "set", kLarge);
  const std::string text = read_file(hash);
  const auto known = [&] { return all_known(data::content_of_tokens(folder / "set")); };
  REQUIRE(known());
  // A copy may have an index that is newer; all of it was read.
  fs::last_write_time(folder / "set.idx", fs::last_write_time(hash) + std::chrono::seconds(9));
  REQUIRE(known());
  for (const std::string& other : {std::string("nonsense"), std::string(1 << 20, 'x'),
                                   "mtrain content 2\n" + text.substr(text.find('\n') + 1),
                                   text.substr(0, text.size() - 2), std::string()}) {
    std::ofstream(hash) << other;
    CHECK_FALSE(known());
  }
  std::ofstream(hash) << text;
  REQUIRE(known());
  fs::last_write_time(hash, fs::last_write_time(folder / "set.bin") - std::chrono::seconds(1));
  CHECK_FALSE(known());  // the data were written after their hashes
  std::ofstream(hash) << text;
  change_byte(folder / "set.bin", kSampled);
  CHECK_FALSE(known());
  fs::remove(hash);
  fs::create_directory(hash);
  CHECK_FALSE(known());
}

TEST_CASE("a data set that is truncated while it is in use is named") {
  const TemporaryFolder folder;
  const auto cut = [&](const char* file, uintmax_t bytes) {
    write_set(folder / "set", 50000, true);
    const data::IndexedDataset set(folder / "set");
    std::vector<int32_t> ids(100);
    set.read(40000, ids);
    fs::resize_file(folder / file, bytes);
    CHECK_THROWS_WITH(set.read(40000, ids), Contains((folder / file).string() +
                                                     " has become shorter while it was in use"));
    CHECK_THROWS_AS(set.read(0, ids), RunError);
  };
  cut("set.bin", 0);
  cut("set.bin", 90000);
  cut("set.bin", 99999);  // the rest of this page reads as zeros
  cut("set.idx", 10);
  cut("set.mask", 40050);
  // A set whose files are replaced while it is open keeps its content.
  write_set(folder / "set", 50000);
  const data::IndexedDataset set(folder / "set");
  write_set(folder / "set", 10);
  std::vector<int32_t> ids(100);
  CHECK_NOTHROW(set.read(40000, ids));
}

}  // namespace data_content_test
