#include "launch/host_checks.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>
#include <thread>

#include <fmt/core.h>

#include "base/disk_space.h"
#include "base/file.h"
#include "base/host_memory.h"
#include "base/strings.h"

namespace mtrain::launch {

namespace {

namespace fs = std::filesystem;
using Verdict = HostCheck::Verdict;

constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;
constexpr int64_t kUsualFiles = 1024;  // the soft limit of most systems

constexpr double kSlow = 0.7;  // the part of its earlier rate below which a core is slow

// A rank opens its files, shared memory and sockets; the launcher has pipes and a page of each.
int64_t files_of(int ranks) {
  constexpr int64_t kLeast = 96, kPerRank = 4;
  return kLeast + kPerRank * ranks;
}

// Measures one core with a GEMM that fits into its caches. The fastest of several runs counts:
// other processes may disturb some of them.
double measure_gflops() {
  constexpr int N = 128, kRuns = 12;
  std::vector<float> a(size_t(N) * N, 0.5f), b(size_t(N) * N, 0.25f), c(size_t(N) * N);
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    const auto began = std::chrono::steady_clock::now();
    std::ranges::fill(c, 0.0f);
    for (size_t i = 0; i < N; ++i)
      for (size_t k = 0; k < N; ++k)
        for (size_t j = 0; j < N; ++j) c[i * N + j] += a[i * N + k] * b[k * N + j];
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    a[size_t(run)] = c[size_t(run)] > 0 ? 0.5f : 0.0f;  // the result is used
    best = std::max(best, 2.0 * N * N * N / took.count() * 1e-9);
  }
  return best;
}

// Measures a core that seems slow again: other processes may be busy for a moment.
double measure_gflops(std::optional<double> last) {
  constexpr int kMore = 3;
  double best = measure_gflops();
  for (int i = 0; i < kMore && last && best < kSlow * *last; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    best = std::max(best, measure_gflops());
  }
  return best;
}

std::optional<double> last_rate(const fs::path& file) {
  std::ifstream in(file);
  double rate = 0;
  if (in >> rate && rate > 0) return rate;
  return {};
}

// Returns the folder, or the nearest one above it that exists.
fs::path existing(fs::path folder) {
  std::error_code error;
  folder = fs::absolute(folder, error);
  while (!folder.empty() && folder != folder.root_path() && !fs::is_directory(folder, error))
    folder = folder.parent_path();
  return folder;
}

// Whether the disk is at fault, and not the choice of the folder, which the run itself reports.
bool of_disk(int error) {
  return error == EROFS || error == ENOSPC || error == EDQUOT || error == EIO || error == ESTALE;
}

// Writes a file for a moment. Its time is that of the file system, which may be another host's.
void probe_disk(const fs::path& folder, HostFacts& facts) {
  facts.disk_bytes = free_disk_bytes(folder);
  const auto failed = [&] {
    if (of_disk(errno))
      facts.disk_error =
          fmt::format("cannot write into {}: {}", folder.string(), strerrordesc_np(errno));
  };
  std::string name = (folder / ".mtrain-check-XXXXXX").string();
  const int fd = ::mkstemp(name.data());
  if (fd < 0) return failed();
  struct stat info {};
  timespec now{};
  if (::write(fd, "x", 1) != 1 || ::fsync(fd) != 0)
    failed();
  else if (::fstat(fd, &info) == 0 && ::clock_gettime(CLOCK_REALTIME, &now) == 0)
    facts.clock_skew_s = double(now.tv_sec - info.st_mtim.tv_sec) +
                         1e-9 * double(now.tv_nsec - info.st_mtim.tv_nsec);
  ::close(fd);
  ::unlink(name.c_str());
}

HostCheck bytes_check(const char* name, int64_t bytes, int64_t least, int64_t low,
                      const char* hint) {
  if (bytes < 0) return {name, "unknown", Verdict::unknown};
  HostCheck c{name, human_bytes(double(bytes)) + " free"};
  if (bytes < low) c.verdict = bytes < least ? Verdict::fault : Verdict::warn, c.hint = hint;
  return c;
}

HostCheck rate_check(const HostFacts& f) {
  if (!f.gflops) return {"GEMM of a core", "unknown", Verdict::unknown};
  HostCheck c{"GEMM of a core", fmt::format("{:.3g} GFLOP/s", *f.gflops)};
  if (!f.last_gflops) return c;
  c.value += fmt::format(", {:.2f} of earlier starts'", *f.gflops / *f.last_gflops);
  if (*f.gflops < kSlow * *f.last_gflops) {
    c.verdict = Verdict::warn;
    c.hint = "look for other processes on this host, a limit of its power, or too little cooling";
  }
  return c;
}

HostCheck clock_check(const HostFacts& f) {
  if (!f.clock_skew_s) return {"clock", "unknown", Verdict::unknown};
  // File systems keep times of 10 ms, and a file server answers later.
  constexpr double kSkew = 5;
  HostCheck c{"clock", fmt::format("{:.1f} s from the run folder's", *f.clock_skew_s)};
  if (std::fabs(*f.clock_skew_s) > kSkew) {
    c.verdict = Verdict::warn;
    c.hint = "run a time service such as chrony on all hosts: logs cannot be compared otherwise";
  }
  return c;
}

}  // namespace

