// How much memory this process may still take from its host.
#pragma once
#include <cstdint>
#include <filesystem>

namespace mtrain {

// Returns the bytes that can be taken without swapping: those of the host, or of the smallest
// control group that limits this process. The content of files counts as free, since the kernel
// drops it. -1: unknown. `root` is the root of the file system; tests have others.
int64_t available_host_memory(const std::filesystem::path& root = "/");

}  // namespace mtrain
