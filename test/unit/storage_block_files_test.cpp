// Files that are written and read in blocks of 4 MiB, by several threads.
#include <sys/resource.h>
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <numeric>
#include <thread>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "storage/block_cache.h"
#include "storage/block_writer.h"
#include "storage/checkpoint_dir.h"
#include "storage/file_sums.h"
#include "storage/read_ahead.h"
#include "storage/safetensors.h"
#include "storage/shard_reader.h"
#include "test/support/damage_testing.h"
#include "test/support/temporary_folder.h"

namespace storage_block_files_test {

using namespace mtrain;
using namespace mtrain::storage;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

std::vector<char> content_of(int64_t bytes) {
  std::vector<char> content(static_cast<size_t>(bytes));
  uint32_t x = 12345;
  for (char& c : content) c = char((x = x * 1664525 + 1013904223) >> 24);
  return content;
}

int files_in(const fs::path& folder) {
  return int(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

int open_descriptors() { return files_in("/proc/self/fd"); }

// Limits the size of files while it lives: a write beyond it fails like one on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(int64_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{rlim_t(bytes), before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

void write_in_parts(BlockWriter& writer, const std::vector<char>& content, size_t part) {
  for (size_t at = 0; at < content.size(); at += part)
    writer.write(content.data() + at, std::min(part, content.size() - at));
}

// Saves a matrix (rows, ranks * own) whose columns `ranks` files have in equal parts.
fs::path save_by_columns(const fs::path& root, int64_t rows, int ranks, int64_t own) {
  CheckpointWriter writer(root, 7);
  CheckpointIndex index;
  const int64_t columns = ranks * own;
  index.weights["x"] = {.dtype = DType::f32, .shape = {rows, columns}};
  for (int rank = 0; rank < ranks; ++rank) {
    const StridedRun run{.first = rank * own, .count = own, .times = rows, .stride = columns};
    const std::string name = shard_file_name(TensorSet::weights, rank);
    SafetensorsWriter file(writer.folder() / name,
                           {{piece_name("x", run), DType::f32, {run.total()}}}, {},
                           SafetensorsWriter::Sums::beside);
    std::vector<float> values;
    for (int64_t i = 0; i < run.total(); ++i)
      values.push_back(float(run.first + i / own * columns + i % own));
    file.write(piece_name("x", run), {values.data(), run.total(), DType::f32});
    file.commit();
    index.files.push_back(name);
    index.weights["x"].pieces.push_back({rank, run});
  }
  writer.set_index(index, {});
  return writer.commit();
}

// Reads a run of the tensor `x` of save_by_columns(), row by row. Returns the wrong values.
int64_t wrong_values(const ShardReader& from, const StridedRun& run) {
  int64_t wrong = 0;
  std::vector<float> values(size_t(run.count));
  for (int64_t row = 0; row < run.times; ++row) {
    const int64_t first = run.first + row * run.stride;
    from.read("x", first, run.count, values.data());
    for (int64_t i = 0; i < run.count; ++i) wrong += values[size_t(i)] != float(first + i);
  }
  return wrong;
}

}  // namespace

TEST_CASE("blocks that threads write are the bytes of the caller, with their checksums") {
  const TemporaryFolder folder;
  const fs::path path = folder / "x";
  for (const int threads : {1, 4})
    for (const int64_t bytes : {int64_t(0), int64_t(1), kSumsBlock - 1, kSumsBlock, kSumsBlock + 1,
                                9 * kSumsBlock + 4097}) {
      CAPTURE(threads, bytes);
      const std::vector<char> content = content_of(bytes);
      BlockWriter writer(path, bytes, threads, true);
      write_in_parts(writer, content, 3'000'001);
      writer.commit();
      CHECK(read_file(path) == std::string(content.data(), content.size()));
      CHECK(writer.sums() == make_sums(path));
      CHECK(files_in(folder.path) == 1);
    }
}

TEST_CASE("a block that cannot be written leaves no file") {
  const TemporaryFolder folder;
  const std::vector<char> content = content_of(12 * kSumsBlock);
  {
    const FileSizeLimit limit(2 * kSumsBlock);
    CHECK_THROWS_WITH(BlockWriter(folder / "x", 3 * kSumsBlock, 2, true),
                      Contains((folder / "x").string()) && Contains("File too large"));
  }
  CHECK(files_in(folder.path) == 0);
  for (const int threads : {1, 4}) {
    CAPTURE(threads);
    {
      BlockWriter writer(folder / "x", int64_t(content.size()), threads, true);
      const FileSizeLimit limit(2 * kSumsBlock);
      const auto write = [&] {
        write_in_parts(writer, content, size_t(kSumsBlock));
        writer.commit();
      };
      CHECK_THROWS_AS(write(), RunError);
      CHECK_THROWS_AS(writer.commit(), Error);
    }
    CHECK(files_in(folder.path) == 0);
  }
  { BlockWriter given_up(folder / "x", 5 * kSumsBlock, 4, true); }
  {
    BlockWriter given_up(folder / "x", int64_t(content.size()), 4, true);
    write_in_parts(given_up, content, size_t(kSumsBlock));
  }
  CHECK(files_in(folder.path) == 0);
}

TEST_CASE("threads that need the same block read it once, and share its failure") {
  BlockCache cache(4);
  std::atomic<int> fills{0};
  const auto fill = [&](std::byte* memory) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    memory[0] = std::byte(++fills);
    return size_t(1);
  };
  const auto on_threads = [](const std::function<void()>& work) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) threads.emplace_back(work);
    for (std::thread& t : threads) t.join();
  };
  std::atomic<int> ones{0}, failures{0};
  on_threads([&] {
    const BlockCache::Hold hold = cache.get({1, 0}, fill);
    ones += hold.content().size() == 1 && hold.content()[0] == std::byte(1);
  });
  CHECK(ones == 6);
  CHECK(fills == 1);
  // The block stays while four others are used, if it is held; otherwise its memory is reused.
  {
    const BlockCache::Hold hold = cache.get({1, 0}, fill);
    for (int64_t b = 1; b < 9; ++b) cache.get({1, b}, fill);
    CHECK(hold.content()[0] == std::byte(1));
    cache.get({1, 0}, fill);
  }
  CHECK(cache.blocks_read() == 9);
  for (int64_t b = 1; b < 9; ++b) cache.get({2, b}, fill);
  cache.get({1, 0}, fill);
  CHECK(cache.blocks_read() == 18);
  // A failure is that of all who wait; the next call reads again.
  std::atomic<int> tries{0};
  on_threads([&] {
    try {
      cache.get({3, 0}, [&](std::byte*) -> size_t {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ++tries;
        throw RunError("bad block");
      });
    } catch (const RunError&) {
      ++failures;
    }
  });
  CHECK(failures == 6);
  CHECK(tries >= 1);
  CHECK(cache.get({3, 0}, fill).content().size() == 1);
}

