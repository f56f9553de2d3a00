#include "launch/job_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>

#include "base/pulse.h"
#include "launch/job.h"

namespace mtrain::launch {

namespace {

namespace fs = std::filesystem;
constexpr const char* kJobVariable = "MTRAIN_JOB_ID";

// Returns the value of a variable in the text of /proc/<pid>/environ.
std::optional<std::string_view> value_of(std::string_view variables, std::string_view name) {
  for (size_t at = 0; at < variables.size();) {
    const size_t end = std::min(variables.find('\0', at), variables.size());
    const std::string_view v = variables.substr(at, end - at);
    if (v.size() > name.size() && v.starts_with(name) && v[name.size()] == '=')
      return v.substr(name.size() + 1);
    at = end + 1;
  }
  return std::nullopt;
}

// Returns "" for a process that has ended, or that belongs to another user. A process may end at
// any time; therefore no failure is an error here.
std::string environment_of(const fs::path& process) {
  struct stat info {};
  if (stat(process.c_str(), &info) < 0 || (geteuid() != 0 && info.st_uid != geteuid())) return "";
  const int fd = open((process / "environ").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  std::string text;
  char buffer[8192];
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, size_t(n));
  close(fd);
  return text;
}

int number_or(std::string_view text, int otherwise) {
  int n = otherwise;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc() && end == text.data() + text.size() ? n : otherwise;
}

}  // namespace

namespace {

// Returns the processes whose variables are those of the job, and not of a Slurm job within it.
template <class IsOfJob>
std::vector<JobProcess> find_processes(const IsOfJob& is_of_job) {
  const char* const own_slurm_job = std::getenv(kSlurmJob);
  std::vector<JobProcess> found;
  std::error_code error, unreadable;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const pid_t pid = number_or(it->path().filename().native(), 0);
    if (pid <= 0 || pid == getpid()) continue;
    const std::string variables = environment_of(it->path());
    if (!is_of_job(variables)) continue;
    // sbatch passes all variables to the job that it submits.
    if (const auto slurm_job = value_of(variables, kSlurmJob);
        slurm_job && (!own_slurm_job || *slurm_job != own_slurm_job))
      continue;
    std::string program = fs::read_symlink(it->path() / "exe", unreadable).filename();
    if (const size_t deleted = program.find(" (deleted)"); deleted != std::string::npos)
      program.resize(deleted);  // as after an upgrade
    found.push_back({pid, number_or(value_of(variables, "RANK").value_or(""), -1), program,
                     number_or(value_of(variables, Pulse::kVariable).value_or(""), -1)});
  }
  return found;
}

}  // namespace

std::vector<JobProcess> job_processes(const std::string& job_id) {
  return find_processes(
      [&](std::string_view variables) { return value_of(variables, kJobVariable) == job_id; });
}

std::vector<JobProcess> processes_of_jobs(const std::set<std::string, std::less<>>& ids) {
  return find_processes([&](std::string_view variables) {
    return ids.contains(value_of(variables, kJobVariable).value_or("")) ||
           ids.contains(value_of(variables, kSharedJobVariable).value_or(""));
  });
}

void kill_job_processes(const std::string& job_id) {
  constexpr int kTries = 50;
  for (int i = 0; i < kTries; ++i) {
    const auto left = job_processes(job_id);
    if (left.empty()) return;
    for (const JobProcess& p : left) kill(p.pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace mtrain::launch
