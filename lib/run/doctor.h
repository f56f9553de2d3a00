// Examines a host before a training: what it can do, what is missing, and what is broken (mtrain
// doctor).
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/enum_name.h"

namespace mtrain::run {

enum class Verdict { ok, warning, fault };
constexpr auto enum_names(Verdict) {
  return std::array{EnumName{Verdict::ok, "ok"}, EnumName{Verdict::warning, "warning"},
                    EnumName{Verdict::fault, "fault"}};
}

struct DoctorRow {
  std::string check, value;
  Verdict verdict = Verdict::ok;
  std::string hint;  // what to do, or what it costs; may be empty
};

struct DoctorOptions {
  // The folder of a run, which may not exist yet.
  std::filesystem::path run_dir = "runs";
  int ranks = 1;  // ranks that this host shall have
};

// Takes about five seconds. Writes and removes a file in the run's folder.
std::vector<DoctorRow> examine_host(const DoctorOptions& options);

// The measurements, and the rows that follow from them.

struct CoreRate {
  int core = 0;
  double gflops = 0;      // per second
  double of_its_own = 0;  // per second in which the core worked for this process
};
// Measures the cores that this process may use, all at the same time.
std::vector<CoreRate> measure_cores();
// A core far below what the best one can do makes all ranks wait for the rank that computes there.
DoctorRow judge_cores(const std::vector<CoreRate>& cores);

struct DiskSpace {
  int64_t free = 0, total = 0;  // bytes
  int64_t free_inodes = -1;     // -1: the file system has no limit
};
DoctorRow judge_space(const std::string& check, const std::filesystem::path& folder,
                      const DiskSpace& space);
DoctorRow judge_descriptors(int64_t soft, int64_t hard, int ranks);
// `skew_s` is how far the clock of the folder's disk is ahead; `synchronized` as the kernel says.
DoctorRow judge_clock(double seconds_of_clock, double skew_s, bool synchronized);

// Rows of other files.
std::vector<DoctorRow> examine_links();  // between two ranks of this host
std::vector<DoctorRow> examine_gpus();   // by NVML; none on a host without GPUs

}  // namespace mtrain::run
