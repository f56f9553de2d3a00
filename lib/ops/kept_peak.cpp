#include "ops/kept_peak.h"

#include <sched.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>

#include <fmt/core.h>

#include "base/cache_folder.h"
#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/matmul_backend.h"

namespace mtrain::ops {

namespace {

namespace fs = std::filesystem;

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return std::string(trim(line.substr(line.find(':') + 1)));
  return "unknown CPU";
}

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

// Each line is FLOP/s, a blank and the key. Numbers above any CPU's peak are ignored.
std::map<std::string, double> read_peaks(const fs::path& file) {
  constexpr double kNoCpu = 1e16;
  std::map<std::string, double> peaks;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t blank = line.find(' ');
    if (blank == std::string::npos) continue;
    char* end = nullptr;
    const double flops = std::strtod(line.c_str(), &end);
    if (end != line.c_str() + blank || !(flops > 0 && flops < kNoCpu)) continue;
    double& kept = peaks[line.substr(blank + 1)];
    kept = std::max(kept, flops);
  }
  return peaks;
}

}  // namespace

std::optional<fs::path> kept_peaks_file() {
  const auto cache = cache_folder();
  return cache ? std::optional(*cache / "cpu_peaks") : std::nullopt;
}

std::string peak_key(int threads, DType dtype) {
  // A build, or MTRAIN_CPU_ISA, may leave out a bf16 method that the CPU supports.
  std::string ways;
  if (dtype == DType::bf16)
    for (const Bf16Arithmetic way : {Bf16Arithmetic::dot_products, Bf16Arithmetic::tiles})
      if (kernels::cpu::supports(way)) ways += fmt::format(" {}", bf16_arithmetic_name(way));
  return fmt::format("{}, {}, {}, {} threads on {} CPUs, {}{}", host_name(), cpu_model(),
                     kernels::cpu::isa_name(kernels::cpu::isa()), threads, usable_cpus(),
                     dtype_name(dtype), ways);
}

double keep_peak(const std::optional<fs::path>& file, const std::string& key, double flops) {
  if (!file) return flops;
  auto peaks = read_peaks(*file);
  double& kept = peaks[key];
  if (flops <= kept) return kept;
  kept = flops;
  std::string text;
  for (const auto& [name, peak] : peaks) text += fmt::format("{:.6g} {}\n", peak, name);
  std::error_code ignored;
  fs::create_directories(file->parent_path(), ignored);
  try {
    write_file_atomic(*file, text);
  } catch (const Error&) {
    // The cache folder cannot be written: the next run makes its own measurement.
  }
  return flops;
}

}  // namespace mtrain::ops