TEST_CASE("blocks are read ahead in their order, and no further than is asked for") {
  BlockCache cache(2);
  std::atomic<int64_t> listed{0}, loaded{0};
  constexpr int64_t kBlocks = 40;
  ReadAhead ahead(
      3, 5,
      [&]() -> std::optional<BlockKey> {
        if (listed == kBlocks) return std::nullopt;
        return BlockKey{0, listed++};
      },
      [&](const BlockKey& key) {
        if (key.block == 7) throw RunError("bad block");
        ++loaded;
        return cache.get(
            key, [](std::byte*) { return size_t(1); }, BlockCache::Use::ahead);
      });
  const auto eventually = [](const std::function<bool()>& holds) {
    for (int i = 0; i < 500 && !holds(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return holds();
  };
  CHECK(eventually([&] { return loaded == 5; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(listed == 5);
  ahead.needed({5, 5});  // of another file
  ahead.needed({0, 2});
  CHECK(eventually([&] { return listed == 7; }));
  ahead.needed({0, 6});
  CHECK(eventually([&] { return listed == 11 && loaded == 10; }));
  // The thread that has failed may not have said so yet.
  std::string error;
  CHECK(eventually([&] {
    try {
      ahead.needed({0, 7});
    } catch (const RunError& e) {
      error = e.what();
    }
    return !error.empty();
  }));
  CHECK(error == "bad block");
  ahead.needed({0, 7});  // the reader tries again
  for (int64_t b = 8; b < kBlocks; ++b) ahead.needed({0, b});
  CHECK(eventually([&] { return listed == kBlocks; }));
}

TEST_CASE("a reader reads each block that meets its runs once, and no others") {
  const TemporaryFolder root;
  constexpr int kRanks = 12;
  constexpr int64_t kRows = 3000, kOwn = 1000, kColumns = kRanks * kOwn;  // 12 MB in each file
  const fs::path folder = save_by_columns(root.path, kRows, kRanks, kOwn);
  const int64_t of_file = (kRows * kOwn * 4 + kSumsBlock) / kSumsBlock;
  struct Row {
    const char* what;
    StridedRun run;
    int64_t files;
  };
  for (const Row& row :
       std::vector<Row>{{"all rows", {0, kColumns, kRows, kColumns}, kRanks},
                        {"the same columns", {3 * kOwn, kOwn, kRows, kColumns}, 1},
                        {"wider columns", {3 * kOwn, 3 * kOwn, kRows, kColumns}, 3},
                        {"columns between the files'", {kOwn / 2, kOwn, kRows, kColumns}, 2},
                        {"narrow columns", {5, 7, kRows, kColumns}, 1}}) {
    CAPTURE(row.what);
    for (const bool announced : {false, true})
      for (const int threads : {1, 4}) {
        const bool direct = threads > 1;
        CAPTURE(announced, threads);
        const ShardReader from(folder, TensorSet::weights, {threads, direct});
        if (announced) from.expect({{"x", row.run}});
        CHECK(wrong_values(from, row.run) == 0);
        // The header is in the first block of a file.
        CHECK(from.blocks_read() == row.files * of_file);
      }
  }
  // A part of the rows, and other elements than those that were announced.
  const ShardReader from(folder, TensorSet::weights);
  from.expect({{"x", {3 * kOwn, kOwn, 10, kColumns}}});
  CHECK(wrong_values(from, {3 * kOwn, kOwn, 10, kColumns}) == 0);
  CHECK(from.blocks_read() == 1);
  CHECK(wrong_values(from, {2900 * kColumns, kOwn, 10, kColumns}) == 0);
  CHECK(from.blocks_read() == 3);
  from.expect({{"x", {0, kColumns, kRows, kColumns}}});  // is dropped before it is read
  from.expect({});
}

TEST_CASE("damage in a block that was read ahead is an error where its elements are read") {
  const TemporaryFolder root;
  const fs::path folder = save_by_columns(root.path, 3000, 2, 1000);
  const FlippedBit flipped(folder / "weights-00001.safetensors", kSumsBlock + 77, 3);
  const StridedRun all{0, 2000, 3000, 2000};
  for (const bool announced : {false, true}) {
    const ShardReader from(folder, TensorSet::weights, {.direct = announced});
    if (announced) from.expect({{"x", all}});
    CHECK(wrong_values(from, {0, 2000, 1000, 2000}) == 0);
    CHECK_THROWS_WITH(wrong_values(from, all),
                      Contains("weights-00001.safetensors is damaged: bytes 4194304 to"));
    CHECK(wrong_values(from, {0, 1000, 3000, 2000}) == 0);
  }
}

TEST_CASE("a reader of many files keeps them open within the limit of descriptors") {
  const TemporaryFolder root;
  const fs::path folder = save_by_columns(root.path, 300, 60, 4);
  const int before = open_descriptors();
  const StridedRun all{0, 240, 300, 240};
  const ShardReader from(folder, TensorSet::weights);
  from.expect({{"x", all}});
  CHECK(wrong_values(from, all) == 0);
  CHECK(from.blocks_read() == 60);
  CHECK(open_descriptors() <= before + 2 * 60);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit few{rlim_t(open_descriptors()) + 40, limit.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &few);
  const int now = open_descriptors();
  {
    const ShardReader with_few(folder, TensorSet::weights);
    CHECK(wrong_values(with_few, {0, 240, 2, 240}) == 0);
    CHECK(open_descriptors() <= now + 40);
  }
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace storage_block_files_test
