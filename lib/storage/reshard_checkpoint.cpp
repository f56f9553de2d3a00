#include "storage/reshard_checkpoint.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/file.h"
#include "base/math.h"
#include "storage/checkpoint_dir.h"
#include "storage/checkpoint_tensors.h"
#include "storage/file_sums.h"
#include "storage/finite_values.h"
#include "storage/free_space.h"
#include "storage/new_folder.h"
#include "storage/read_mark.h"
#include "storage/verify_checkpoint.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kCopiedElements = int64_t{1} << 21;  // in memory at a time

// Elements of a tensor that follow each other, as a tensor of a new file.
struct Slice {
  std::string tensor;
  DType dtype = DType::f32;
  StridedRun run;

  std::string name() const { return piece_name(tensor, run); }
  int64_t bytes() const { return run.count * dtype_size(dtype); }
};
using Slices = std::vector<Slice>;

// Returns all tensors of a set, the wider types first: all are then aligned in a file.
Slices tensors_of(const CheckpointTensors& tensors) {
  Slices all;
  for (const CheckpointTensors::Entry& t : tensors.entries()) {
    if (!t.dtype)
      throw UserError(
          fmt::format("{} is {}, a type that mtrain does not save", tensors.origin(t.name), t.type),
          "give a checkpoint as mtrain saved it");
    all.push_back({t.name, *t.dtype, {.first = 0, .count = tensors.shape(t.name).count()}});
  }
  std::ranges::stable_sort(all, std::greater<>(),
                           [](const Slice& s) { return dtype_size(s.dtype); });
  return all;
}

int64_t bytes_of(const Slices& slices) {
  int64_t bytes = 0;
  for (const Slice& s : slices) bytes += s.bytes();
  return bytes;
}

// Divides the bytes of a set into equal parts, up to an element. Parts may be empty.
std::vector<Slices> divided(const Slices& tensors, int files) {
  const int64_t total = bytes_of(tensors);
  std::vector<Slices> parts{static_cast<size_t>(files)};
  int64_t at = 0;  // bytes of the slices before
  int part = 0;
  for (const Slice& t : tensors) {
    const int64_t size = dtype_size(t.dtype);
    for (int64_t first = 0; first < t.run.count;) {
      while (part + 1 < files && at >= part_begin(total, files, part + 1)) ++part;
      const int64_t room = part_begin(total, files, part + 1) - at;
      const int64_t count = std::min(t.run.count - first, ceil_div(room, size));
      parts[size_t(part)].push_back({t.tensor, t.dtype, {.first = first, .count = count}});
      first += count, at += count * size;
    }
  }
  return parts;
}

// Reads a checkpoint and writes it into the folder of a new one.
class Resharding {
 public:
  Resharding(const fs::path& source, const fs::path& folder, const ReshardOptions& options)
      : source_(source), folder_(folder), options_(options) {}

  void plan() {
    tensors_ = open_all_checkpoint_tensors(source_);
    for (const auto& [set, tensors] : tensors_) {
      values_[set] = std::make_unique<FiniteValues>(*tensors, FiniteValues::Of::checkpoint);
      plan_[set] = divided(tensors_of(*tensors), options_.files);
      for (const Slices& part : plan_[set]) total_ += bytes_of(part);
    }
    require_space(folder_, total_);
  }

  void write_tensors() {
    for (const auto& [set, parts] : plan_)
      for (size_t i = 0; i < parts.size(); ++i)
        if (!parts[i].empty()) write_file(set, int(i), parts[i]);
  }

  // Copies the files that hold no tensors. Their checksums are those of the source.
  void copy_others() const {
    const Manifest manifest = read_manifest(source_);
    const std::set<std::string> of_tensors = tensor_files(manifest);
    std::error_code error;
    for (const auto& [name, bytes] : manifest.sizes) {
      if (of_tensors.contains(name)) continue;
      if (name == kRecipeCopy && !fs::exists(source_ / name, error)) continue;
      const fs::path to = folder_ / name;
      make_folders(to.parent_path());
      write_file_atomic(to, read_saved(source_ / name));
      if (manifest.has_sums && name != kRecipeCopy)
        FileSums(to, checked_sums(source_, manifest, name)).check_file();
    }
  }

