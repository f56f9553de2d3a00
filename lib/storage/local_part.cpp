#include "storage/local_part.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/strings.h"
#include "storage/file_sums.h"
#include "storage/folder_lease.h"
#include "storage/temporary_checkpoint.h"

namespace mtrain::storage {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::string_view kPartRank = "rank-";
constexpr size_t kStartDigits = 16, kRankDigits = 5;
// The start of the names of folders that are not complete. comm::FileServer uses ".in-".
constexpr std::string_view kUnfinished = ".";
constexpr const char* kUseLock = ".used";

[[noreturn]] void fail_local(const char* verb, const fs::path& path, int error) {
  throw RunError(fmt::format("cannot {} {}: {}", verb, path.string(), std::strerror(error)));
}

// Opens a folder of this user, which must not be a link. Throws RunError.
int open_own_folder(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
    throw RunError(fmt::format("{} is a link or a file, not a folder", path.string()));
  if (fd < 0) fail_local("open", path, errno);
  struct stat info;
  if (::fstat(fd, &info) < 0 || info.st_uid != ::geteuid()) {
    ::close(fd);
    throw RunError(fmt::format("{} belongs to another user", path.string()));
  }
  // Others could rename what is in it.
  if ((info.st_mode & 022) && !(info.st_mode & S_ISVTX)) {
    ::close(fd);
    throw RunError(fmt::format("others may write to {}", path.string()));
  }
  return fd;
}

// Makes a folder that only its owner can read.
void make_private_folder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0700) < 0 && errno != EEXIST) fail_local("make", path, errno);
  const int fd = open_own_folder(path);
  const int changed = ::fchmod(fd, 0700), why = errno;
  ::close(fd);
  if (changed < 0) fail_local("protect", path, why);
}

std::optional<int64_t> local_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

bool has_sums_file(const PartDescription& d, const std::string& name) {
  return d.sizes.contains(name + ".sums");
}

}  // namespace

std::string PartName::text() const {
  return fmt::format("{}.{}.{}{:0{}}", step_name(step), start, kPartRank, rank, kRankDigits);
}

std::optional<PartName> parse_part_name(std::string_view text) {
  const std::vector<std::string> fields = split(std::string(text), '.');
  if (fields.size() != 3 || !fields[2].starts_with(kPartRank)) return std::nullopt;
  const auto rank = local_number(std::string_view(fields[2]).substr(kPartRank.size()));
  if (!rank || *rank > 1'000'000'000) return std::nullopt;
  PartName name{.step = parse_step(fields[0]), .start = fields[1], .rank = int(*rank)};
  const bool digits = name.start.size() == kStartDigits &&
                      name.start.find_first_not_of("0123456789abcdef") == std::string::npos;
  return name.step >= 0 && digits && name.text() == text ? std::optional(name) : std::nullopt;
}

// A line with the hash of the rest, and the rest as JSON.
std::string PartDescription::text() const {
  const json all = {{"step", name.step}, {"start", name.start},  {"rank", name.rank},
                    {"ranks", ranks},    {"sizes", json(sizes)}, {"sums", json(sums)},
                    {"shards", shards},  {"host", host}};
  const std::string rest = all.dump() + "\n";
  return content_hash(rest) + "\n" + rest;
}

PartDescription PartDescription::parse(std::string_view text, const std::string& origin) {
  const size_t line = text.find('\n');
  const auto rest = line == std::string_view::npos ? "" : text.substr(line + 1);
  if (rest.empty() || text.substr(0, line) != content_hash(rest))
    throw RunError(fmt::format("{} differs from what was saved", origin));
  try {
    const json all = json::parse(rest);
    PartDescription d;
    d.name = {.step = all.at("step"), .start = all.at("start"), .rank = all.at("rank")};
    d.ranks = all.at("ranks");
    d.host = all.value("host", "");
    d.sizes = all.at("sizes").get<std::map<std::string, int64_t>>();
    d.sums = all.at("sums").get<std::map<std::string, std::string>>();
    d.shards = all.at("shards");
    return d;
  } catch (const json::exception& e) {
    throw RunError(fmt::format("{} is not the description of a part: {}", origin, e.what()));
  }
}

PartWriter::PartWriter(const fs::path& root, PartName name)
    : name_(std::move(name)),
      temporary_(root / fmt::format("{}{}.{}", kUnfinished, name_.text(), ::getpid())),
      final_(root / name_.text()) {
  std::error_code error;
  fs::remove_all(temporary_, error);
  if (::mkdir(temporary_.c_str(), 0700) < 0) fail_local("make", temporary_, errno);
}

PartWriter::~PartWriter() {
  std::error_code error;
  if (!committed_) fs::remove_all(temporary_, error);
}

fs::path PartWriter::commit(int ranks, const std::string& shards) {
  PartDescription d{.name = name_, .ranks = ranks, .host = host_name(), .shards = shards};
  for (const auto& entry : fs::directory_iterator(temporary_))
    d.sizes[entry.path().filename().string()] = int64_t(entry.file_size());
  for (const auto& [file, bytes] : d.sizes)
    if (!file.ends_with(".sums") && !has_sums_file(d, file))
      d.sums[file] = content_hash(read_file(temporary_ / file));
  write_file_atomic(temporary_ / kPartFile, d.text());
  if (std::error_code error; fs::exists(final_, error)) remove_part(final_);
  if (::rename(temporary_.c_str(), final_.c_str()) < 0) fail_local("finish", final_, errno);
  committed_ = true;
  return final_;
}

PartDescription read_part_description(const fs::path& folder) {
  const fs::path file = folder / kPartFile;
  return PartDescription::parse(read_file(file), file.string());
}

LocalPart read_part(const fs::path& folder) {
  LocalPart part{.description = read_part_description(folder), .folder = folder};
  if (part.description.name.text() != folder.filename())
    throw RunError(fmt::format("{} describes another part", (folder / kPartFile).string()));
  for (const auto& [name, bytes] : part.description.sizes) {
    std::error_code error;
    const auto size = fs::file_size(folder / name, error);
    if (error)
      throw RunError(
          fmt::format("cannot look at {}: {}", (folder / name).string(), error.message()));
    if (int64_t(size) != bytes)
      throw RunError(fmt::format("{} has {} bytes and was saved with {}", (folder / name).string(),
                                 size, bytes));
  }
  for (const auto& [name, hash] : part.description.sums)
    if (content_hash(read_file(folder / name)) != hash)
      throw RunError(fmt::format("{} differs from what was saved", (folder / name).string()));
  return part;
}

std::vector<LocalPart> list_parts(const fs::path& root) {
  std::vector<LocalPart> parts;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    if (!parse_part_name(it->path().filename().string())) continue;
    try {
      parts.push_back(read_part(it->path()));
    } catch (const Error&) {  // the part is not complete
    }
  }
  std::ranges::sort(parts, {}, [](const LocalPart& p) { return p.folder; });
  return parts;
}

