// Reports the file, instead of "signal 7", when mapped memory can no longer be read: another
// program has truncated the file, or the disk has failed.
#pragma once
#include <cstddef>
#include <filesystem>

namespace mtrain {

// Records the file of a range of memory, until forget_mapping() removes it. Any thread may call
// these.
void remember_mapping(const void* begin, size_t bytes, const std::filesystem::path& path);
void forget_mapping(const void* begin);

// Handles SIGBUS from now on. At a fault in a mapping of a file it writes an error that names the
// file to stderr, and ends the process with exit code 1. It also passes the text to `tell`, which
// may be null. Other faults go to the handler that was set before. The handler belongs to the
// process: programs call this, and libraries do not. `tell` runs in the handler: it may only call
// async-signal-safe functions.
void name_bus_errors(void (*tell)(const char* message));

}  // namespace mtrain
