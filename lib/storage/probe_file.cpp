#include "storage/probe_file.h"

#include <dirent.h>
#include <unistd.h>

#include <random>
#include <thread>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "storage/folder_lease.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

constexpr const char* kProbePrefix = ".probe-";

std::string random_digits() {
  std::random_device device;
  std::string digits;
  for (int i = 0; i < 4; ++i) digits += fmt::format("{:08x}", device());
  return digits;
}

void remove_old_probes(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> old;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().starts_with(kProbePrefix) &&
        age_of(it->path()) > kLeaseStale)
      old.push_back(it->path());
  for (const fs::path& file : old) fs::remove(file, error);
}

// Opening the folder makes NFS ask the server for its changes.
void look_into(const fs::path& folder) {
  if (DIR* open = ::opendir(folder.c_str())) {
    static_cast<void>(::readdir(open));
    ::closedir(open);
  }
}

}  // namespace

ProbeFile::ProbeFile(const fs::path& folder)
    : folder_(folder), name_(kProbePrefix + random_digits()), content_(random_digits()) {
  remove_old_probes(folder_);
  write_file_atomic(folder_ / name_, content_);
}

ProbeFile::~ProbeFile() { ::unlink((folder_ / name_).c_str()); }

bool sees_probe(const fs::path& folder, const std::string& name, const std::string& content,
                std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kPause{100};
  const auto end = std::chrono::steady_clock::now() + patience;
  for (;;) {
    try {
      if (read_file(folder / name) == content) return true;
    } catch (const Error&) {  // not yet
    }
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kPause);
    look_into(folder);
  }
}

}  // namespace mtrain::storage
