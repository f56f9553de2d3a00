// Keeps between runs the highest peak measured on this host: a measurement that other processes
// disturb is too low, and none is too high.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "base/dtype.h"

namespace mtrain::ops {

// Returns the file in the user's cache folder: $XDG_CACHE_HOME/mtrain/cpu_peaks, else
// ~/.cache/mtrain/cpu_peaks; nothing if neither variable is set.
std::optional<std::filesystem::path> kept_peaks_file();

// Returns a text of everything that the peak depends on: host, CPU model, instruction set, CPUs
// that this process may use, threads, and type.
std::string peak_key(int threads, DType dtype);

// Returns the larger of `flops` and the file's value for the key, and stores it. If the file cannot
// be read or written, or its lines are malformed, it returns `flops` without an error.
double keep_peak(const std::optional<std::filesystem::path>& file, const std::string& key,
                 double flops);

}  // namespace mtrain::ops
