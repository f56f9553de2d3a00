// Names the file when mapped memory can no longer be read, instead of "signal 7": another program
// has made the file shorter, or the disk fails.
#pragma once
#include <cstddef>
#include <filesystem>

namespace mtrain {

// Remembers to which file a range of memory belongs, until it is forgotten. Any thread may call.
void remember_mapping(const void* begin, size_t bytes, const std::filesystem::path& path);
void forget_mapping(const void* begin);

// Handles SIGBUS from now on. At a fault in a mapping of a file it writes an error that names the
// file to stderr, passes the same text to `tell`, which may be null, and ends the process with exit
// code 1. Other faults end it as before. The handler belongs to the process, so that programs call
// this and libraries do not. `tell` runs in the handler: it may only call what is safe there.
void name_bus_errors(void (*tell)(const char* message));

}  // namespace mtrain
