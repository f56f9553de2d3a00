// Tests the thread pool, files and shared libraries.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/shared_library.h"
#include "base/thread_pool.h"
#include "base/usable_cores.h"
#include "test/support/environment.h"
#include "test/support/temporary_folder.h"

namespace base_system_test {

using namespace mtrain;
using Catch::Contains;
namespace fs = std::filesystem;

TEST_CASE("a pool runs every task once") {
  const int threads = GENERATE(1, 2, 4);
  ThreadPool pool(threads);
  CHECK(pool.threads() == threads);
  for (const int64_t tasks : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> ran(static_cast<size_t>(tasks));
    pool.run(tasks, [&](int64_t i) { ++ran[size_t(i)]; });
    for (const auto& r : ran) REQUIRE(r == 1);
  }
}

TEST_CASE("the launcher names the cores of the host to a rank that it binds") {
  {
    const Environment unbound(kHostCoresVariable, nullptr);
    CHECK(usable_cores() >= 1);
    CHECK(host_cores() == usable_cores());
  }
  const Environment bound(kHostCoresVariable, "5000");
  CHECK(host_cores() == 5000);
  const Environment fewer(kHostCoresVariable, "0");
  CHECK(host_cores() == usable_cores());
}

TEST_CASE("a process that has ended does not live, whether its parent has waited or not") {
  CHECK(process_lives(getpid()));
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    close(ends[1]);
    [[maybe_unused]] const auto got = read(ends[0], &byte, 1);
    _exit(0);
  }
  close(ends[0]);
  CHECK(process_lives(child));
  close(ends[1]);
  siginfo_t info{};
  REQUIRE(waitid(P_PID, id_t(child), &info, WEXITED | WNOWAIT) == 0);  // it stays a zombie
  CHECK_FALSE(process_lives(child));
  REQUIRE(waitpid(child, nullptr, 0) == child);
  CHECK_FALSE(process_lives(child));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which reserve terabytes
TEST_CASE("more threads than the system gives are refused, and the setting named") {
  // In a process of its own, whose address space has room for few stacks.
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{1 << 29, 1 << 29};
    setrlimit(RLIMIT_AS, &limit);
    try {
      ThreadPool pool(5000);
    } catch (const UserError& e) {
      const bool named = e.message().find("train.threads=5000: the system gave ") == 0;
      _exit(named ? 0 : 1);
    } catch (...) {
    }
    _exit(2);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

TEST_CASE("several threads of a pool work at the same time") {
  ThreadPool pool(3);
  // Each task waits for all three: without three threads this would never end.
  std::atomic<int> arrived{0};
  pool.run(3, [&](int64_t) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
  });
  CHECK(arrived == 3);
}

TEST_CASE("many small jobs in a row, each complete when run returns") {
  ThreadPool pool(4);
  int64_t sum = 0;
  for (int job = 0; job < 3000; ++job) {
    int64_t part[5] = {};
    pool.run(5, [&](int64_t i) { part[i] = i + job; });
    sum += std::accumulate(part, part + 5, int64_t{0});
  }
  CHECK(sum == 3000 * 10 + 5 * (2999 * 3000 / 2));
}

TEST_CASE("a job inside a task runs, serially") {
  ThreadPool pool(4);
  const ThreadPool::Scope scope(&pool);
  std::atomic<int> inner{0};
  std::atomic<bool> same_thread{true};
  pool.run(8, [&](int64_t) {
    const auto me = std::this_thread::get_id();
    pool.run(8, [&](int64_t) {
      ++inner;
      if (std::this_thread::get_id() != me) same_thread = false;
      pool.run(2, [&](int64_t) { ++inner; });
    });
  });
  CHECK(inner == 8 * 8 * 3);
  CHECK(same_thread);
}

TEST_CASE("the first exception of a task is rethrown, and the pool continues") {
  ThreadPool pool(GENERATE(1, 3));
  CHECK_THROWS_WITH(pool.run(100,
                             [](int64_t i) {
                               if (i == 41) throw std::runtime_error("task 41");
                             }),
                    "task 41");
  CHECK_THROWS_AS(pool.run(100, [](int64_t) { throw UserError("all"); }), UserError);
  std::atomic<int> ran{0};
  pool.run(10, [&](int64_t) { ++ran; });
  CHECK(ran == 10);
}

TEST_CASE("several callers share a pool") {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      const ThreadPool::Scope scope(&pool);
      for (int job = 0; job < 500; ++job) {
        std::atomic<int64_t> mine{0};
        parallel_for(64, 8, [&](int64_t begin, int64_t end) { mine += end - begin; });
        sum += mine;
      }
    });
  for (auto& c : callers) c.join();
  CHECK(sum == 4 * 500 * 64);
}

