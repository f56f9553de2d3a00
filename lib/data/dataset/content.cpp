#include "data/dataset/content.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <future>
#include <optional>

#include "base/cache_folder.h"
#include "base/content_hash.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strings.h"
#include "base/waiting_lock.h"
#include "data/dataset/indexed_dataset.h"

namespace mtrain::data {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFirstLine = "mtrain content 1";
constexpr int64_t kBlock = 4096, kBlocks = 4096;  // bytes of a block, and blocks of a sample
constexpr int64_t kPiece = int64_t(4) << 20;      // bytes between two calls of keep_going
constexpr int64_t kRead = int64_t(1) << 19;       // bytes that are read at a time
constexpr const char* kUnknown = "-";

std::string hash_all(const RandomAccessFile& file, const std::function<bool()>& keep_going) {
  ContentHash hash;
  std::string piece;
  for (int64_t at = 0; at < file.size();) {
    piece.resize(size_t(std::min(kRead, file.size() - at)));
    file.read(at, piece.size(), piece.data(), "its content");
    hash.add(piece);
    at += int64_t(piece.size());
    if ((at % kPiece == 0 || at == file.size()) && !keep_going()) return "";
  }
  return hash.hex();
}

// Hashes blocks at equal distances, including the first and the last. Several are read at the same
// time, since a disk or a server may need some time for each.
std::string hash_sample(const RandomAccessFile& file) {
  const int64_t places = file.size() / kBlock;
  std::string blocks(size_t(kBlocks * kBlock), '\0');
  constexpr int64_t kReaders = 16;
  std::vector<std::future<void>> readers;
  for (int64_t r = 0; r < kReaders; ++r)
    readers.push_back(std::async(std::launch::async, [&, r] {
      for (int64_t i = r * kBlocks / kReaders; i < (r + 1) * kBlocks / kReaders; ++i) {
        const auto place = int64_t(__int128(i) * (places - 1) / (kBlocks - 1));
        file.read(place * kBlock, size_t(kBlock), blocks.data() + i * kBlock, "its content");
      }
    }));
  for (auto& reader : readers) reader.wait();
  for (auto& reader : readers) reader.get();
  return ContentHash().add(blocks).hex();
}

std::optional<struct stat> look_at(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? std::optional(info) : std::nullopt;
}

int64_t nanoseconds(const struct timespec& time) {
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// Includes the time of the last change, since programs can set the time of the last write.
std::string cache_key(const struct stat& s) {
  return fmt::format("{}-{}-{}-{}-{}", s.st_dev, s.st_ino, s.st_size, nanoseconds(s.st_mtim),
                     nanoseconds(s.st_ctim));
}

std::optional<fs::path> cache_file(const struct stat& s) {
  const auto cache = cache_folder();
  return cache ? std::optional(*cache / "content" / cache_key(s)) : std::nullopt;
}

bool is_hash(std::string_view text) {
  return text.size() == ContentHash::kDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string kept_hash(const fs::path& path) {
  const auto info = look_at(path);
  const auto file = info ? cache_file(*info) : std::nullopt;
  std::error_code error;
  if (!file || fs::file_size(*file, error) != ContentHash::kDigits || error) return "";
  try {
    const std::string hash = read_file(*file);
    return is_hash(hash) ? hash : "";
  } catch (const Error&) {
    return "";
  }
}

void keep_hash(const struct stat& info, const std::string& hash) {
  const auto file = cache_file(info);
  if (!file) return;
  std::error_code ignored;
  fs::create_directories(file->parent_path(), ignored);
  try {
    write_file_atomic(*file, hash);
  } catch (const Error&) {
    // The cache folder cannot be written: the next run must read the file again.
  }
}

// Takes the full hashes from <prefix>.hash, except for files that were written later.
void take_hashes(const fs::path& prefix, Content& content) {
  const fs::path path = hash_path(prefix);
  const auto hashed = look_at(path);
  constexpr int64_t kMaxBytes = 4096;
  if (!hashed) return;
  Content known;
  if (S_ISREG(hashed->st_mode) && hashed->st_size <= kMaxBytes) {
    std::string text;
    try {
      text = read_file(path);
    } catch (const Error& e) {
      log::warn(fmt::format("{}; it is ignored", e.message()));
      return;
    }
    const size_t line = std::min(text.find('\n'), text.size());
    if (text.substr(0, line) == kFirstLine) known = parse_content(text.substr(line));
  }
  const auto find = [&](const FileContent& file) {
    return std::ranges::find(known, file.part, &FileContent::part);
  };
  const auto fits = [&](const FileContent& file) {
    const auto k = find(file);
    return k != known.end() && k->bytes == file.bytes && k->sample == file.sample;
  };
  if (known.size() != content.size() || !std::ranges::all_of(content, fits)) {
    log::warn(fmt::format("{} does not belong to the files beside it, and is ignored; remove it",
                          path.string()));
    return;
  }
  for (FileContent& file : content) {
    const auto info = look_at(file.path);
    if (file.full_hash.empty() && info &&
        nanoseconds(info->st_mtim) <= nanoseconds(hashed->st_mtim))
      file.full_hash = find(file)->full_hash;
  }
}

}  // namespace

FileContent read_content(const std::string& part, const fs::path& path, Reads reads) {
  const RandomAccessFile file(path);
  const bool all = reads == Reads::all || file.size() <= kBlocks * kBlock;
  const std::string hash = all ? hash_all(file, [] { return true; }) : hash_sample(file);
  return {.part = part,
          .bytes = file.size(),
          .sample = hash,
          .full_hash = all ? hash : "",
          .path = path};
}

Content content_of_tokens(const fs::path& prefix) {
  Content content{read_content("bin", bin_path(prefix), Reads::sample),
                  read_content("idx", idx_path(prefix), Reads::all)};
  if (fs::exists(mask_path(prefix)))
    content.push_back(read_content("mask", mask_path(prefix), Reads::sample));
  take_hashes(prefix, content);
  for (FileContent& file : content)
    if (file.full_hash.empty()) file.full_hash = kept_hash(file.path);
  return content;
}

void write_content(const fs::path& prefix,
                   const std::vector<std::pair<std::string, std::string>>& full_hashes) {
  Content content;
  for (const auto& [part, hash] : full_hashes) {
    fs::path path = prefix;
    path += "." + part;
    content.push_back(read_content(part, path, part == "idx" ? Reads::all : Reads::sample));
    content.back().full_hash = hash;
  }
  write_file_atomic(hash_path(prefix), fmt::format("{}\n{}", kFirstLine, print_content(content)));
}

std::string hash_file(const fs::path& path, const std::function<bool()>& keep_going) {
  const auto before = look_at(path);
  const RandomAccessFile file(path);
  std::string hash = hash_all(file, keep_going);
  const auto after = look_at(path);
  if (!before || !after || cache_key(*before) != cache_key(*after)) return "";
  if (!hash.empty()) keep_hash(*after, hash);
  return hash;
}

std::string settled_hash(const fs::path& path) {
  constexpr int64_t kSameTime = 100'000'000;  // nanoseconds; a file system's clock is coarser
  const auto info = look_at(path);
  const auto file = info ? cache_file(*info) : std::nullopt;
  const auto kept = file ? look_at(*file) : std::nullopt;
  if (!kept || nanoseconds(kept->st_mtim) < nanoseconds(info->st_ctim) + kSameTime) return "";
  return kept_hash(path);
}

std::string known_or_read_hash(const fs::path& path, const std::function<bool()>& keep_going) {
  if (std::string known = settled_hash(path); !known.empty()) return known;
  const auto info = look_at(path);
  const auto file = info ? cache_file(*info) : std::nullopt;
  if (!file) return hash_file(path, keep_going);
  const fs::path lock_file = fs::path(*file).concat(".lock");
  std::error_code ignored;
  fs::create_directories(file->parent_path(), ignored);
  std::optional<WaitingLock> lock;
  try {
    lock.emplace(lock_file, "", [&](auto) { keep_going(); });
  } catch (const RunError&) {
    return hash_file(path, keep_going);  // where no hash can be kept, each process reads the file
  }
  if (std::string known = settled_hash(path); !known.empty()) return known;
  std::string hash = hash_file(path, keep_going);
  // A process that waits finds the hash. One that comes later makes a lock of its own.
  fs::remove(lock_file, ignored);
  return hash;
}

std::string print_content(const Content& content) {
  std::string text;
  for (const FileContent& f : content)
    text += fmt::format("{} {} {} {}\n", f.part, f.bytes, f.sample,
                        f.full_hash.empty() ? kUnknown : f.full_hash);
  return text;
}

Content parse_content(const std::string& lines) {
  Content content;
  for (const std::string& line : split(lines, '\n')) {
    if (line.empty()) continue;
    const std::vector<std::string> words = split(line, ' ');
    FileContent file;
    if (words.size() != 4 || !is_hash(words[2]) || !(is_hash(words[3]) || words[3] == kUnknown))
      return {};
    const char* end = words[1].data() + words[1].size();
    const auto [last, error] = std::from_chars(words[1].data(), end, file.bytes);
    if (error != std::errc() || last != end || file.bytes < 0) return {};
    file.part = words[0];
    file.sample = words[2];
    if (words[3] != kUnknown) file.full_hash = words[3];
    content.push_back(std::move(file));
  }
  return content;
}

std::string content_difference(const Content& saved, const Content& now) {
  std::vector<std::string> found;
  const auto lacks = [&](const Content& a, const Content& b, const char* gist) {
    for (const FileContent& f : a)
      if (std::ranges::find(b, f.part, &FileContent::part) == b.end())
        found.push_back(fmt::format("{} {}", f.part, gist));
  };
  lacks(saved, now, "is missing now");
  lacks(now, saved, "is new");
  for (const FileContent& is : now) {
    const auto was = std::ranges::find(saved, is.part, &FileContent::part);
    if (was == saved.end()) continue;
    const std::string name = is.path.empty() ? is.part : is.path.string();
    if (was->bytes != is.bytes)
      found.push_back(fmt::format("{} has {} bytes, but had {}", name, is.bytes, was->bytes));
    else if (was->sample != is.sample ||
             (!was->full_hash.empty() && !is.full_hash.empty() && was->full_hash != is.full_hash))
      found.push_back(fmt::format("{} holds other data", name));
  }
  std::string text;
  for (const std::string& f : found) text += (text.empty() ? "" : ", ") + f;
  return text;
}

std::string sample_hash(const Content& content) {
  ContentHash hash;
  for (const FileContent& f : content)
    hash.add(fmt::format("{} {} {}\n", f.part, f.bytes, f.sample));
  return hash.hex();
}

}  // namespace mtrain::data