void remove_part(const fs::path& part) {
  std::error_code error;
  const fs::path unnamed =
      part.parent_path() / fmt::format("{}{}.old", kUnfinished, part.filename().string());
  fs::rename(part, unnamed, error);
  fs::remove_all(unnamed, error);
}

bool is_sound_part(const LocalPart& part) {
  try {
    for (const auto& [name, bytes] : part.description.sizes) {
      const fs::path file = part.folder / name;
      if (has_sums_file(part.description, name))
        FileSums(file, read_file(sums_path(file))).check_file();
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

LocalFolder::LocalFolder(const fs::path& dir, const std::string& host, const std::string& run)
    : path_(dir / host / run) {
  if (::mkdir(dir.c_str(), 0700) < 0 && errno != EEXIST) fail_local("make", dir, errno);
  ::close(open_own_folder(dir));
  make_private_folder(dir / host);
  make_private_folder(path_);
  const fs::path lock = path_ / kUseLock;
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (lock_ < 0) fail_local("write to", path_, errno);
  ::flock(lock_, LOCK_SH | LOCK_NB);  // a file system without locks has leases only
}

LocalFolder::~LocalFolder() { ::close(lock_); }

int64_t LocalFolder::bytes() const {
  int64_t bytes = 0;
  std::set<std::pair<dev_t, ino_t>> counted;
  std::error_code error;
  fs::recursive_directory_iterator it(path_, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    struct stat info;
    if (::lstat(it->path().c_str(), &info) < 0 || !S_ISREG(info.st_mode)) continue;
    constexpr int64_t kStatBlock = 512;  // the unit of st_blocks
    if (counted.emplace(info.st_dev, info.st_ino).second)
      bytes += std::min<int64_t>(info.st_size, kStatBlock * int64_t(info.st_blocks));
  }
  return bytes;
}

void LocalFolder::remove_temporaries() const {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(kUnfinished) && name != kUseLock) found.push_back(it->path());
  }
  for (const fs::path& p : found) fs::remove_all(p, error);
}

std::vector<std::string> LocalFolder::remove_leftovers(std::chrono::nanoseconds stale) const {
  std::vector<fs::path> others;
  std::vector<std::string> removed;
  std::error_code error;
  const fs::path host = path_.parent_path();
  for (fs::directory_iterator it(host, error), end; !error && it != end; it.increment(error))
    if (it->path() != path_ && !it->is_symlink() && it->is_directory())
      others.push_back(it->path());
  for (const fs::path& other : others) {
    const int fd = ::open((other / kUseLock).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) continue;  // not a folder of a run
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0 && age_of(other) >= stale) {
      fs::remove_all(other, error);
      removed.push_back(other.filename().string());
    }
    ::close(fd);
  }
  return removed;
}

void LocalFolder::remove_all() {
  std::error_code error;
  fs::remove_all(path_, error);
  fs::remove(path_.parent_path(), error);  // only if no other run has a folder there
}

bool is_in_memory(const fs::path& folder) {
  struct statfs info;
  return ::statfs(folder.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC;
}

}  // namespace mtrain::storage
