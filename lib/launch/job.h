// Which rank of which job this process is, as its launcher says in the environment.
#pragma once
#include <cstdint>
#include <string>

namespace mtrain::launch {

struct Job {
  int rank = 0, size = 1;              // of all ranks
  int local_rank = 0, local_size = 1;  // of those on this host
  std::string master_addr = "localhost";
  int restarts = 0;  // how often the launcher has started all ranks again
  // Names this host's launcher: the same at every restart, and never that of another job. Empty
  // without a launcher that starts ranks again.
  std::string id;
  uint16_t master_port = 0;  // where rank 0 serves the rendezvous; of no use for a single rank
};

// Reads what mtrain-launch and torchrun set, or Slurm's srun, Open MPI's mpirun, or PMI;
// MASTER_ADDR and MASTER_PORT win over what follows from the others. Without a launcher: one rank
// alone. Throws UserError where a variable is no number or out of range.
Job job_from_environment();

}  // namespace mtrain::launch
