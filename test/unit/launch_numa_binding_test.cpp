// Tests to which CPUs ranks are bound, on made-up hosts.
#include <catch2/catch.hpp>

#include <algorithm>
#include <fstream>
#include <numeric>

#include <fmt/core.h>

#include "base/error.h"
#include "base/usable_cores.h"
#include "launch/agent.h"
#include "launch/numa_binding.h"
#include "test/support/environment.h"
#include "test/support/temporary_folder.h"

namespace launch_numa_binding_test {

using namespace mtrain;
using namespace mtrain::launch;
using Catch::Matchers::Contains;
using Lists = std::vector<CpuList>;
namespace fs = std::filesystem;

namespace {

CpuList from_to(int first, int last) {
  CpuList list(size_t(last - first + 1));
  std::iota(list.begin(), list.end(), first);
  return list;
}

CpuList joined(CpuList a, const CpuList& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Host : TemporaryFolder {
  void file(const fs::path& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text << "\n";
  }
  static fs::path cpu(int n) { return fs::path(fmt::format("sys/devices/system/cpu/cpu{}", n)); }
  void node(int n, const std::string& cpus) const {
    file(fmt::format("sys/devices/system/node/node{}/cpulist", n), cpus);
  }
  void core(int n, int socket, const std::string& siblings) const {
    file(cpu(n) / "topology/physical_package_id", std::to_string(socket));
    file(cpu(n) / "topology/thread_siblings_list", siblings);
  }
  void cache(int n, int index, int level, const std::string& type, const std::string& cpus) const {
    const fs::path folder = cpu(n) / fmt::format("cache/index{}", index);
    file(folder / "level", std::to_string(level));
    file(folder / "type", type);
    file(folder / "shared_cpu_list", cpus);
  }
  static fs::path device(int minor) { return fmt::format("dev/nvidia{}", minor); }
  void gpu(const std::string& address, int node, int minor, const std::string& uuid) const {
    file(fs::path("proc/driver/nvidia/gpus") / address / "information",
         fmt::format("Model: \t\t NVIDIA H100\nGPU UUID: \t {}\nDevice Minor: \t {}", uuid, minor));
    file(fs::path("sys/bus/pci/devices") / address / "numa_node", std::to_string(node));
    file(device(minor), "");
  }
  HostCpus read(const CpuList& allowed,
                const std::optional<std::string>& visible_devices = std::nullopt) const {
    return read_host_cpus(allowed, visible_devices, path);
  }
};

// Two sockets with two nodes each, and 4 cores with two CPUs each in a node: CPU n and CPU n + 16
// share a core, and two cores share an L3 cache. Two GPUs are on each node; the first addresses on
// the bus are those of node 3. GPU n has the minor number 7 - n and the UUID "GPU-n0000000-...".
struct LargeHost : Host {
  LargeHost() {
    for (int n = 0; n < 4; ++n)
      node(n, fmt::format("{}-{},{}-{}", 4 * n, 4 * n + 3, 4 * n + 16, 4 * n + 19));
    for (int n = 0; n < 32; ++n) {
      const int core_number = n % 16, first = core_number / 2 * 2;
      const std::string siblings = fmt::format("{},{}", core_number, core_number + 16);
      core(n, core_number / 8, siblings);
      cache(n, 0, 1, "Data", siblings);
      cache(n, 1, 1, "Instruction", siblings);
      cache(n, 2, 2, "Unified", siblings);
      cache(n, 3, 3, "Unified",
            fmt::format("{}-{},{}-{}", first, first + 1, first + 16, first + 17));
    }
  }
  void gpus() const {
    for (int n = 0; n < 8; ++n)
      gpu(fmt::format("0000:{:x}0:00.0", n + 1), 3 - n / 2, 7 - n,
          fmt::format("GPU-{}0000000-d72c-4106-c12f-20bd9faed9f6", n));
  }
};

CpuList node_of_large_host(int n) {
  return joined(from_to(4 * n, 4 * n + 3), from_to(4 * n + 16, 4 * n + 19));
}

}  // namespace

TEST_CASE("the place of each CPU is read from the system") {
  const LargeHost host;
  host.gpus();
  const HostCpus cpus = host.read(from_to(0, 31));
  REQUIRE(cpus.cpus.size() == 32);
  const HostCpus::Cpu& c = cpus.cpus[27];
  CHECK(c.number == 27);
  CHECK(c.node == 2);
  CHECK(cpus.socket_of_node.at(2) == 1);
  CHECK(c.core == 11);
  CHECK(c.cache == 10);
  CHECK(cpus.gpu_nodes == std::vector<int>{3, 3, 2, 2, 1, 1, 0, 0});
}

TEST_CASE("ranks are not bound without a mode") {
  CHECK(cpus_of_ranks(LargeHost().read(from_to(0, 31)), NumaBinding::none, 4).empty());
}

TEST_CASE("a rank is bound near its GPU") {
  const LargeHost host;
  host.gpus();
  const HostCpus cpus = host.read(from_to(0, 31));
  SECTION("node: to all CPUs of the GPU's node") {
    const Lists lists = cpus_of_ranks(cpus, NumaBinding::node, 8);
    REQUIRE(lists.size() == 8);
    for (int rank = 0; rank < 8; ++rank) {
      CHECK(lists[size_t(rank)] == node_of_large_host(3 - rank / 2));
      CHECK(threads_of_rank(lists, rank) == 4);
    }
  }
  SECTION("socket: to all CPUs of all nodes of the socket") {
    const Lists lists = cpus_of_ranks(cpus, NumaBinding::socket, 8);
    for (int rank = 0; rank < 8; ++rank) {
      CHECK(lists[size_t(rank)] == (rank < 4 ? joined(from_to(8, 15), from_to(24, 31))
                                             : joined(from_to(0, 7), from_to(16, 23))));
      CHECK(threads_of_rank(lists, rank) == 4);
    }
  }
  SECTION("exclusive: to cores that no other rank has, with both CPUs of each") {
    const Lists lists = cpus_of_ranks(cpus, NumaBinding::exclusive, 8);
    CHECK(lists[0] == CpuList{12, 13, 28, 29});
    CHECK(lists[1] == CpuList{14, 15, 30, 31});
    CHECK(lists[7] == CpuList{2, 3, 18, 19});
    CpuList all;
    for (const CpuList& list : lists) all = joined(all, list);
    std::ranges::sort(all);
    CHECK(all == from_to(0, 31));
    CHECK(threads_of_rank(lists, 7) == 4);
  }
  SECTION("exclusive, with fewer ranks than GPUs: a rank has what no other rank needs") {
    const Lists lists = cpus_of_ranks(cpus, NumaBinding::exclusive, 3);
    CHECK(lists == Lists{{12, 13, 28, 29}, {14, 15, 30, 31}, node_of_large_host(2)});
  }
  SECTION("core-complex: to CPUs that share a cache") {
    const Lists lists = cpus_of_ranks(cpus, NumaBinding::core_complex, 4);
    CHECK(lists == Lists{{12, 13, 28, 29}, {14, 15, 30, 31}, {8, 9, 24, 25}, {10, 11, 26, 27}});
  }
}

TEST_CASE("CUDA_VISIBLE_DEVICES chooses the GPUs of ranks by their numbers") {
  const LargeHost host;
  host.gpus();
  const auto nodes = [&](const char* visible) {
    const HostCpus read = host.read(from_to(0, 31), visible);
    CHECK(read.unknown_gpu == "");
    return read.gpu_nodes;
  };
  CHECK(nodes("6, 0,2") == std::vector<int>{0, 3, 2});
  CHECK(nodes("4,8,0") == std::vector<int>{1});  // CUDA stops at the first that does not exist
  CHECK(nodes("-1").empty());
  CHECK(nodes("").empty());
  CHECK(nodes("NoDevFiles").empty());
  const HostCpus cpus = host.read(from_to(0, 31), "6,0");
  CHECK(cpus_of_ranks(cpus, NumaBinding::node, 2) ==
        Lists{node_of_large_host(0), node_of_large_host(3)});
}

TEST_CASE("CUDA_VISIBLE_DEVICES chooses the GPUs of ranks by their UUIDs") {
  const LargeHost host;
  host.gpus();
  host.gpu("0000:90:00.0", 0, 8, "GPU-6f000000-d72c-4106-c12f-20bd9faed9f6");
  const auto read = [&](const char* visible) { return host.read(from_to(0, 31), visible); };
  const HostCpus known = read("GPU-60000000-d72c-4106-c12f-20bd9faed9f6, 0,GPU-2");
  CHECK(known.gpu_nodes == std::vector<int>{0, 3, 2});
  CHECK(known.unknown_gpu == "");
  CHECK(unknown_gpus_text(known, 3) == "");
  for (const char* device : {"GPU-a", "GPU-6", "MIG-40000000-d72c-4106-c12f-20bd9faed9f6"}) {
    const HostCpus unknown = read(fmt::format("0,4,{},2", device).c_str());
    CHECK(unknown.gpu_nodes == std::vector<int>{3, 1});
    CHECK(unknown_gpus_text(unknown, 2) == "");  // the GPUs of both ranks are known
    CHECK_THAT(unknown_gpus_text(unknown, 4),
               Contains(fmt::format("CUDA_VISIBLE_DEVICES names {}, which", device)) &&
                   Contains("of the 9 GPUs that the driver lists; ranks are divided over the NUMA "
                            "nodes in proportion to their cores"));
    CHECK(cpus_of_ranks(unknown, NumaBinding::node, 4) ==
          cpus_of_ranks(read(""), NumaBinding::node, 4));
  }
}

TEST_CASE("GPUs that the process may not open have no number") {
  const LargeHost host;
  host.gpus();
  for (const int n : {0, 1, 4}) fs::remove(host.path / Host::device(7 - n));
  CHECK(host.read(from_to(0, 31)).gpu_nodes == std::vector<int>{2, 2, 1, 0, 0});
  CHECK(host.read(from_to(0, 31), "2,0,5").gpu_nodes == std::vector<int>{1, 2});
  CHECK(host.read(from_to(0, 31), "GPU-0").gpu_nodes.empty());
}

TEST_CASE("a warning explains why the nodes of GPUs are unknown") {
  const LargeHost host;
  SECTION("no GPU: no warning") {
    CHECK(unknown_gpus_text(host.read(from_to(0, 31)), 2) == "");
    CHECK(unknown_gpus_text(host.read(from_to(0, 31), "0"), 2) == "");
  }
  SECTION("fewer GPUs than ranks") {
    host.gpus();
    CHECK_THAT(unknown_gpus_text(host.read(from_to(0, 31), "3"), 2),
               Contains("this host has 1 visible GPU for 2 ranks"));
    CHECK(unknown_gpus_text(host.read(from_to(0, 31), ""), 2) == "");
  }
  SECTION("the driver has no list") {
    host.file(Host::device(0), "");
    CHECK_THAT(unknown_gpus_text(host.read(from_to(0, 31)), 1),
               Contains("/proc/driver/nvidia/gpus does not list them"));
    CHECK(unknown_gpus_text(host.read(from_to(0, 31), ""), 1) == "");
  }
  SECTION("the system does not report the node") {
    host.gpu("0000:10:00.0", 2, 0, "GPU-0");
    host.gpu("0000:20:00.0", -1, 1, "GPU-1");
    const HostCpus cpus = host.read(from_to(0, 31));
    CHECK(unknown_gpus_text(cpus, 1) == "");
    CHECK_THAT(unknown_gpus_text(cpus, 2),
               Contains("the system does not report the NUMA node of GPU 0000:20:00.0"));
    CHECK(cpus_of_ranks(cpus, NumaBinding::node, 1) == Lists{node_of_large_host(2)});
  }
}

TEST_CASE("on a host whose CPUs are all on one node, all GPUs are on it") {
  const Host host;
  host.gpu("0000:10:00.0", -1, 0, "GPU-0");
  host.gpu("0000:20:00.0", 1, 1, "GPU-1");
  SECTION("without a description of nodes") {
    CHECK(host.read(from_to(0, 3)).gpu_nodes == std::vector<int>{0, 0});
  }
  SECTION("beside a node that has memory alone") {
    host.node(1, "");
    host.node(2, "0-3");
    const HostCpus cpus = host.read(from_to(0, 3));
    CHECK(cpus.gpu_nodes == std::vector<int>{2, 2});
    CHECK(cpus_of_ranks(cpus, NumaBinding::node, 2) == Lists{from_to(0, 3), from_to(0, 3)});
  }
}

TEST_CASE("the nearest CPUs of a GPU on a node without any are unknown") {
  const LargeHost host;
  host.node(4, "");
  host.gpu("0000:10:00.0", 4, 0, "GPU-0");
  const HostCpus cpus = host.read(from_to(0, 31));
  CHECK(cpus.gpu_nodes.empty());
  CHECK_THAT(unknown_gpus_text(cpus, 1), Contains("GPU 0000:10:00.0"));
  CHECK(cpus_of_ranks(cpus, NumaBinding::node, 1) == Lists{node_of_large_host(0)});
}

TEST_CASE("ranks have the launcher's CUDA_VISIBLE_DEVICES, or the recipe's") {
  AgentOptions options;
  {
    const Environment unset("CUDA_VISIBLE_DEVICES", nullptr);
    CHECK(visible_devices_of_ranks(options) == std::nullopt);
    options.environment["CUDA_VISIBLE_DEVICES"] = "6,0";
    CHECK(visible_devices_of_ranks(options) == "6,0");
  }
  const Environment own("CUDA_VISIBLE_DEVICES", "1");
  CHECK(visible_devices_of_ranks(options) == "1");
  options.ranks_use_gpus = false;
  CHECK(visible_devices_of_ranks(options) == "");
}

TEST_CASE("ranks without GPUs are divided evenly over the nodes, in order") {
  const LargeHost host;
  const HostCpus cpus = host.read(from_to(0, 31));
  struct Row {
    int ranks;
    std::vector<int> nodes;
  };
  for (const Row& row :
       {Row{.ranks = 1, .nodes = {0}}, Row{.ranks = 2, .nodes = {0, 2}},
        Row{.ranks = 3, .nodes = {0, 1, 2}}, Row{.ranks = 4, .nodes = {0, 1, 2, 3}},
        Row{.ranks = 6, .nodes = {0, 0, 1, 2, 2, 3}},
        Row{.ranks = 8, .nodes = {0, 0, 1, 1, 2, 2, 3, 3}}}) {
    INFO(row.ranks);
    const Lists lists = cpus_of_ranks(cpus, NumaBinding::node, row.ranks);
    REQUIRE(lists.size() == row.nodes.size());
    for (size_t rank = 0; rank < lists.size(); ++rank)
      CHECK(lists[rank] == node_of_large_host(row.nodes[rank]));
  }
  // The ranks are more than the GPUs: those do not matter.
  host.gpus();
  const Lists lists = cpus_of_ranks(host.read(from_to(0, 31), "0"), NumaBinding::node, 2);
  CHECK(lists == Lists{node_of_large_host(0), node_of_large_host(2)});
}

TEST_CASE("nodes with more usable cores get more of the ranks without GPUs") {
  const LargeHost host;
  // Two cores of node 0, and all four of node 1.
  const HostCpus cpus = host.read({0, 1, 4, 5, 6, 7, 20});
  CHECK(cpus_of_ranks(cpus, NumaBinding::exclusive, 6) == Lists{{0}, {1}, {4, 20}, {5}, {6}, {7}});
  CHECK(cpus_of_ranks(cpus, NumaBinding::exclusive, 3) == Lists{{0, 1}, {4, 5, 20}, {6, 7}});
  CHECK(cpus_of_ranks(cpus, NumaBinding::node, 2) == Lists{{0, 1}, {4, 5, 6, 7, 20}});
  CHECK_THROWS_WITH(cpus_of_ranks(cpus, NumaBinding::exclusive, 7),
                    Contains("ranks need a core each"));
}

TEST_CASE("the first ranks get the cores that are left over") {
  const Host host;  // without any folder of /sys
  const HostCpus cpus = host.read(from_to(0, 7));
  CHECK(cpus_of_ranks(cpus, NumaBinding::exclusive, 3) == Lists{{0, 1, 2}, {3, 4, 5}, {6, 7}});
}

TEST_CASE("only CPUs that the process may use count") {
  const LargeHost host;
  // Node 1 has none of them; of core 8 only its second CPU is left.
  const HostCpus cpus = host.read({0, 1, 2, 10, 11, 12, 24, 27});
  CHECK(cpus_of_ranks(cpus, NumaBinding::node, 3) == Lists{{0, 1, 2}, {0, 1, 2}, {10, 11, 24, 27}});
  CHECK(cpus_of_ranks(cpus, NumaBinding::socket, 2) == Lists{{0, 1, 2}, {10, 11, 12, 24, 27}});
  // Cores are in the order of their lowest CPUs, whether those are usable or not.
  CHECK(cpus_of_ranks(cpus, NumaBinding::exclusive, 5) == Lists{{0}, {1}, {2}, {10, 24}, {11, 27}});
  host.gpus();
  CHECK_THROWS_WITH(
      cpus_of_ranks(host.read({0, 1, 2, 10, 11, 12, 24, 27}), NumaBinding::node, 8),
      Contains("the GPU of local rank 4 is on NUMA node 1") && Contains("no CPU of that node"));
  // A socket has CPUs even if those of the GPU's own node are not usable.
  CHECK(cpus_of_ranks(host.read({8, 9, 24}), NumaBinding::socket, 2) ==
        Lists{{8, 9, 24}, {8, 9, 24}});
  CHECK_THROWS_WITH(
      cpus_of_ranks(host.read({0, 8}), NumaBinding::node, 1),
      Contains("the GPU of local rank 0 is on NUMA node 3") && Contains("no CPU of that node"));
  CHECK_THROWS_WITH(cpus_of_ranks(host.read({0, 1}), NumaBinding::socket, 1),
                    Contains("no CPU of that node's socket"));
}

TEST_CASE("the cache of which most CPUs are usable comes first, and ranks may share one") {
  const LargeHost host;
  const HostCpus cpus = host.read({0, 1, 2, 3, 18, 19});
  CHECK(cpus_of_ranks(cpus, NumaBinding::core_complex, 3) ==
        Lists{{2, 3, 18, 19}, {0, 1}, {2, 3, 18, 19}});
  const Lists lists = cpus_of_ranks(cpus, NumaBinding::core_complex, 3);
  CHECK(threads_of_rank(lists, 0) == 2);
  CHECK(threads_of_rank(lists, 1) == 2);
}

TEST_CASE("exclusive needs a core for each rank") {
  const Host host;
  host.node(0, "0-1");
  SECTION("CPUs that the system reports as cores") {
    for (int n = 0; n < 2; ++n) host.core(n, 0, std::to_string(n));
    const HostCpus cpus = host.read({0, 1});
    CHECK(cpus_of_ranks(cpus, NumaBinding::exclusive, 2) == Lists{{0}, {1}});
    CHECK_THROWS_AS(cpus_of_ranks(cpus, NumaBinding::exclusive, 3), UserError);
    CHECK_THROWS_WITH(cpus_of_ranks(cpus, NumaBinding::exclusive, 3),
                      Contains("3 ranks need a core each") && Contains("2 cores with 2 CPUs") &&
                          Contains("start fewer ranks on this host") &&
                          Contains("--numa_binding=node"));
  }
  SECTION("CPUs that share a core") {
    for (int n = 0; n < 2; ++n) host.core(n, 0, "0-1");
    const HostCpus cpus = host.read({0, 1});
    CHECK(cpus_of_ranks(cpus, NumaBinding::exclusive, 1) == Lists{{0, 1}});
    CHECK_THROWS_WITH(cpus_of_ranks(cpus, NumaBinding::exclusive, 2),
                      Contains("1 core with 2 CPUs"));
    CHECK(cpus_of_ranks(cpus, NumaBinding::node, 2) == Lists{{0, 1}, {0, 1}});
  }
}

TEST_CASE("a host without NUMA folders is one node") {
  const Host host;
  const HostCpus cpus = host.read({0, 1, 2, 5});
  for (const auto mode : {NumaBinding::node, NumaBinding::socket, NumaBinding::core_complex}) {
    const Lists lists = cpus_of_ranks(cpus, mode, 2);
    CHECK(lists == Lists{{0, 1, 2, 5}, {0, 1, 2, 5}});
    CHECK(threads_of_rank(lists, 1) == 2);
  }
  CHECK(cpus_of_ranks(cpus, NumaBinding::exclusive, 2) == Lists{{0, 1}, {2, 5}});
}

TEST_CASE("a rank has at least one thread") {
  const Lists lists = cpus_of_ranks(Host().read({3}), NumaBinding::node, 2);
  CHECK(lists == Lists{{3}, {3}});
  CHECK(threads_of_rank(lists, 0) == 1);
}

TEST_CASE("the binding is described by ranges") {
  CHECK(binding_text({from_to(0, 3), from_to(4, 7)}, 0) ==
        "rank 0 on CPUs 0-3, rank 1 on CPUs 4-7");
  CHECK(binding_text({{0}, {1}}, 6) == "rank 6 on CPU 0, rank 7 on CPU 1");
  const CpuList a = joined(from_to(0, 31), from_to(64, 95));
  CHECK(binding_text({a, a, a, {32, 34, 35}}, 0) ==
        "ranks 0-2 on CPUs 0-31,64-95, rank 3 on CPUs 32,34-35");
}

TEST_CASE("a rank learns its number of threads from the launcher") {
  for (const auto& [value, threads] : {std::pair<const char*, int>{"1", 1},
                                       {"5000", usable_cores()},
                                       {nullptr, 0},
                                       {"", 0},
                                       {"0", 0},
                                       {"many", 0}}) {
    const Environment environment(kThreadsVariable, value);
    CHECK(threads_if_bound().value_or(0) == threads);
  }
}

}  // namespace launch_numa_binding_test