HostFacts measure_host(const HostCheckOptions& o) {
  HostFacts f;
  if (!o.rates.empty()) f.last_gflops = last_rate(o.rates);
  f.gflops = measure_gflops(f.last_gflops);
  if (!o.rates.empty()) {
    try {
      fs::create_directories(o.rates.parent_path());
      write_file_atomic(o.rates, fmt::format("{}\n", rate_to_keep(*f.gflops, f.last_gflops)));
    } catch (const std::exception&) {  // the next start has nothing to compare with
    }
  }
  f.memory_bytes = available_host_memory();
  if (!o.run_folder.empty()) probe_disk(existing(o.run_folder), f);
  f.shm_bytes = free_disk_bytes("/dev/shm");
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    f.descriptors = int64_t(std::min<rlim_t>(limit.rlim_max, int64_t{1} << 40));
  if (!o.clock) f.clock_skew_s.reset();
  return f;
}

void raise_open_files(int ranks) {
  rlimit limit{};
  const auto wanted = rlim_t(kUsualFiles + files_of(ranks));
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::vector<HostCheck> judge_host(const HostFacts& f, int ranks) {
  std::vector<HostCheck> all{rate_check(f)};
  all.push_back(bytes_check("memory", f.memory_bytes, 64 * kMiB * ranks, 512 * kMiB * ranks,
                            "end other processes on this host"));
  if (!f.disk_error.empty())
    all.push_back({"disk", f.disk_error, Verdict::fault, "choose another train.run_dir"});
  else
    all.push_back(bytes_check("disk", f.disk_bytes, 16 * kMiB, kGiB,
                              "delete old checkpoints, or choose another train.run_dir"));
  all.push_back(bytes_check("/dev/shm", f.shm_bytes, 0, 64 * kMiB,
                            "remove files in /dev/shm that dead processes have left"));
  HostCheck open{"open files",
                 f.descriptors < 0 ? "unknown" : fmt::format("at most {}", f.descriptors)};
  if (f.descriptors < 0) open.verdict = Verdict::unknown;
  if (f.descriptors >= 0 && f.descriptors < files_of(ranks)) {
    open.verdict = Verdict::fault;
    open.hint = fmt::format("raise the hard limit to {} (limits.conf, LimitNOFILE of a service)",
                            kUsualFiles + files_of(ranks));
  }
  all.push_back(open);
  all.push_back(clock_check(f));
  return all;
}

std::vector<HostCheck> compare_clocks(const std::vector<HostClock>& clocks) {
  // A host that is busy may answer this late.
  constexpr double kMostSkew = 2;
  std::vector<HostCheck> all;
  for (size_t i = 1; i < clocks.size(); ++i) {
    const double ahead = clocks[i].seconds - clocks[0].seconds;
    HostCheck c{.name = "clock of " + clocks[i].host,
                .value = fmt::format("as that of {}", clocks[0].host)};
    if (!std::isfinite(ahead) || std::fabs(ahead) > kMostSkew) {
      c.value = fmt::format("{:.1f} s {} that of {}", std::fabs(ahead),
                            ahead < 0 ? "earlier than" : "later than", clocks[0].host);
      c.verdict = Verdict::warn;
      c.hint = "run a time service such as chrony on all hosts: times in their logs differ";
    }
    all.push_back(std::move(c));
  }
  return all;
}

double rate_to_keep(double gflops, std::optional<double> last_gflops) {
  constexpr double kDecay = 0.9;
  return std::max(gflops, kDecay * last_gflops.value_or(0));
}

namespace {

std::vector<std::string> lines_of(const std::vector<HostCheck>& checks, Verdict verdict) {
  std::vector<std::string> lines;
  for (const HostCheck& c : checks)
    if (c.verdict == verdict) lines.push_back(fmt::format("{}: {}: {}", c.name, c.value, c.hint));
  return lines;
}

}  // namespace

std::vector<std::string> faults_of(const std::vector<HostCheck>& checks) {
  return lines_of(checks, Verdict::fault);
}

std::vector<std::string> warnings_of(const std::vector<HostCheck>& checks) {
  return lines_of(checks, Verdict::warn);
}

}  // namespace mtrain::launch
