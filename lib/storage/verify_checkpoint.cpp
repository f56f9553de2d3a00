#include "storage/verify_checkpoint.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "storage/checkpoint_dir.h"
#include "storage/checkpoint_index.h"
#include "storage/file_sums.h"
#include "storage/manifest.h"
#include "storage/read_mark.h"
#include "storage/safetensors_header.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

// Returns the tensors of a file, without a check of its bytes; none if the header cannot be read.
std::vector<StoredTensor> unchecked_tensors(const RandomAccessFile& file) {
  try {
    uint64_t length = 0;
    file.read(0, sizeof length, &length, "the header");
    const int64_t rest = file.size() - kSafetensorsLengthBytes;
    if (rest < 0 || length > uint64_t(std::min(rest, kLargestSafetensorsHeader))) return {};
    std::string text(length, '\0');
    file.read(kSafetensorsLengthBytes, text.size(), text.data(), "the header");
    return parse_safetensors_header(file.path(), text, rest - int64_t(length)).tensors;
  } catch (const Error&) {
    return {};
  }
}

// Returns " (tensor a, tensor b, and 3 more)": what the bytes [first, first + count) hold.
std::string tensors_in(const RandomAccessFile& file, int64_t first, int64_t count) {
  if (!file.path().string().ends_with(".safetensors")) return "";
  constexpr int kShown = 3;
  const std::vector<StoredTensor> tensors = unchecked_tensors(file);
  if (tensors.empty()) return " (its header cannot be read)";
  std::string names = first == 0 ? "the header" : "";
  int n = 0;
  for (const StoredTensor& t : tensors)
    if (t.begin < first + count && first < t.begin + t.bytes && ++n <= kShown)
      names += fmt::format("{}tensor `{}`", names.empty() ? "" : ", ", t.name);
  if (n > kShown) names += fmt::format(", and {} more", n - kShown);
  return " (" + names + ")";
}

class Verification {
 public:
  Verification(const fs::path& folder, const std::function<void(int64_t, int64_t)>& progress)
      : folder_(folder), progress_(progress) {}

  Verified run() {
    Manifest manifest;
    if (!attempt([&] { manifest = read_manifest(folder_); })) return std::move(result_);
    result_.step = manifest.step, result_.has_sums = manifest.has_sums;
    for (const auto& [name, bytes] : manifest.sizes) total_ += bytes;
    for (const auto& [name, bytes] : manifest.sizes) {
      if (name == kRecipeCopy) continue;
      ++result_.files;
      attempt([&, &name = name, bytes = bytes] { check(manifest, name, bytes); });
    }
    // The step, and what state.json holds.
    if (result_.faults.empty()) attempt([&] { complete_checkpoint(folder_); });
    // The index says where the tensors are.
    if (result_.faults.empty() && manifest_path(folder_).filename() == kIndexJson)
      attempt([&] { read_index(folder_, manifest); });
    return std::move(result_);
  }

 private:
  template <class Work>
  bool attempt(const Work& work) {
    try {
      work();
      return true;
    } catch (const Error& e) {
      result_.faults.push_back(e.message());
      return false;
    }
  }

  void check(const Manifest& manifest, const std::string& name, int64_t bytes) {
    const fs::path path = folder_ / name;
    require_no_link(folder_, name);
    std::error_code error;
    if (!fs::exists(path, error) && !error) throw missing_file(path);
    const RandomAccessFile file = open_saved(path);
    if (file.size() != bytes)
      throw damaged_file(path,
                         fmt::format("it has {} bytes and was saved with {}", file.size(), bytes));
    if (!manifest.has_sums) return;
    const FileSums sums(path, checked_sums(folder_, manifest, name));
    if (sums.bytes() != bytes) throw damaged_file(sums_path(path), "it is of another size");
    std::vector<std::byte> content(size_t(std::min(kSumsBlock, bytes)));
    for (int64_t block = 0; block < sums.blocks(); ++block) {
      const int64_t first = block * kSumsBlock, n = sums.size_of(block);
      file.read(first, size_t(n), content.data(), "the bytes");
      ++result_.blocks, result_.bytes += n;
      try {
        sums.check(block, {content.data(), size_t(n)});
      } catch (const DamagedFile& e) {
        result_.faults.push_back(e.message() + tensors_in(file, first, n));
      }
      if (progress_) progress_(result_.bytes, total_);
    }
  }

  const fs::path folder_;
  const std::function<void(int64_t, int64_t)>& progress_;
  Verified result_;
  int64_t total_ = 0;
};

}  // namespace

Verified verify_checkpoint(const fs::path& folder,
                           const std::function<void(int64_t, int64_t)>& progress) {
  std::error_code error;
  if (!fs::is_directory(folder, error) || !is_ours(folder))
    throw UserError(fmt::format("{} is not a checkpoint", folder.string()),
                    "give a checkpoint such as runs/a/checkpoints/step-00000120, or a run folder");
  const ReadMark reading(folder);
  return Verification(folder, progress).run();
}

}  // namespace mtrain::storage
