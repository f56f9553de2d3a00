// The space of a file system.
#pragma once
#include <sys/statvfs.h>
#include <cstdint>
#include <filesystem>

namespace mtrain {

// Returns the bytes that this process may still write into the folder's file system; -1: unknown.
int64_t free_disk_bytes(const std::filesystem::path& folder);

// The same from what the system reports. Some blocks are reserved for root, and a disk that is full
// for everyone else is not for it.
int64_t free_disk_bytes(const struct statvfs& info, bool is_root);

}  // namespace mtrain
