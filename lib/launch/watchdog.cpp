#include "launch/watchdog.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>

#include "base/error.h"
#include "launch/job_processes.h"

extern char** environ;

namespace mtrain::launch {

namespace {

[[noreturn]] void watch(int pipe, const std::string& job_id) {
  const std::string slurm_job = std::string(kSlurmJob) + "=";  // job_processes() reads it
  setsid();  // a signal to the launcher's process group does not reach the watchdog
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  prctl(PR_SET_NAME, "mtrain-watchdog");
  // A launcher may be a rank of another job, whose watchdog must not kill this one.
  for (char** e = environ; *e; ++e)
    if (!std::string_view(*e).starts_with(slurm_job)) std::memset(*e, 0, std::strlen(*e));
  // The reader of the launcher's output waits until no process can write to it any more.
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, fd);
  // It must not hold other files, sockets or locks that the launcher has inherited, either.
  if (pipe > STDERR_FILENO + 1) close_range(STDERR_FILENO + 1, unsigned(pipe) - 1, 0);
  close_range(unsigned(std::max(pipe, STDERR_FILENO)) + 1, ~0U, 0);
  std::set<pid_t> groups;
  // Each word is written by one call; therefore none is read in parts. All signals are blocked.
  for (pid_t word; read(pipe, &word, sizeof word) == sizeof word;) {
    if (word == 0) _exit(0);
    if (word > 0)
      groups.insert(word);
    else
      groups.erase(-word);
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  kill_job_processes(job_id);
  _exit(0);
}

}  // namespace

Watchdog::Watchdog(const std::string& job_id) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) < 0) throw RunError(fmt::format("pipe: {}", std::strerror(errno)));
  pid_ = fork();
  if (pid_ < 0) {
    const int why = errno;
    close(ends[0]);
    close(ends[1]);
    throw RunError(fmt::format("cannot start the watchdog: {}", std::strerror(why)));
  }
  if (pid_ == 0) {
    close(ends[1]);
    watch(ends[0], job_id);
  }
  close(ends[0]);
  pipe_ = ends[1];
}

void Watchdog::send(pid_t word) const {
  [[maybe_unused]] const auto n = write(pipe_, &word, sizeof word);
}

Watchdog::~Watchdog() {
  close(pipe_);
  waitpid(pid_, nullptr, 0);
}

}  // namespace mtrain::launch