  const CheckpointIndex& index() const { return index_; }
  const std::map<std::string, std::string>& sums() const { return sums_; }
  int64_t bytes() const { return total_; }

 private:
  std::set<std::string> tensor_files(const Manifest& manifest) const {
    if (manifest_path(source_).filename() == kIndexJson) {
      const std::vector<std::string> files = read_index(source_, manifest).files;
      return {files.begin(), files.end()};
    }
    std::set<std::string> files;
    for (const auto& [set, tensors] : tensors_) files.insert(tensors->path().filename().string());
    return files;
  }

  void write_file(TensorSet set, int number, const Slices& slices) {
    const CheckpointTensors& from = *tensors_.at(set);
    std::vector<TensorInfo> infos;
    for (const Slice& s : slices) infos.push_back({s.name(), s.dtype, Shape{s.run.count}});
    Metadata metadata = from.metadata();
    metadata.emplace("format", "mtrain");
    const std::string name = shard_file_name(set, number);
    SafetensorsWriter file(folder_ / name, infos, metadata, SafetensorsWriter::Sums::beside);
    for (const Slice& s : slices) {
      copy(*values_.at(set), s, file);
      PiecedTensor& tensor = index_.of(set)[s.tensor];
      tensor.dtype = s.dtype;
      tensor.shape = from.shape(s.tensor);
      tensor.pieces.push_back({int32_t(index_.files.size()), s.run});
    }
    file.commit();
    index_.files.push_back(name);
    sums_[name] = content_hash(read_file(sums_path(folder_ / name)));
  }

  // The values are finite, and reading them as fp32 is exact: the conversion back is, too.
  void copy(const FiniteValues& from, const Slice& s, SafetensorsWriter& to) {
    std::vector<float> values;
    for (int64_t at = 0; at < s.run.count; at += kCopiedElements) {
      values.resize(size_t(std::min(kCopiedElements, s.run.count - at)));
      const auto count = int64_t(values.size());
      from.read(s.tensor, s.run.first + at, count, values.data());
      with_float(s.dtype, [&]<class T>() {
        const std::vector<T> converted(values.begin(), values.end());
        to.write_part(s.name(), ConstSpan{converted.data(), count, s.dtype});
      });
      done_ += count * dtype_size(s.dtype);
      if (options_.progress) options_.progress(done_, total_);
    }
  }

  const fs::path source_, folder_;
  const ReshardOptions& options_;
  std::map<TensorSet, std::unique_ptr<CheckpointTensors>> tensors_;
  std::map<TensorSet, std::unique_ptr<FiniteValues>> values_;  // of tensors_
  std::map<TensorSet, std::vector<Slices>> plan_;
  CheckpointIndex index_;
  std::map<std::string, std::string> sums_;
  int64_t done_ = 0, total_ = 0;
};

}  // namespace

Resharded reshard_checkpoint(const fs::path& source, const fs::path& output,
                             const ReshardOptions& options) {
  MT_CHECK(options.files > 0, "{} files", options.files);
  const ReadMark reading(source);
  const auto found = complete_checkpoint(source);
  if (!found)
    throw UserError(fmt::format("{} is not a checkpoint", source.string()),
                    "give a checkpoint such as runs/a/checkpoints/step-00000120, or a run folder");
  NewFolder whole(output);
  CheckpointWriter writer(whole.path(), found->step);
  Resharding work(source, writer.folder(), options);
  work.plan();
  work.write_tensors();
  work.copy_others();
  const auto count = int64_t(work.index().weights.size() + work.index().optimizer.size());
  const int files = int(work.index().files.size());
  writer.set_index(work.index(), work.sums());
  const fs::path made = writer.commit();
  const Verified verified = verify_checkpoint(made);
  if (!verified.faults.empty())
    throw RunError(fmt::format("what was written cannot be read back: {}", verified.faults[0]),
                   "check the memory and the disks of this host; the source is unchanged");
  whole.commit();
  return {.checkpoint = output / made.filename(),
          .step = found->step,
          .tensors = count,
          .bytes = work.bytes(),
          .files = files};
}

}  // namespace mtrain::storage
