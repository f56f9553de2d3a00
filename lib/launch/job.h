// The job and the rank of this process, from its launcher's environment variables.
#pragma once
#include <cstdint>
#include <string>

namespace mtrain::launch {

struct Job {
  int rank = 0, size = 1;              // among all ranks of the job
  int local_rank = 0, local_size = 1;  // among the ranks on this host
  std::string master_addr = "localhost";
  bool launched = false;  // started by a launcher; without one the job has one rank
  int restarts = 0;       // how often the launcher has restarted all ranks
  int restarts_left = 0;  // how often it may still do so
  // Identifies this host's launcher, or the whole job if its launchers elect the one that leads: it
  // is the same after every restart, and unique to this job. Empty without a launcher that restarts
  // ranks.
  std::string id;
  uint16_t master_port = 0;  // where the ranks meet; unused by a single rank
  bool served = false;       // the launcher serves the store there; otherwise rank 0 does
  std::string served_at;     // the address at which this host's launcher serves it; "": it does not
  std::string name;          // the job's name, the same on all hosts; "": it has none
  std::string token;         // MTRAIN_TOKEN (launch/job_token.h); never print it
  std::string token_file;    // the file that the user names instead
};

// With these variables mtrain-launch sets Job::served ("1"), Job::served_at and Job::name.
constexpr const char* kServedVariable = "MTRAIN_STORE_SERVED";
constexpr const char* kServedAtVariable = "MTRAIN_STORE_ADDRESS";
constexpr const char* kJobNameVariable = "MTRAIN_JOB_NAME";
// Beside MTRAIN_JOB_ID, which each launcher has for itself: one id for all hosts of a job.
constexpr const char* kSharedJobVariable = "MTRAIN_SHARED_JOB_ID";

// Reads the variables of mtrain-launch and torchrun (RANK, WORLD_SIZE), or else of Open MPI's
// mpirun, of PMI, or of a step that Slurm's srun has started. MASTER_ADDR and MASTER_PORT override
// the address that follows from the others. Without a launcher the job has one rank. Throws
// UserError if a variable is not a number or is out of range.
Job job_from_environment();

// The same for commands that a single process can run: RANK and WORLD_SIZE count only if a launcher
// has started this process. A shell may still have them, and no other rank would arrive.
Job started_job_from_environment();

}  // namespace mtrain::launch
