// Tests that the processes of a job are found by their environment.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <chrono>
#include <string>
#include <thread>

#include <catch2/catch.hpp>

#include "launch/job_processes.h"

namespace launch_job_processes_test {

using namespace mtrain::launch;
using namespace std::chrono_literals;

namespace {

// A process with the variables of a rank.
class Process {
 public:
  Process(std::string own, std::string shared) {
    std::array<char*, 4> variables{own.data(), shared.data(), rank_.data(), nullptr};
    char program[] = "sleep", seconds[] = "60";
    char* const words[] = {program, seconds, nullptr};
    pid_ = ::fork();
    if (pid_ == 0) {
      ::execve("/bin/sleep", words, variables.data());
      ::_exit(127);
    }
  }
  ~Process() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  pid_t pid() const { return pid_; }

 private:
  std::string rank_ = "RANK=3";
  pid_t pid_ = -1;
};

}  // namespace

TEST_CASE("processes are watched by the id of their launcher or of all, and killed by the former") {
  const std::string own = "own-" + std::to_string(::getpid()), shared = "shared-" + own;
  const Process process("MTRAIN_JOB_ID=" + own, "MTRAIN_SHARED_JOB_ID=" + shared);
  for (int i = 0; i < 1000 && job_processes(own).empty(); ++i) std::this_thread::sleep_for(5ms);
  const auto found = job_processes(own);
  REQUIRE(found.size() == 1);
  CHECK(found.front().pid == process.pid());
  CHECK(found.front().rank == 3);
  CHECK(found.front().program == "sleep");
  CHECK(job_processes(shared).empty());
  CHECK(processes_of_jobs({"another", own}).size() == 1);
  CHECK(processes_of_jobs({"another", shared}).size() == 1);
  CHECK(processes_of_jobs({"another"}).empty());
  CHECK(processes_of_jobs({}).empty());
}

}  // namespace launch_job_processes_test
