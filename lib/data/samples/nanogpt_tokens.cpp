#include "data/samples/nanogpt_tokens.h"

#include <glob.h>
#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "data/dataset/indexed_dataset.h"

namespace mtrain::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHeader = 256 * sizeof(int32_t);

// A mapped file whose header and size have been checked.
class TokenFile {
 public:
  explicit TokenFile(const fs::path& path) : path_(path), file_(path) {
    std::array<int32_t, 4> header{};
    if (bytes() < kHeader) refuse("is shorter than its header of 1024 bytes");
    std::memcpy(header.data(), file_.bytes().data(), sizeof header);
    constexpr int32_t kMagic = 278895051, kEarlierMagic = 20240520;
    if (header[0] != kMagic && header[0] != kEarlierMagic)
      refuse(fmt::format("begins with {} instead of {}", header[0], kMagic));
    if (header[1] != 1) refuse(fmt::format("has the version {} instead of 1", header[1]));
    width_ = header[0] == kEarlierMagic ? 2 : header[3];
    if (width_ != 2 && width_ != 4) refuse(fmt::format("has ids of {} bytes", width_));
    ids_ = header[2];
    if (ids_ <= 0) refuse("has no ids");
    if (bytes() != kHeader + size_t(ids_) * size_t(width_))
      refuse(fmt::format("has {} bytes; {} ids of {} bytes need {}", bytes(), ids_, width_,
                         kHeader + size_t(ids_) * size_t(width_)));
  }

  int64_t ids() const { return ids_; }
  int width() const { return width_; }
  void read(int64_t first, std::vector<int32_t>& out) const {
    const std::byte* const from = file_.bytes().data() + kHeader + size_t(first) * size_t(width_);
    for (size_t i = 0; i < out.size(); ++i) {
      uint32_t id = 0;
      std::memcpy(&id, from + i * size_t(width_), size_t(width_));
      if (id > uint32_t(INT32_MAX)) refuse(fmt::format("has the id {}", id));
      out[i] = int32_t(id);
    }
  }

 private:
  size_t bytes() const { return file_.bytes().size(); }
  [[noreturn]] void refuse(const std::string& why) const {
    throw UserError(fmt::format("{} {}", path_.string(), why),
                    "give .bin files of NanoGPT; pairs of .bin and .idx are named without ending");
  }

  const fs::path path_;
  const MappedFile file_;
  int64_t ids_ = 0;
  int width_ = 2;
};

}  // namespace

std::vector<fs::path> token_files(const std::vector<std::string>& patterns,
                                  const std::string& name) {
  std::vector<fs::path> files;
  for (const std::string& pattern : patterns) {
    glob_t matches = {};
    if (::glob(pattern.c_str(), 0, nullptr, &matches) == 0)
      for (size_t i = 0; i < matches.gl_pathc; ++i) files.emplace_back(matches.gl_pathv[i]);
    const bool none = matches.gl_pathc == 0;
    ::globfree(&matches);
    if (none)
      throw UserError(fmt::format("{}: no file matches {}", name, pattern),
                      "give a .bin file of NanoGPT, or a pattern such as data/train_*.bin");
  }
  return files;
}

void convert_token_files(const std::vector<fs::path>& files, const fs::path& prefix) {
  constexpr int64_t kAtOnce = 1 << 20;
  bool wide = false;
  for (const fs::path& path : files) wide = wide || TokenFile(path).width() == 4;
  IndexedDatasetWriter writer(prefix, wide ? TokenType::i32 : TokenType::u16);
  std::vector<int32_t> ids;
  for (const fs::path& path : files) {
    const TokenFile file(path);
    for (int64_t first = 0; first < file.ids(); first += kAtOnce) {
      ids.resize(size_t(std::min(kAtOnce, file.ids() - first)));
      file.read(first, ids);
      writer.add_tokens(ids);
    }
    writer.end_document();
  }
  writer.finish();
}

}  // namespace mtrain::data
