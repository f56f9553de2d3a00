// Keeps the highest peak that this host has shown between runs: a measurement that other processes
// disturbed is too low, and none is too high.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "base/dtype.h"

namespace mtrain::ops {

// Returns the file in the user's cache folder: $XDG_CACHE_HOME/mtrain/cpu_peaks, else
// ~/.cache/mtrain/cpu_peaks; nothing if neither variable is set.
std::optional<std::filesystem::path> kept_peaks_file();

// Names what the peak depends on: host, CPU model, instruction set, CPUs that this process may use,
// threads, and type.
std::string peak_key(int threads, DType dtype);

// Returns the larger of `flops` and of what the file keeps for the key, and keeps it. A file that
// cannot be read or written, or lines in it that make no sense, are no error: `flops` is returned.
double keep_peak(const std::optional<std::filesystem::path>& file, const std::string& key,
                 double flops);

}  // namespace mtrain::ops
