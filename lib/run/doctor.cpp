#include "run/doctor.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>
#include <thread>

#include "base/disk_space.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/strings.h"
#include "base/usable_cores.h"
#include "device/device.h"
#include "ops/matmul.h"
#include "ops/tuning.h"

namespace mtrain::run {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kSlowCore = 0.7;  // of the best rate
constexpr int64_t kLeastSpace = int64_t(256) << 20, kFewSpace = int64_t(4) << 30;
constexpr int64_t kLeastShared = int64_t(64) << 20;
constexpr int64_t kFilesOfRank = 64, kFilesOfProgram = 128;

double seconds_from(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

// Multiply-adds in registers for a few milliseconds. Raises the core's rates to those it has seen.
void time_this_core(CoreRate& core) {
  constexpr int kLanes = 16, kRounds = 20000;
  float x[kLanes];
  for (int i = 0; i < kLanes; ++i) x[i] = float(i);
  int64_t rounds = 0;
  const auto began = Clock::now();
  const double processor_began = processor_seconds();
  do {
    for (int r = 0; r < kRounds; ++r)
      for (float& v : x) v = v * 0.999f + 0.001f;
    rounds += kRounds;
  } while (seconds_from(began) < 0.03);
  const double seconds = seconds_from(began), own = processor_seconds() - processor_began;
  volatile float keep = 0;
  for (const float v : x) keep = keep + v;
  const double operations = double(rounds) * kLanes * 2 / 1e9;
  core.gflops = std::max(core.gflops, operations / seconds);
  // The clock of the processor's time may be coarse.
  if (own > 0.005) core.of_its_own = std::max(core.of_its_own, operations / own);
}

fs::path existing_parent(fs::path folder) {
  std::error_code error;
  folder = fs::absolute(folder, error);
  while (!fs::exists(folder, error) && folder.has_parent_path() && folder != folder.parent_path())
    folder = folder.parent_path();
  return folder;
}

std::optional<DiskSpace> space_of(const fs::path& folder) {
  struct statvfs info;
  if (statvfs(folder.c_str(), &info) != 0) return std::nullopt;
  DiskSpace space{.free = std::max<int64_t>(0, free_disk_bytes(info, geteuid() == 0)),
                  .total = int64_t(info.f_blocks) * int64_t(info.f_frsize)};
  if (info.f_files > 0) space.free_inodes = int64_t(info.f_favail);
  return space;
}

DoctorRow space_row(const std::string& check, const fs::path& folder) {
  const auto space = space_of(folder);
  if (!space)
    return {check, fmt::format("{}: {}", folder.string(), std::strerror(errno)), Verdict::fault,
            "the folder cannot be read"};
  return judge_space(check, folder, *space);
}

// A file that is removed when it is closed.
class ProbeFile {
 public:
  explicit ProbeFile(const fs::path& folder)
      : path_((folder / ".mtrain-doctor-XXXXXX").string()),
        fd_(mkostemp(path_.data(), O_CLOEXEC)) {}
  ~ProbeFile() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(path_.c_str());
  }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;
  int fd() const { return fd_; }

 private:
  std::string path_;
  int fd_;
};

// Writes up to 64 MiB, for at most a second or two, until they are on the disk.
DoctorRow disk_rate_row(const fs::path& folder) {
  DoctorRow row{.check = "disk, rate"};
  const ProbeFile file(folder);
  const auto fail = [&](const char* what) {
    const int why = errno;
    row.value = fmt::format("{} {}: {}", what, folder.string(), std::strerror(why));
    row.verdict = Verdict::fault;
    row.hint = why == ENOSPC || why == EDQUOT ? "free space, or choose another train.run_dir"
                                              : "choose a train.run_dir that can be written";
    return row;
  };
  if (file.fd() < 0) return fail("cannot make a file in");
  const std::string block(size_t(4) << 20, 'm');
  const auto began = Clock::now();
  int64_t bytes = 0;
  while (bytes < int64_t(64) << 20 && seconds_from(began) < 1) {
    const ssize_t n = write(file.fd(), block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail("cannot write to");
    bytes += n;
  }
  if (fsync(file.fd()) != 0) return fail("cannot write to");
  const double rate = double(bytes) / seconds_from(began);
  row.value = fmt::format("{}/s to {}", human_bytes(rate), folder.string());
  if (rate < 20e6) {
    row.verdict = Verdict::warning;
    row.hint = "a checkpoint of 1 GiB takes over 50 s; checkpoint.async_save hides that";
  }
  return row;
}

DoctorRow clock_row(const fs::path& folder) {
  timex state{};
  const bool synchronized = adjtimex(&state) >= 0 && !(state.status & STA_UNSYNC);
  timespec now{};
  double skew = 0;
  {
    const ProbeFile file(folder);
    struct stat info;
    clock_gettime(CLOCK_REALTIME, &now);
    if (file.fd() >= 0 && write(file.fd(), "x", 1) == 1 && fstat(file.fd(), &info) == 0)
      skew = double(info.st_mtim.tv_sec - now.tv_sec) +
             double(info.st_mtim.tv_nsec - now.tv_nsec) * 1e-9;
  }
  return judge_clock(double(now.tv_sec), skew, synchronized);
}

DoctorRow memory_row(int ranks) {
  const int64_t free = available_host_memory();
  DoctorRow row{.check = "memory"};
  if (free < 0) return {"memory", "unknown", Verdict::warning, "/proc/meminfo cannot be read"};
  row.value = fmt::format("{} free", human_bytes(double(free)));
  if (free / std::max(ranks, 1) < int64_t(1) << 30) {
    row.verdict = Verdict::warning;
    row.hint = "less than 1 GiB for each rank; `mtrain --dry-run` prints what a recipe needs";
  }
  return row;
}

// The GEMMs of all cores together, as a training computes them.
DoctorRow gemm_row() {
  const int threads = usable_cores();
  const auto device = Device::cpu(threads);
  Stream& stream = device->stream(device::StreamKind::compute);
  constexpr int64_t kSize = 768;
  const std::vector<float> ones(size_t(kSize * kSize), 1.0f);
  const Tensor a = Tensor::from_host(stream, {kSize, kSize}, ones),
               b = Tensor::from_host(stream, {kSize, kSize}, ones);
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    const auto began = Clock::now();
    const Tensor c = ops::matmul(stream, "doctor_gemm", a, b, {}, DType::f32);
    device->synchronize();
    best = std::max(best, 2.0 * kSize * kSize * kSize / seconds_from(began));
  }
  DoctorRow row{.check = "GEMM, fp32",
                .value = fmt::format("{:.0f} GFLOP/s with {} thread{}", best / 1e9, threads,
                                     threads == 1 ? "" : "s")};
  if (ops::built_for_narrower_cpu(*device)) {
    row.verdict = Verdict::warning;
    row.hint = "this build lacks kernels for this CPU's widest instructions: use a newer compiler";
  }
  return row;
}

void measure_together(std::span<CoreRate> cores) {
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  threads.reserve(cores.size());
  for (CoreRate& core : cores)
    threads.emplace_back([&core, &go] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(core.core, &one);
      if (pthread_setaffinity_np(pthread_self(), sizeof one, &one) != 0) return;
      while (!go) std::this_thread::yield();
      // Another process may take the core for a moment: the best of several times counts.
      for (int i = 0; i < 10; ++i) time_this_core(core);
    });
  go = true;
  for (std::thread& t : threads) t.join();
}

}  // namespace

