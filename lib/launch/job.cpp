#include "launch/job.h"

#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>

#include "base/error.h"
#include "launch/host_list.h"
#include "launch/job_token.h"
#include "launch/torchrun_options.h"

namespace mtrain::launch {

namespace {

std::optional<std::string> variable(const char* name) {
  const char* text = name ? std::getenv(name) : nullptr;
  if (!text || !*text) return std::nullopt;
  return text;
}

int number_of_variable(const char* name, int least, int most) {
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
  const char *job, *step;  // identify the job and determine its port
};

constexpr int kMaxRanks = 1 << 24;
constexpr Launcher kTorchrun = {"RANK",  "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                nullptr, nullptr};
constexpr Launcher kOpenMpi = {
    "OMPI_COMM_WORLD_RANK",       "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE",       nullptr};
constexpr Launcher kPmi = {"PMI_RANK",        "PMI_SIZE",  "MPI_LOCALRANKID",
                           "MPI_LOCALNRANKS", "PMI_JOBID", nullptr};
// SLURM_NTASKS belongs to the full allocation; a batch script has it and a SLURM_PROCID, too. Only
// a step that srun has started has the size of the step.
constexpr Launcher kSlurm = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                             nullptr,        "SLURM_JOB_ID",         "SLURM_STEP_ID"};

bool has(const Launcher& l) { return variable(l.rank) && variable(l.size); }

// srun --mpi=pmi2 also sets the variables of PMI, but not the number of ranks on the host.
bool is_pmi_of_slurm() {
  return has(kSlurm) && variable(kPmi.rank) == variable(kSlurm.rank) &&
         variable(kPmi.size) == variable(kSlurm.size);
}

// Whether a launcher that starts ranks has set RANK and WORLD_SIZE. A shell may have them, too.
bool has_torchrun() { return variable("MTRAIN_JOB_ID") || variable("TORCHELASTIC_RUN_ID"); }

const Launcher* find_launcher(bool by_hand) {
  if (has(kTorchrun) && (by_hand || has_torchrun())) return &kTorchrun;
  if (has(kOpenMpi)) return &kOpenMpi;
  if (has(kPmi) && !is_pmi_of_slurm()) return &kPmi;
  return has(kSlurm) ? &kSlurm : nullptr;
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
  return tasks_of_node(*tasks, number_of_variable("SLURM_NODEID", 0, kMaxRanks))
      .value_or(otherwise);
}

// Different jobs get different ports: two jobs on one host must not connect to each other.
uint16_t port_of_job(const std::string& job) {
  constexpr size_t kFirst = 20000, kPorts = 10000;
  return uint16_t(kFirst + (job.empty() ? 0 : std::hash<std::string>()(job) % kPorts));
}

// torchrun sets no unique name, but keeps the error files of all restarts in a folder that it has
// made for this job: <folder>/attempt_<restart>/<local rank>/error.json.
std::string job_id() {
  if (const auto id = variable("MTRAIN_JOB_ID")) return variable(kSharedJobVariable).value_or(*id);
  const std::string file = variable("TORCHELASTIC_ERROR_FILE").value_or("");
  const size_t attempt = file.rfind("/attempt_");
  return attempt == std::string::npos ? "" : file.substr(0, attempt);
}

// Returns the host of rank 0, as far as Slurm knows it.
std::optional<std::string> master_of(const Launcher& l, const Job& job) {
  const bool slurm = &l == &kSlurm;
  // mpirun starts rank 0 on the first host of the allocation.
  const bool mpi_hosts = (&l == &kOpenMpi || &l == &kPmi) && job.size > job.local_size;
  const auto nodes = slurm       ? variable("SLURM_STEP_NODELIST")
                     : mpi_hosts ? variable("SLURM_JOB_NODELIST")
                                 : std::nullopt;
  return nodes ? std::optional(expand_hosts(*nodes, 1).front()) : std::nullopt;
}

Job read_job(bool by_hand) {
  Job job;
  for (const char* count : {"MTRAIN_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"})
    if (variable(count)) job.restarts = number_of_variable(count, 0, kMaxRanks);
  if (variable("MTRAIN_RESTARTS_LEFT"))
    job.restarts_left =
        number_of_variable("MTRAIN_RESTARTS_LEFT", 0, std::numeric_limits<int>::max());
  job.id = job_id();
  job.token = variable(kTokenVariable).value_or("");
  job.name = variable(kJobNameVariable).value_or("");
  job.served = variable(kServedVariable) == "1";
  if (job.served) job.served_at = variable(kServedAtVariable).value_or("");
  const Launcher* l = find_launcher(by_hand);
  if (!l) return job;
  job.launched = true;
  job.size = number_of_variable(l->size, 1, kMaxRanks);
  job.rank = number_of_variable(l->rank, 0, job.size - 1);
  if (variable(l->local_size)) job.local_size = number_of_variable(l->local_size, 1, kMaxRanks);
  if (variable(l->local_rank)) job.local_rank = number_of_variable(l->local_rank, 0, kMaxRanks);
  if (l == &kSlurm) job.local_size = slurm_local_size(job.local_size);
  const auto id = variable(l->job), step = variable(l->step);
  job.master_port = port_of_job(id.value_or("") + (step ? "." + *step : ""));
  if (const auto master = master_of(*l, job)) job.master_addr = *master;
  if (const auto address = variable("MASTER_ADDR"))
    job.master_addr = parse_host("MASTER_ADDR", *address);
  if (variable("MASTER_PORT")) {
    job.master_port = uint16_t(number_of_variable("MASTER_PORT", 1, 65535));
    // torchrun's own store uses that port.
    if (variable("TORCHELASTIC_USE_AGENT_STORE") == "True") ++job.master_port;
  }
  return job;
}

}  // namespace

Job job_from_environment() { return read_job(/*by_hand=*/true); }
Job started_job_from_environment() { return read_job(/*by_hand=*/false); }

}  // namespace mtrain::launch
