// Which rank of which job this process is, as its launcher says in the environment.
#pragma once
#include <cstdint>
#include <string>

namespace mtrain::launch {

struct Job {
  int rank = 0, size = 1;              // among all ranks of the job
  int local_rank = 0, local_size = 1;  // among the ranks on this host
  std::string master_addr = "localhost";
  bool launched = false;  // a launcher has said so; without one the job has one rank
  int restarts = 0;       // how often the launcher has started all ranks again
  // Identifies this host's launcher: it stays the same at every restart, and no other job has it.
  // Empty without a launcher that restarts ranks.
  std::string id;
  uint16_t master_port = 0;  // where rank 0 serves the rendezvous; unused by a single rank
  std::string token;         // MTRAIN_TOKEN (launch/job_token.h); never print it
  std::string token_file;    // the file that the user names instead
};

// Reads the variables of mtrain-launch and torchrun (RANK, WORLD_SIZE), or else of Open MPI's
// mpirun, of PMI, or of a step that Slurm's srun has started. MASTER_ADDR and MASTER_PORT override
// the address that follows from the others. Without a launcher the job has one rank. Throws
// UserError where a variable is not a number or is out of range.
Job job_from_environment();

// The same for commands that one process can do alone: RANK and WORLD_SIZE count only if a launcher
// has started this process. They may be left in a shell, and nobody would come.
Job started_job_from_environment();

}  // namespace mtrain::launch