std::vector<CoreRate> measure_cores() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return {};
  std::vector<CoreRate> cores;
  for (int c = 0; c < CPU_SETSIZE; ++c)
    if (CPU_ISSET(c, &usable)) cores.push_back({.core = c});
  // A container may have the time of fewer cores than it sees: so many are measured at once.
  const auto at_once = size_t(std::max(1, usable_cores()));
  for (size_t first = 0; first < cores.size(); first += at_once)
    measure_together(std::span(cores).subspan(first, std::min(at_once, cores.size() - first)));
  return cores;
}

DoctorRow judge_cores(const std::vector<CoreRate>& cores) {
  DoctorRow row{.check = "cores"};
  if (cores.empty())
    return {"cores", "unknown", Verdict::warning, "the system does not name this process's cores"};
  double best = 0;
  for (const CoreRate& c : cores) best = std::max({best, c.gflops, c.of_its_own});
  std::string slow;
  for (const CoreRate& c : cores)
    if (c.gflops < kSlowCore * best)
      slow +=
          fmt::format("{}{} ({:.0f} %)", slow.empty() ? "" : ", ", c.core, 100 * c.gflops / best);
  row.value = fmt::format("{} core{}, at most {:.2g} GFLOP/s each in registers", cores.size(),
                          cores.size() == 1 ? "" : "s", best);
  if (slow.empty()) return row;
  row.value += "; slow: core " + slow;
  row.verdict = Verdict::fault;
  row.hint = "another process computes there, or the core is throttled: every rank waits for it";
  return row;
}

