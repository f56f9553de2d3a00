// The processes of a job on this host: the ranks, and all processes that they have started.
#pragma once
#include <sys/types.h>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace mtrain::launch {

struct JobProcess {
  pid_t pid = 0;
  int rank = -1;        // -1: its environment names none
  std::string program;  // the name of its file
  int pulse_fd = -1;    // Pulse::kVariable of its environment; -1: none
};

// The variable that distinguishes a Slurm job from the jobs that it has submitted.
inline constexpr const char* kSlurmJob = "SLURM_JOB_ID";

// Returns the processes whose environment has this MTRAIN_JOB_ID, and no SLURM_JOB_ID that differs
// from this process's. The result includes other process groups and sessions: `timeout`, `setsid`
// and shells with job control make their own.
std::vector<JobProcess> job_processes(const std::string& job_id);

// The same for processes whose MTRAIN_JOB_ID or MTRAIN_SHARED_JOB_ID is one of these. Only to watch
// them: a shared id is that of several launchers.
std::vector<JobProcess> processes_of_jobs(const std::set<std::string, std::less<>>& ids);

// Kills those of job_processes() with SIGKILL until none is left. Gives up after a second: the rest
// cannot be killed.
void kill_job_processes(const std::string& job_id);

}  // namespace mtrain::launch
