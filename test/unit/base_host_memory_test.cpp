// The memory that a process may still take, in made-up systems.
#include <catch2/catch.hpp>
#include <fstream>

#include "base/host_memory.h"
#include "test/support/temporary_folder.h"

namespace base_host_memory_test {

using namespace mtrain;
namespace fs = std::filesystem;

namespace {

struct Host : TemporaryFolder {
  void file(const fs::path& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
  }
  void meminfo(int64_t available_kb) const {
    file("proc/meminfo", "MemTotal:       32000000 kB\nMemFree:          100 kB\nMemAvailable:   " +
                             std::to_string(available_kb) + " kB\n");
  }
};

}  // namespace

TEST_CASE("the free memory is that of the host, or of the smallest control group") {
  const Host host;
  CHECK(available_host_memory(host.path) == -1);
  host.meminfo(1000);
  CHECK(available_host_memory(host.path) == 1000 * 1024);
  SECTION("of version 2, where files count as free") {
    host.file("proc/self/cgroup", "0::/user/job\n");
    host.file("sys/fs/cgroup/user/memory.max", "max\n");
    host.file("sys/fs/cgroup/user/memory.current", "5\n");
    CHECK(available_host_memory(host.path) == 1000 * 1024);
    host.file("sys/fs/cgroup/user/job/memory.max", "900000\n");
    host.file("sys/fs/cgroup/user/job/memory.current", "500000\n");
    CHECK(available_host_memory(host.path) == 400000);
    host.file("sys/fs/cgroup/user/job/memory.stat", "anon 7\nactive_file 20000\ninactive_file 3\n");
    CHECK(available_host_memory(host.path) == 420003);
    host.file("sys/fs/cgroup/user/memory.max", "100005\n");
    CHECK(available_host_memory(host.path) == 100000);
  }
  SECTION("of a container, whose path is that of the host") {
    host.file("proc/self/cgroup", "0::/of/the/host\n");
    host.file("sys/fs/cgroup/memory.max", "700\n");
    host.file("sys/fs/cgroup/memory.current", "800\n");
    CHECK(available_host_memory(host.path) == 0);
  }
  SECTION("of version 1") {
    host.file("proc/self/cgroup", "5:cpu:/x\n4:cpuset,memory:/job\n0::/\n");
    host.file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9000\n");
    host.file("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "6000\n");
    host.file("sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 30\n");
    CHECK(available_host_memory(host.path) == 3030);
    // Without a limit, at a moment when more files than memory are counted.
    host.file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    host.file("sys/fs/cgroup/memory/job/memory.stat", "total_active_file 10100\n");
    CHECK(available_host_memory(host.path) == 1000 * 1024);
  }
  CHECK(available_host_memory() > 0);
}

}  // namespace base_host_memory_test
