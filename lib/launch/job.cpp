#include "launch/job.h"

#include <charconv>
#include <cstdlib>
#include <functional>
#include <optional>

#include "base/error.h"

namespace mtrain {

namespace {

std::optional<std::string> variable(const char* name) {
  const char* text = name ? std::getenv(name) : nullptr;
  if (!text || !*text) return std::nullopt;
  return text;
}

int number(const char* name, int least, int most) {
  const std::string text = *variable(name);
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < least || n > most)
    throw UserError(fmt::format("{}={} is not a number from {} to {}", name, text, least, most),
                    "the launcher sets it; unset it to run alone");
  return n;
}

struct Launcher {
  const char *rank, *size, *local_rank, *local_size;
  const char* job;  // tells jobs apart: a port follows from it
};

constexpr int kMostRanks = 1 << 24;
constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", nullptr},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"}};

// First host of a Slurm list such as "node[003-006,9],x1".
std::string first_host(const std::string& list) {
  const size_t open = list.find('['), comma = list.find(',');
  if (open == std::string::npos || comma < open) return list.substr(0, comma);
  return list.substr(0, open) + list.substr(open + 1, list.find_first_of("-,]", open) - open - 1);
}

// Jobs of one host meet at different ports.
uint16_t port_of_job(const std::optional<std::string>& job) {
  constexpr size_t kFirst = 20000, kPorts = 10000;
  return uint16_t(kFirst + (job ? std::hash<std::string>()(*job) % kPorts : 0));
}

}  // namespace

Job job_from_environment() {
  Job job;
  for (const Launcher& l : kLaunchers) {
    // The rank beside the size tells a launcher from a shell inside an allocation, which has the
    // size alone.
    if (!variable(l.rank) || !variable(l.size)) continue;
    job.size = number(l.size, 1, kMostRanks);
    job.rank = number(l.rank, 0, job.size - 1);
    if (variable(l.local_size)) job.local_size = number(l.local_size, 1, kMostRanks);
    if (variable(l.local_rank)) job.local_rank = number(l.local_rank, 0, kMostRanks);
    job.master_port = port_of_job(variable(l.job));
    break;
  }
  if (const auto nodes = variable("SLURM_JOB_NODELIST")) job.master_addr = first_host(*nodes);
  if (const auto address = variable("MASTER_ADDR")) job.master_addr = *address;
  if (variable("MASTER_PORT")) {
    job.master_port = uint16_t(number("MASTER_PORT", 1, 65535));
    // torchrun's own store sits at that port.
    if (variable("TORCHELASTIC_USE_AGENT_STORE") == "True") ++job.master_port;
  }
  return job;
}

}  // namespace mtrain
