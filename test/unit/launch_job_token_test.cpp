// Tests the three ways by which a rank gets its job's token, and the files that are refused.
#include "launch/job_token.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "test/support/temporary_folder.h"

namespace launch_job_token_test {

using namespace mtrain;
using namespace mtrain::launch;
namespace fs = std::filesystem;

namespace {

Job job_of(int rank, int size = 2) {
  Job job;
  job.rank = rank;
  job.size = size;
  return job;
}

void write_secret(const fs::path& path, const std::string& text, int mode = 0600) {
  write_file_atomic(path, text);
  chmod(path.c_str(), mode_t(mode));
}

int mode_of(const fs::path& path) {
  struct stat file {};
  return lstat(path.c_str(), &file) == 0 ? int(file.st_mode & 07777) : -1;
}

}  // namespace

TEST_CASE("rank 0 gives a new token through a file of its own, and removes it at the end") {
  const TemporaryFolder folder;
  const fs::path shared = folder.path / "run" / ".token";
  const JobToken early(job_of(1), shared);  // this rank comes first
  CHECK_FALSE(early.find());
  std::string text;
  {
    const JobToken zero(job_of(0), shared);
    REQUIRE(zero.find());
    CHECK(mode_of(shared) == 0600);
    text = read_file(shared);
    CHECK(text == zero.find()->hex() + "\n");
    CHECK(early.find() == zero.find());
    CHECK(early.is_shared());
    // Another job in the same folder is refused while this one lives.
    CHECK_THROWS_AS(JobToken(job_of(0), shared), UserError);
    CHECK(read_file(shared) == text);
    // A job that does not need the file does not touch it.
    const JobToken alone(job_of(0, 1), shared);
    CHECK(read_file(shared) == text);
  }
  CHECK_FALSE(fs::exists(shared));
}

TEST_CASE("the next leader of a job replaces the file of one that was stopped") {
  const TemporaryFolder folder;
  const fs::path shared = folder.path / ".token";
  auto stopped = std::make_unique<JobToken>(job_of(0), shared);
  {
    const JobToken next(job_of(0), shared, /*replaces=*/true);
    REQUIRE(next.find());
    CHECK(next.find() != stopped->find());
    CHECK(read_file(shared) == next.find()->hex() + "\n");
    stopped.reset();  // it continues, and ends
    CHECK(read_file(shared) == next.find()->hex() + "\n");
    CHECK_THROWS_AS(JobToken(job_of(0), shared), UserError);
  }
  CHECK_FALSE(fs::exists(shared));
}

TEST_CASE("the file that a killed job has left is replaced, or removed where none is needed") {
  const TemporaryFolder folder;
  const fs::path shared = folder.path / ".token";
  const auto crash = [&] {
    if (const pid_t child = fork(); child == 0) {
      new JobToken(job_of(0), shared);
      _exit(0);
    } else {
      waitpid(child, nullptr, 0);
    }
    REQUIRE(fs::exists(shared));
  };
  crash();
  const std::string old = read_file(shared);
  {
    const JobToken zero(job_of(0), shared);
    CHECK(read_file(shared) != old);
  }
  CHECK_FALSE(fs::exists(shared));
  crash();
  const JobToken alone(job_of(0, 1), shared);
  CHECK_FALSE(fs::exists(shared));
}

TEST_CASE("of jobs that start in one folder at once, one lives") {
  for (int round = 0; round < 20; ++round) {
    const TemporaryFolder folder;
    const fs::path shared = folder.path / ".token";
    if (round % 2) write_secret(shared, Token::random().hex() + "\n");  // left by a killed job
    std::vector<std::unique_ptr<JobToken>> jobs(4);
    std::vector<std::thread> threads;
    for (auto& job : jobs)
      threads.emplace_back([&] {
        try {
          job = std::make_unique<JobToken>(job_of(0), shared);
        } catch (const UserError&) {
          // Another job was first.
        }
      });
    for (auto& thread : threads) thread.join();
    std::erase(jobs, nullptr);
    REQUIRE(jobs.size() == 1);
    CHECK(read_file(shared) == jobs[0]->find()->hex() + "\n");
    CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);
  }
}

TEST_CASE("the variable goes before the user's file, and that before the shared one") {
  const TemporaryFolder folder;
  const fs::path file = folder.path / "secret", shared = folder.path / ".token";
  const Token a = Token::random(), b = Token::random();
  write_secret(file, b.hex() + "\n");
  Job job = job_of(0);
  job.token_file = file.string();
  CHECK(JobToken(job, shared).find() == b);
  CHECK(JobToken(job, file).find() == b);  // used as the shared file: it is not removed
  CHECK(fs::exists(file));
  job.token = a.hex();
  const JobToken both(job, shared);
  CHECK(both.find() == a);
  CHECK_FALSE(both.is_shared());
  CHECK_FALSE(fs::exists(shared));
  for (const std::string& wrong : {std::string("secret"), a.hex().substr(1), a.hex() + "00"}) {
    job.token = wrong;
    CHECK_THROWS_AS(JobToken(job, shared), UserError);
  }
}

TEST_CASE("a token file that others can use, or that is not a regular file, is refused") {
  const TemporaryFolder folder;
  const fs::path file = folder.path / "secret";
  const Token token = Token::random();
  write_secret(file, token.hex());
  CHECK(read_token_file(file) == token);
  for (const int mode : {0640, 0604, 0660, 0666, 0610, 0601}) {
    CAPTURE(mode);
    write_secret(file, token.hex(), mode);
    CHECK_THROWS_AS(read_token_file(file), UserError);
    const JobToken rank(job_of(1), file);
    CHECK_THROWS_AS(rank.find(), UserError);
  }
  write_secret(file, "not a token");
  CHECK_THROWS_AS(read_token_file(file), UserError);
  write_secret(file, token.hex() + token.hex());
  CHECK_THROWS_AS(read_token_file(file), UserError);
  CHECK_THROWS_AS(read_token_file(folder.path / "none"), UserError);
  CHECK_THROWS_AS(read_token_file(folder.path), UserError);
  CHECK_THROWS_AS(read_token_file("/dev/zero"), UserError);
  const fs::path fifo = folder.path / "fifo", link = folder.path / "link";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK_THROWS_AS(read_token_file(fifo), UserError);
  // Another user may have put a link into a shared folder.
  write_secret(file, token.hex());
  fs::create_symlink(file, link);
  const JobToken rank(job_of(1), link);
  CHECK_THROWS_AS(rank.find(), UserError);
  if (geteuid() == 0) {
    REQUIRE(chown(file.c_str(), 12345, 12345) == 0);
    CHECK_THROWS_AS(read_token_file(file), UserError);
  }
}

TEST_CASE("the variable is gone once it is read") {
  const Token token = Token::random();
  setenv(kTokenVariable, token.hex().c_str(), 1);
  const Job job = job_from_environment();
  hide_token_variable();
  CHECK(job.token == token.hex());
  CHECK(std::getenv(kTokenVariable) == nullptr);
  CHECK(job_from_environment().token.empty());
}

}  // namespace launch_job_token_test