DoctorRow judge_space(const std::string& check, const fs::path& folder, const DiskSpace& space) {
  DoctorRow row{.check = check,
                .value = fmt::format("{} of {} free in {}", human_bytes(double(space.free)),
                                     human_bytes(double(space.total)), folder.string())};
  if (space.free_inodes == 0) {
    row.value = fmt::format("no file can be added in {}", folder.string());
    row.verdict = Verdict::fault;
    row.hint = "the file system has no inode left: remove files";
  } else if (space.free < kLeastSpace) {
    row.verdict = Verdict::fault;
    row.hint = "it is full: free space, or choose another train.run_dir";
  } else if (space.free < kFewSpace) {
    row.verdict = Verdict::warning;
    row.hint = "checkpoint.keep bounds what a run keeps; --dry-run prints a checkpoint's size";
  }
  return row;
}

DoctorRow judge_descriptors(int64_t soft, int64_t hard, int ranks) {
  const int64_t needed = kFilesOfProgram + kFilesOfRank * std::max(ranks, 1);
  DoctorRow row{.check = "open files", .value = fmt::format("at most {}", soft)};
  if (soft >= needed) return row;
  // The launcher raises the limit itself, as far as it may.
  row.verdict = hard >= needed ? Verdict::warning : Verdict::fault;
  row.value += fmt::format(", about {} are needed", needed);
  row.hint = hard >= needed ? fmt::format("ulimit -n {}", hard)
                            : "raise the hard limit (limits.conf, LimitNOFILE of the service)";
  return row;
}

DoctorRow judge_clock(double seconds_of_clock, double skew_s, bool synchronized) {
  constexpr double kYear2024 = 1704067200, kMostSkew = 2;
  if (seconds_of_clock < kYear2024)
    return {"clock", "the year is before 2024", Verdict::fault, "set the clock"};
  if (std::abs(skew_s) > kMostSkew)
    return {"clock",
            fmt::format("{:.0f} s {} than the disk's", std::abs(skew_s),
                        skew_s > 0 ? "earlier" : "later"),
            Verdict::fault, "synchronize the clocks of this host and of its file server (NTP)"};
  if (!synchronized)
    return {"clock", "the kernel does not know that it is synchronized", Verdict::ok,
            "times of several hosts in logs may differ"};
  return {"clock", "synchronized", Verdict::ok, ""};
}

std::vector<DoctorRow> examine_host(const DoctorOptions& options) {
  std::vector<DoctorRow> rows;
  const auto add = [&](auto&& examine, const char* check) {
    try {
      rows.push_back(examine());
    } catch (const std::exception& e) {
      rows.push_back({check, e.what(), Verdict::fault, ""});
    }
  };
  const fs::path folder = existing_parent(options.run_dir);
  add(
      [] {
        std::vector<CoreRate> cores = measure_cores();
        // A load that passes is not a fault.
        for (int i = 0; i < 4 && judge_cores(cores).verdict == Verdict::fault; ++i) {
          const std::vector<CoreRate> again = measure_cores();
          for (size_t c = 0; c < std::min(cores.size(), again.size()); ++c)
            cores[c] = {cores[c].core, std::max(cores[c].gflops, again[c].gflops),
                        std::max(cores[c].of_its_own, again[c].of_its_own)};
        }
        return judge_cores(cores);
      },
      "cores");
  add(gemm_row, "GEMM, fp32");
  add([&] { return memory_row(options.ranks); }, "memory");
  add(
      [] {
        const auto space = space_of("/dev/shm");
        const bool enough = space && space->free >= kLeastShared;
        return DoctorRow{
            "/dev/shm", space ? human_bytes(double(space->free)) + " free" : "there is none",
            enough ? Verdict::ok : Verdict::warning,
            enough ? "" : "NCCL needs it for the GPUs of a host (docker run --shm-size)"};
      },
      "/dev/shm");
  add([&] { return space_row("disk, space", folder); }, "disk, space");
  add([&] { return disk_rate_row(folder); }, "disk, rate");
  add(
      [&] {
        rlimit files{};
        getrlimit(RLIMIT_NOFILE, &files);
        const auto known = [](rlim_t n) { return int64_t(std::min<rlim_t>(n, 1 << 30)); };
        return judge_descriptors(known(files.rlim_cur), known(files.rlim_max), options.ranks);
      },
      "open files");
  add([&] { return clock_row(folder); }, "clock");
  for (DoctorRow& row : examine_links()) rows.push_back(std::move(row));
  for (DoctorRow& row : examine_gpus()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace mtrain::run