TEST_CASE("parallel_for's chunks depend on the size and the grain alone") {
  using Chunks = std::set<std::pair<int64_t, int64_t>>;
  const auto chunks_of = [](int64_t n, int64_t grain) {
    std::mutex mutex;
    Chunks chunks;
    parallel_for(n, grain, [&](int64_t begin, int64_t end) {
      std::lock_guard lock(mutex);
      CHECK(chunks.emplace(begin, end).second);
    });
    return chunks;
  };
  CHECK(current_threads() == 1);
  CHECK(chunks_of(10, 4) == Chunks{{0, 4}, {4, 8}, {8, 10}});
  CHECK(chunks_of(0, 4).empty());
  CHECK_THROWS_AS(chunks_of(10, 0), BugError);
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    const ThreadPool::Scope scope(&pool);
    CHECK(current_threads() == threads);
    CHECK(chunks_of(10, 4) == Chunks{{0, 4}, {4, 8}, {8, 10}});
    CHECK(chunks_of(3, 4) == Chunks{{0, 3}});
    CHECK(chunks_of(1000, 1).size() == 1000);
    {
      const ThreadPool::Scope none(nullptr);
      CHECK(current_threads() == 1);
    }
    CHECK(ThreadPool::current() == &pool);
  }
  CHECK(ThreadPool::current() == nullptr);
}

TEST_CASE("an atomic file is whole or absent") {
  const TemporaryFolder folder;
  const fs::path path = folder / "a.txt";
  const auto files = [&] { return std::distance(fs::directory_iterator(folder.path), {}); };
  {
    AtomicFile file(path);
    file.write("half");
    CHECK_FALSE(fs::exists(path));
  }
  CHECK(files() == 0);
  write_file_atomic(path, "old");
  {
    AtomicFile first(path), second(path);  // at once, as two ranks of one process may
    first.write("1st");
    second.write("2nd");
    CHECK(read_file(path) == "old");
    first.commit();
    CHECK(read_file(path) == "1st");
    second.commit();
    CHECK_THROWS_AS(second.commit(), BugError);
  }
  CHECK(read_file(path) == "2nd");
  CHECK(files() == 1);
  const std::string large(3'000'000, 'x');
  write_file_atomic(path, large);
  CHECK(read_file(path) == large);
  write_file_atomic(path, "");
  CHECK(read_file(path).empty());
}

TEST_CASE("file errors name the path and the reason") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(AtomicFile(folder / "no" / "x"), RunError);
  CHECK_THROWS_WITH(AtomicFile(folder / "no" / "x"),
                    Contains("no/x") && Contains("No such file or directory"));
  CHECK_THROWS_AS(read_file(folder / "absent"), UserError);
  CHECK_THROWS_WITH(read_file(folder / "absent"), Contains("absent: No such file"));
  CHECK_THROWS_WITH(read_file(folder.path), Contains("is not a regular file, but a folder"));
  CHECK_THROWS_AS(MappedFile(folder / "absent"), UserError);
  CHECK_THROWS_WITH(MappedFile(folder.path), Contains("is not a regular file"));
  CHECK_THROWS_AS(MappedFile("/dev/null"), UserError);
  CHECK_THROWS_AS(RandomAccessFile(folder / "absent"), UserError);
  CHECK_THROWS_WITH(RandomAccessFile(folder.path), Contains("is not a regular file"));
  fs::create_directories(folder / "taken");
  AtomicFile file(folder / "taken");
  CHECK_THROWS_WITH(file.commit(), Contains("cannot finish") && Contains("taken"));
}

