// Opens files that somebody named: a FIFO, a device, a socket or a folder is refused by name, and
// never waited for. Throws UserError.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace mtrain {

// An open descriptor of a regular file, which the caller closes.
struct RegularFile {
  int fd = -1;
  int64_t size = 0;  // bytes
};
RegularFile open_regular_file(const std::filesystem::path& path);

// Returns the content of a file. One that has more than `most` bytes is refused.
std::string read_regular_file(const std::filesystem::path& path, int64_t most);

}  // namespace mtrain
