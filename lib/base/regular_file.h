// Opens files that a user has named. A FIFO, a device, a socket or a folder is refused with its
// kind, without waiting for it. Throws UserError.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace mtrain {

// An open descriptor of a regular file. The caller closes it.
struct RegularFile {
  int fd = -1;
  int64_t size = 0;  // bytes
};
RegularFile open_regular_file(const std::filesystem::path& path);

// Returns the content of a file. A file of more than `most` bytes is refused.
std::string read_regular_file(const std::filesystem::path& path, int64_t most);

}  // namespace mtrain
