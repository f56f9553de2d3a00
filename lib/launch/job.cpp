#include "launch/job.h"

#include <charconv>
#include <cstdlib>
#include <functional>
#include <optional>

#include "base/error.h"
#include "launch/job_token.h"

namespace mtrain::launch {

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
  const char *job, *step;  // identify the job; its port follows from them
};

constexpr int kMaxRanks = 1 << 24;
constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", nullptr, nullptr},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID",
     "SLURM_STEP_ID"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", nullptr},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID", nullptr}};

// Returns the first host of a Slurm list such as "node[003-006,9],x1".
std::string first_host(const std::string& list) {
  const size_t open = list.find('['), comma = list.find(',');
  if (open == std::string::npos || comma < open) return list.substr(0, comma);
  return list.substr(0, open) + list.substr(open + 1, list.find_first_of("-,]", open) - open - 1);
}

// Returns the number of tasks on node number `node`, from Slurm's list of tasks per node, such as
// "4(x3),2".
std::optional<int> tasks_of_node(const std::string& list, int node) {
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string part = list.substr(at, end - at);
    const size_t times = part.find("(x");
    const int nodes = times == std::string::npos ? 1 : std::atoi(part.c_str() + times + 2);
    if (node < nodes) return std::atoi(part.c_str());
    node -= nodes;
    at = end + 1;
  }
  return std::nullopt;
}

// Returns the number of ranks on this host. srun may have started different numbers on different
// hosts.
int slurm_local_size(int otherwise) {
  const auto tasks = variable("SLURM_STEP_TASKS_PER_NODE");
  if (!tasks || !variable("SLURM_NODEID")) return otherwise;
  return tasks_of_node(*tasks, number("SLURM_NODEID", 0, kMaxRanks)).value_or(otherwise);
}

// Different jobs get different ports, so that two jobs on one host do not meet.
uint16_t port_of_job(const std::string& job) {
  constexpr size_t kFirst = 20000, kPorts = 10000;
  return uint16_t(kFirst + (job.empty() ? 0 : std::hash<std::string>()(job) % kPorts));
}

// torchrun sets no unique name, but keeps the error files of all restarts in a folder that it has
// made for this job: <folder>/attempt_<restart>/<local rank>/error.json.
std::string job_id() {
  if (const auto id = variable("MTRAIN_JOB_ID")) return *id;
  const std::string file = variable("TORCHELASTIC_ERROR_FILE").value_or("");
  const size_t attempt = file.rfind("/attempt_");
  return attempt == std::string::npos ? "" : file.substr(0, attempt);
}

}  // namespace

Job job_from_environment() {
  Job job;
  for (const Launcher& l : kLaunchers) {
    // A launcher sets rank and size; a shell inside an allocation has the size alone.
    if (!variable(l.rank) || !variable(l.size)) continue;
    job.size = number(l.size, 1, kMaxRanks);
    job.rank = number(l.rank, 0, job.size - 1);
    if (variable(l.local_size)) job.local_size = number(l.local_size, 1, kMaxRanks);
    if (variable(l.local_rank)) job.local_rank = number(l.local_rank, 0, kMaxRanks);
    if (std::string_view(l.rank) == "SLURM_PROCID")
      job.local_size = slurm_local_size(job.local_size);
    const auto id = variable(l.job), step = variable(l.step);
    job.master_port = port_of_job(id.value_or("") + (step ? "." + *step : ""));
    break;
  }
  // The step's list overrides the job's, since a step may run on only some of the job's nodes.
  for (const char* list : {"SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"})
    if (const auto nodes = variable(list)) job.master_addr = first_host(*nodes);
  if (const auto address = variable("MASTER_ADDR")) job.master_addr = *address;
  if (variable("MASTER_PORT")) {
    job.master_port = uint16_t(number("MASTER_PORT", 1, 65535));
    // torchrun's own store uses that port.
    if (variable("TORCHELASTIC_USE_AGENT_STORE") == "True") ++job.master_port;
  }
  for (const char* count : {"MTRAIN_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"})
    if (variable(count)) job.restarts = number(count, 0, kMaxRanks);
  job.id = job_id();
  job.token = variable(kTokenVariable).value_or("");
  return job;
}

}  // namespace mtrain::launch
