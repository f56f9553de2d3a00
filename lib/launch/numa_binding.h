// Binds the ranks of a host to CPUs, with the modes of torchrun's --numa-binding. Memory needs no
// binding: Linux places a page on the node of the CPU that first writes to it.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mtrain::launch {

enum class NumaBinding { none, node, socket, exclusive, core_complex };

using CpuList = std::vector<int>;  // numbers of CPUs, in ascending order

// The CPUs that ranks may use, and where they and the GPUs are.
struct HostCpus {
  // CPUs that share a core have the same `core`: the lowest number of them. So do those that share
  // their largest cache; -1: the system does not report caches.
  struct Cpu {
    int number = 0, node = 0, core = 0, cache = -1;
  };
  std::vector<Cpu> cpus;  // in ascending order
  // A node's socket is that of its lowest CPU, which need not be usable.
  std::map<int, int> socket_of_node;
  // NUMA node of the GPU of each local rank, up to the first that is unknown. Empty: the ranks use
  // no GPU, or none is known.
  std::vector<int> gpu_nodes;
  std::string unknown_gpu;  // why the node of the next GPU is unknown; empty: there is none
};

// Returns the CPUs that this process may use. Throws RunError if the system does not report them.
CpuList allowed_cpus();
// `visible_devices` is the value of CUDA_VISIBLE_DEVICES in ranks; nothing: they may use all GPUs.
// GPUs have the numbers of CUDA_DEVICE_ORDER=PCI_BUS_ID. `root` is the root of the file system;
// tests have others.
HostCpus read_host_cpus(const CpuList& allowed, const std::optional<std::string>& visible_devices,
                        const std::filesystem::path& root = "/");

// Returns the CPUs of each local rank; an empty vector for NumaBinding::none. A rank's node is that
// of its GPU. If fewer GPUs than ranks are known, the ranks are divided over the nodes in
// proportion to their usable cores. Throws UserError if a rank would have no CPU, or no core of its
// own if it needs one.
std::vector<CpuList> cpus_of_ranks(const HostCpus& host, NumaBinding binding, int ranks);

// Returns a warning if the host has GPUs but cpus_of_ranks() cannot follow them; otherwise "".
std::string unknown_gpus_text(const HostCpus& host, int ranks);

// Returns a rank's part of its CPUs, which other ranks may have too; at least 1.
int threads_of_rank(const std::vector<CpuList>& cpus, int local_rank);

// Writes "CPU 5" or "CPUs 0-3,8".
std::string cpus_text(const CpuList& cpus);
// Describes the CPUs of all ranks: "ranks 0-3 on CPUs 0-31,64-95, ranks 4-7 on CPUs 32-63,96-127".
std::string binding_text(const std::vector<CpuList>& cpus, int first_rank);

// The variable by which the launcher passes threads_of_rank() to a rank that it binds.
constexpr const char* kThreadsVariable = "MTRAIN_BOUND_THREADS";
// Returns its value, at most usable_cores(); nothing in a process that is not bound. A program that
// a bound rank starts inherits the variable, as it inherits the CPUs.
std::optional<int> threads_if_bound();

}  // namespace mtrain::launch