TEST_CASE("a full disk is a RunError with a hint, and the older file stays") {
  const TemporaryFolder folder;
  const fs::path path = folder / "a.txt";
  write_file_atomic(path, "old");
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file_atomic(path, std::string(2000, 'x'));
    } catch (const RunError& e) {
      ::_exit(e.hint().find("free some space") != std::string::npos &&
                      e.message().find("a.txt: File too large") != std::string::npos
                  ? 0
                  : 2);
    } catch (...) {
    }
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(read_file(path) == "old");
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("files are read to their end, whatever they are") {
  const TemporaryFolder folder;
  std::string content(200'000, '\0');
  std::iota(content.begin(), content.end(), 'a');
  std::ofstream(folder / "x", std::ios::binary) << content;
  CHECK(read_file(folder / "x") == content);
  MappedFile mapped(folder / "x");
  const MappedFile moved(std::move(mapped));
  CHECK(moved.bytes().size() == content.size());
  CHECK(std::memcmp(moved.bytes().data(), content.data(), content.size()) == 0);
  std::ofstream(folder / "empty").close();
  CHECK(MappedFile(folder / "empty").bytes().empty());
  CHECK_FALSE(read_file("/proc/self/status").empty());  // the system reports a size of 0
}

TEST_CASE("a file is read at any place, and a failed read is a RunError") {
  const TemporaryFolder folder;
  const fs::path path = folder / "x";
  std::ofstream(path) << "0123456789";
  const RandomAccessFile file(path);
  CHECK(file.size() == 10);
  std::string got(4, ' ');
  file.read(6, 4, got.data(), "the tail");
  CHECK(got == "6789");
  file.read(10, 0, nullptr, "nothing");
  CHECK_THROWS_AS(file.read(7, 4, got.data(), "the tail"), RunError);
  fs::resize_file(path, 5);
  CHECK_THROWS_WITH(file.read(3, 4, got.data(), "tensor `a`"),
                    Contains("cannot read tensor `a` of " + path.string()) &&
                        Contains("ends at byte 5, and had 10 bytes when it was opened"));
  // Page 0 of this process is not mapped; the system reports that like a broken disk.
  const RandomAccessFile memory("/proc/self/mem");
  CHECK_THROWS_AS(memory.read(0, 1, got.data(), "a byte"), RunError);
  CHECK_THROWS_WITH(memory.read(0, 1, got.data(), "a byte"),
                    Contains("cannot read a byte of /proc/self/mem: Input/output error"));
}

TEST_CASE("errors carry their hint, and checks their place") {
  CHECK(std::string(UserError("wrong", "do this").what()) == "wrong\n  hint: do this");
  CHECK(std::string(RunError("wrong").what()) == "wrong");
  const auto check = [](int x) { MT_CHECK(x == 1, "x is {}", x); };
  check(1);
  CHECK_THROWS_AS(check(2), BugError);
  CHECK_THROWS_WITH(check(2), Contains("test/unit/base_system_test.cpp:") &&
                                  Contains("check `x == 1` failed: x is 2") && Contains("bug"));
}

TEST_CASE("an overlay is called around every log line until it is removed") {
  struct Counting : log::Overlay {
    void interrupt(const std::function<void()>& write_line) override {
      ++calls;
      write_line();
    }
    int calls = 0;
  } overlay;
  log::set_overlay(&overlay);
  log::info("a line of the test");
  log::warn("another");
  log::set_overlay(nullptr);
  log::info("the last");
  CHECK(overlay.calls == 2);
}

TEST_CASE("the error of a shared library names the missing function") {
  double (*absolute)(double) = nullptr;
  void (*unknown)() = nullptr;
  SharedLibrary there("libm.so.6");
  there.find(absolute, "fabs");
  REQUIRE(there.problem() == "");
  CHECK(absolute(-2) == 2);
  there.find(unknown, "no_such_function");
  there.find(unknown, "another_one");
  CHECK(unknown == nullptr);
  CHECK(there.problem() == "libm.so.6 has no no_such_function");

  SharedLibrary missing("libnone_of_this_name.so.1");
  missing.find(absolute, "fabs");
  CHECK(absolute == nullptr);
  CHECK_THAT(missing.problem(), Contains("libnone_of_this_name.so.1"));
}

}  // namespace base_system_test
