// Which rank of which job this process is, as its launcher says in the environment.
#pragma once
#include <cstdint>
#include <string>

namespace mtrain::launch {

struct Job {
  int rank = 0, size = 1;              // among all ranks of the job
  int local_rank = 0, local_size = 1;  // among the ranks on this host
  std::string master_addr = "localhost";
  int restarts = 0;  // how often the launcher has started all ranks again
  // Identifies this host's launcher: it stays the same at every restart, and no other job has it.
  // Empty without a launcher that restarts ranks.
  std::string id;
  uint16_t master_port = 0;  // where rank 0 serves the rendezvous; unused by a single rank
  std::string token;         // MTRAIN_TOKEN (launch/job_token.h); never print it
  std::string token_file;    // the file that the user names instead
};

// Reads the variables of mtrain-launch and torchrun, or of Slurm's srun, Open MPI's mpirun, or PMI.
// MASTER_ADDR and MASTER_PORT override the address that follows from the others. Without a launcher
// the job has one rank. Throws UserError where a variable is not a number or is out of range.
Job job_from_environment();

}  // namespace mtrain::launch
