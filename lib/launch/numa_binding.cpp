#include "launch/numa_binding.h"

#include <sched.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/strings.h"
#include "base/usable_cores.h"

namespace mtrain::launch {

namespace {

namespace fs = std::filesystem;
using Cpu = HostCpus::Cpu;

std::string file_text(const fs::path& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return std::string(trim(text));
}

std::optional<int> whole_number(std::string_view text) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return n;
}

std::optional<int> file_number(const fs::path& path) { return whole_number(file_text(path)); }

// Reads a list such as "0-3,8" of a file of /sys. Parts that are not numbers are left out.
CpuList file_list(const fs::path& path) {
  CpuList list;
  for (const std::string& part : split(file_text(path), ',')) {
    const size_t dash = part.find('-');
    const auto first = whole_number(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : whole_number(part.substr(dash + 1));
    if (!first || !last) continue;
    for (int n = *first; n <= *last; ++n) list.push_back(n);
  }
  std::ranges::sort(list);
  return list;
}

// Names of the entries of a folder, sorted; none if it cannot be read.
std::vector<std::string> entry_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

// The number in a name such as "node12"; nothing for other names.
std::optional<int> number_after(std::string_view prefix, std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  return whole_number(name.substr(prefix.size()));
}

int lowest_or(const CpuList& list, int otherwise) { return list.empty() ? otherwise : list[0]; }

// Instructions have caches of their own, which do not count.
int largest_cache(const fs::path& cpu) {
  int cache = -1, largest = -1;
  for (const std::string& name : entry_names(cpu / "cache")) {
    const fs::path folder = cpu / "cache" / name;
    const std::string type = file_text(folder / "type");
    const int level = file_number(folder / "level").value_or(-1);
    if ((type != "Unified" && type != "Data") || level <= largest) continue;
    largest = level;
    cache = lowest_or(file_list(folder / "shared_cpu_list"), -1);
  }
  return cache;
}

std::map<int, int> node_of_each_cpu(const fs::path& root) {
  std::map<int, int> nodes;
  const fs::path folder = root / "sys/devices/system/node";
  for (const std::string& name : entry_names(folder))
    if (const auto node = number_after("node", name))
      for (const int cpu : file_list(folder / name / "cpulist")) nodes[cpu] = *node;
  return nodes;
}

struct Gpu {
  std::string address, uuid;
  std::optional<int> node;
};

// Returns the value of a line "<name>: <value>" of the driver's file about a GPU; "" without one.
std::string driver_value(const fs::path& information, std::string_view name) {
  std::ifstream file(information);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ':')
      return std::string(trim(std::string_view(line).substr(name.size() + 1)));
  return "";
}

// Returns the GPUs that this process may use, in the order of their addresses on the bus. A
// container's driver also lists GPUs that the container may not open. CUDA does not count those.
// The keys of `nodes` are those with CPUs. A GPU that names another one is near no CPU.
std::vector<Gpu> usable_gpus(const fs::path& root, const std::map<int, int>& nodes) {
  std::vector<Gpu> gpus;
  const fs::path folder = root / "proc/driver/nvidia/gpus";
  for (const std::string& address : entry_names(folder)) {
    const fs::path information = folder / address / "information";
    const std::string minor = driver_value(information, "Device Minor");
    // access() also asks the device cgroup, and does not start the GPU as open() would.
    if (!minor.empty() && access((root / ("dev/nvidia" + minor)).c_str(), R_OK | W_OK) != 0)
      continue;
    auto node = file_number(root / "sys/bus/pci/devices" / address / "numa_node");
    if (!node || !nodes.contains(*node))
      node = nodes.size() == 1 ? std::optional(nodes.begin()->first) : std::nullopt;
    gpus.push_back(
        {.address = address, .uuid = driver_value(information, "GPU UUID"), .node = node});
  }
  return gpus;
}

// Whether this process may use a GPU that the driver does not list.
bool has_device_file(const fs::path& root) {
  return std::ranges::any_of(entry_names(root / "dev"), [&](const std::string& name) {
    return number_after("nvidia", name) && access((root / "dev" / name).c_str(), R_OK | W_OK) == 0;
  });
}

// Like CUDA, accepts the first characters of a UUID if no other GPU has them. Null: no such GPU.
const Gpu* gpu_with_uuid(const std::vector<Gpu>& gpus, std::string_view prefix) {
  const auto matches = [&](const Gpu& gpu) { return gpu.uuid.starts_with(prefix); };
  return std::ranges::count_if(gpus, matches) == 1 ? &*std::ranges::find_if(gpus, matches)
                                                   : nullptr;
}

// The GPUs that ranks use, in the order of local ranks, up to the first that is unknown.
struct ChosenGpus {
  std::vector<const Gpu*> gpus;
  std::string unknown;  // why; empty: all are known
};

// CUDA uses the devices of the list up to the first that does not exist.
ChosenGpus gpus_chosen_by(const std::string& visible_devices, const std::vector<Gpu>& all) {
  ChosenGpus chosen;
  for (const std::string& word : split(visible_devices, ',')) {
    const std::string_view device = trim(word);
    const auto index = whole_number(device);
    const Gpu* named = nullptr;
    if (index && *index >= 0 && size_t(*index) < all.size()) named = &all[size_t(*index)];
    if (device.starts_with("GPU-")) named = gpu_with_uuid(all, device);
    if (!named) {
      if (device.starts_with("GPU-") || device.starts_with("MIG-"))
        chosen.unknown = fmt::format(
            "CUDA_VISIBLE_DEVICES names {}, which is not the UUID of one of the {} "
            "GPU{} that the driver lists",
            device, all.size(), all.size() == 1 ? "" : "s");
      break;
    }
    chosen.gpus.push_back(named);
  }
  return chosen;
}

// Finds the nodes of the GPUs of local ranks.
void find_gpu_nodes(HostCpus& host, const std::optional<std::string>& visible_devices,
                    const fs::path& root) {
  const std::vector<Gpu> all = usable_gpus(root, host.socket_of_node);
  const bool none_visible = visible_devices && trim(*visible_devices).empty();
  if (all.empty() && !none_visible && has_device_file(root)) {
    host.unknown_gpu = "/proc/driver/nvidia/gpus does not list them";
    return;
  }
  ChosenGpus chosen;
  if (visible_devices)
    chosen = gpus_chosen_by(*visible_devices, all);
  else
    for (const Gpu& gpu : all) chosen.gpus.push_back(&gpu);
  host.unknown_gpu = chosen.unknown;
  for (const Gpu* gpu : chosen.gpus) {
    if (!gpu->node) {
      host.unknown_gpu =
          fmt::format("the system does not report the NUMA node of GPU {}", gpu->address);
      return;
    }
    host.gpu_nodes.push_back(*gpu->node);
  }
}

std::vector<Cpu> cpus_of_node(const HostCpus& host, int node) {
  std::vector<Cpu> cpus;
  std::ranges::copy_if(host.cpus, std::back_inserter(cpus),
                       [&](const Cpu& c) { return c.node == node; });
  return cpus;
}

CpuList numbers_of(const std::vector<Cpu>& cpus) {
  CpuList numbers;
  for (const Cpu& c : cpus) numbers.push_back(c.number);
  return numbers;
}

// Returns how many ranks each node gets. The next rank goes to the node that then has most cores
// for each of its ranks. If fewer ranks are left than such nodes, every second or third node gets
// one: two ranks on four nodes are then on two sockets.
std::map<int, int> ranks_of_nodes(const HostCpus& host, int ranks) {
  std::map<int, std::set<int>> cores;
  for (const Cpu& c : host.cpus) cores[c.node].insert(c.core);
  MT_CHECK(!cores.empty(), "a process without a CPU");
  std::map<int, int> counts;
  for (int left = ranks; left > 0;) {
    double most = 0;
    std::vector<int> best;
    for (const auto& [node, own] : cores) {
      const double share = double(own.size()) / (counts[node] + 1);
      if (share > most) best.clear();
      if (share >= most) best.push_back(node);
      most = std::max(most, share);
    }
    const int given = std::min(left, int(best.size()));
    for (int i = 0; i < given; ++i) ++counts[best[size_t(i) * best.size() / size_t(given)]];
    left -= given;
  }
  return counts;
}

std::vector<int> nodes_of_ranks(const HostCpus& host, int ranks) {
  if (host.gpu_nodes.size() >= size_t(ranks))
    return {host.gpu_nodes.begin(), host.gpu_nodes.begin() + ranks};
  std::vector<int> nodes;
  for (const auto& [node, count] : ranks_of_nodes(host, ranks))
    nodes.insert(nodes.end(), size_t(count), node);
  return nodes;
}

CpuList cpus_of_socket(const HostCpus& host, int node) {
  const int socket = host.socket_of_node.at(node);
  CpuList numbers;
  for (const Cpu& c : host.cpus)
    if (host.socket_of_node.at(c.node) == socket) numbers.push_back(c.number);
  return numbers;
}

// Returns the CPUs of each core or cache, in the order of their lowest numbers.
std::vector<CpuList> groups_by(const std::vector<Cpu>& cpus, int Cpu::*shared) {
  std::map<int, CpuList> groups;
  for (const Cpu& c : cpus) groups[c.*shared].push_back(c.number);
  std::vector<CpuList> lists;
  for (auto& [key, list] : groups) lists.push_back(std::move(list));
  return lists;
}

// Divides the cores of a node over its ranks. The first ranks get the cores that are left over.
CpuList own_cores(const std::vector<Cpu>& cpus, int node, size_t ranks, size_t index) {
  const std::vector<CpuList> cores = groups_by(cpus, &Cpu::core);
  if (cores.size() < ranks)
    throw UserError(
        fmt::format("--numa_binding=exclusive: {} ranks need a core each, but of NUMA node {} this "
                    "process may use {} core{} with {} CPU{}",
                    ranks, node, cores.size(), cores.size() == 1 ? "" : "s", cpus.size(),
                    cpus.size() == 1 ? "" : "s"),
        "start fewer ranks on this host, or share its cores with --numa_binding=node");
  const size_t each = cores.size() / ranks, left = cores.size() % ranks;
  const size_t first = index * each + std::min(index, left);
  CpuList numbers;
  for (size_t i = first; i < first + each + (index < left ? 1 : 0); ++i)
    numbers.insert(numbers.end(), cores[i].begin(), cores[i].end());
  std::ranges::sort(numbers);
  return numbers;
}

// The caches of which most CPUs are usable come first. More ranks than caches share them.
CpuList own_cache(const std::vector<Cpu>& cpus, size_t index) {
  std::vector<CpuList> caches = groups_by(cpus, &Cpu::cache);
  std::ranges::stable_sort(caches,
                           [](const CpuList& a, const CpuList& b) { return a.size() > b.size(); });
  return caches[index % caches.size()];
}

// Writes "0-3,8". `numbers` are in ascending order.
std::string ranges_of(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    parts.push_back(end == i + 1 ? std::to_string(numbers[i])
                                 : fmt::format("{}-{}", numbers[i], numbers[end - 1]));
    i = end;
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

}  // namespace

CpuList allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0)
    throw RunError(fmt::format("the CPUs that ranks may use are unknown: {}", std::strerror(errno)),
                   "leave --numa_binding out");
  CpuList allowed;
  for (int n = 0; n < CPU_SETSIZE; ++n)
    if (CPU_ISSET(n, &set)) allowed.push_back(n);
  return allowed;
}

HostCpus read_host_cpus(const CpuList& allowed, const std::optional<std::string>& visible_devices,
                        const fs::path& root) {
  HostCpus host;
  const std::map<int, int> nodes = node_of_each_cpu(root);
  const auto folder_of = [&](int cpu) {
    return root / fmt::format("sys/devices/system/cpu/cpu{}", cpu);
  };
  const auto socket_of = [&](int cpu) {
    return file_number(folder_of(cpu) / "topology/physical_package_id").value_or(0);
  };
  for (const auto& [cpu, node] : nodes)
    if (!host.socket_of_node.contains(node)) host.socket_of_node[node] = socket_of(cpu);
  for (const int n : allowed) {
    const fs::path cpu = folder_of(n);
    const auto found = nodes.find(n);
    const int node = found == nodes.end() ? 0 : found->second;
    host.socket_of_node.emplace(node, socket_of(n));
    host.cpus.push_back({.number = n,
                         .node = node,
                         .core = lowest_or(file_list(cpu / "topology/thread_siblings_list"), n),
                         .cache = largest_cache(cpu)});
  }
  find_gpu_nodes(host, visible_devices, root);
  return host;
}

std::vector<CpuList> cpus_of_ranks(const HostCpus& host, NumaBinding binding, int ranks) {
  if (binding == NumaBinding::none) return {};
  const std::vector<int> nodes = nodes_of_ranks(host, ranks);
  std::vector<CpuList> lists;
  for (int rank = 0; rank < ranks; ++rank) {
    const int node = nodes[size_t(rank)];
    const std::vector<Cpu> cpus = cpus_of_node(host, node);
    const bool whole_socket = binding == NumaBinding::socket;
    const CpuList of_socket = whole_socket ? cpus_of_socket(host, node) : CpuList{};
    if (whole_socket ? of_socket.empty() : cpus.empty())
      throw UserError(
          fmt::format("--numa_binding: the GPU of local rank {} is on NUMA node {}, but this "
                      "process may use no CPU of that {}",
                      rank, node, whole_socket ? "node's socket" : "node"),
          "allow CPUs there (taskset, or the CPU set of the container), or leave "
          "--numa_binding out");
    const auto of_node = size_t(std::ranges::count(nodes, node));
    const auto index = size_t(std::count(nodes.begin(), nodes.begin() + rank, node));
    switch (binding) {
      case NumaBinding::none: break;
      case NumaBinding::node: lists.push_back(numbers_of(cpus)); break;
      case NumaBinding::socket: lists.push_back(of_socket); break;
      case NumaBinding::exclusive: lists.push_back(own_cores(cpus, node, of_node, index)); break;
      case NumaBinding::core_complex: lists.push_back(own_cache(cpus, index)); break;
    }
  }
  return lists;
}

int threads_of_rank(const std::vector<CpuList>& cpus, int local_rank) {
  const CpuList& own = cpus[size_t(local_rank)];
  return std::max(1, int(own.size()) / int(std::ranges::count(cpus, own)));
}

std::string unknown_gpus_text(const HostCpus& host, int ranks) {
  const size_t known = host.gpu_nodes.size();
  if (known >= size_t(ranks) || (known == 0 && host.unknown_gpu.empty())) return "";
  const std::string why = !host.unknown_gpu.empty()
                              ? host.unknown_gpu
                              : fmt::format("this host has {} visible GPU{} for {} ranks", known,
                                            known == 1 ? "" : "s", ranks);
  return fmt::format(
      "--numa_binding cannot follow the GPUs: {}; ranks are divided over the NUMA "
      "nodes in proportion to their cores",
      why);
}

std::string cpus_text(const CpuList& cpus) {
  return fmt::format("CPU{} {}", cpus.size() == 1 ? "" : "s", ranges_of(cpus));
}

std::string binding_text(const std::vector<CpuList>& cpus, int first_rank) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[i]) ++end;
    const int first = first_rank + int(i), last = first_rank + int(end) - 1;
    const std::string ranks =
        first == last ? fmt::format("rank {}", first) : fmt::format("ranks {}-{}", first, last);
    parts.push_back(fmt::format("{} on {}", ranks, cpus_text(cpus[i])));
    i = end;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::optional<int> threads_if_bound() {
  const char* text = std::getenv(kThreadsVariable);
  const auto threads = text ? whole_number(text) : std::nullopt;
  if (!threads || *threads < 1) return std::nullopt;
  return std::min(*threads, usable_cores());
}

}  // namespace mtrain::launch
