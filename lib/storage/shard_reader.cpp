#include "storage/shard_reader.h"

#include <algorithm>
#include <set>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/strings.h"
#include "storage/file_sums.h"
#include "storage/safetensors_dtype.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

// An open file keeps up to four blocks of 4 MiB in memory.
constexpr size_t kOpenFiles = 8;
// The ranges of a tensor that is divided by columns may take some megabytes.
constexpr size_t kKnownTensors = 2;

// Finds the value of `key` in a list, and moves it to the front; nothing if it is not there.
template <class Key, class Value, class Asked>
const Value* find_recent(std::list<std::pair<Key, Value>>& list, const Asked& key) {
  const auto at = std::ranges::find_if(list, [&](const auto& entry) { return entry.first == key; });
  if (at == list.end()) return nullptr;
  list.splice(list.begin(), list, at);
  return &list.front().second;
}

}  // namespace

ShardReader::ShardReader(fs::path folder, TensorSet set)
    : folder_(std::move(folder)),
      path_(folder_ / kIndexJson),
      set_(set),
      manifest_(read_manifest(folder_)),
      index_(read_index(folder_, manifest_)) {
  for (const auto& [name, t] : index_.of(set_))
    entries_.push_back({name, std::string(safetensors_name(t.dtype)), t.dtype});
}

const PiecedTensor& ShardReader::tensor(std::string_view name) const {
  const PiecedTensors& all = index_.of(set_);
  if (const auto at = all.find(name); at != all.end()) return at->second;
  std::vector<std::string> names;
  for (const Entry& e : entries_) names.push_back(e.name);
  const std::string close = nearest(name, names);
  throw UserError(fmt::format("{} has no tensor `{}`", path_.string(), name),
                  close.empty() ? fmt::format("it has {} tensors with other names", names.size())
                                : fmt::format("did it mean `{}`?", close));
}

bool ShardReader::contains(std::string_view name) const { return index_.of(set_).contains(name); }

std::string ShardReader::origin(std::string_view name) const {
  return fmt::format("{}: tensor `{}`", path_.string(), name);
}

const Metadata& ShardReader::metadata() const {
  const PiecedTensors& all = index_.of(set_);
  std::optional<Metadata> read;
  if (all.empty() || all.begin()->second.pieces.empty())
    read.emplace();
  else
    read = file(all.begin()->second.pieces[0].file)->metadata();
  const std::scoped_lock lock(mutex_);
  if (!metadata_) metadata_ = std::move(read);
  return *metadata_;
}

std::string ShardReader::fingerprint() const {
  std::set<int32_t> files;
  for (const auto& [name, t] : index_.of(set_))
    for (const Piece& p : t.pieces) files.insert(p.file);
  std::string text;
  int64_t bytes = 0;
  for (const int32_t f : files) {
    const std::string& name = index_.files[size_t(f)];
    bytes += manifest_.sizes.at(name);
    text += name + " " + manifest_.sums.at(name) + "\n";
  }
  for (const auto& [name, t] : index_.of(set_)) text += name + " " + pieces_text(t.pieces) + "\n";
  return fmt::format("{} files with {} bytes (they hash to {})", files.size(), bytes,
                     content_hash(text));
}

ShardReader::File ShardReader::file(int32_t number) const {
  const std::scoped_lock lock(mutex_);
  if (const File* known = find_recent(open_, number)) return *known;
  const std::string& name = index_.files[size_t(number)];
  File opened =
      std::make_shared<SafetensorsReader>(folder_ / name, checked_sums(folder_, manifest_, name));
  if (open_.size() == kOpenFiles) open_.pop_back();
  open_.emplace_front(number, opened);
  return opened;
}

std::shared_ptr<const ShardReader::Ranges> ShardReader::ranges(std::string_view name) const {
  {
    const std::scoped_lock lock(mutex_);
    if (const auto* known = find_recent(known_, name)) return *known;
  }
  const PiecedTensor& t = tensor(name);
  auto all = std::make_shared<Ranges>();
  for (size_t i = 0; i < t.pieces.size(); ++i) {
    const StridedRun& r = t.pieces[i].run;
    for (int64_t k = 0; k < r.times; ++k)
      all->push_back({r.first + k * r.stride, r.count, k * r.count, i});
  }
  std::ranges::sort(*all, {}, &Range::first);
  int64_t at = 0;
  for (const Range& r : *all) {
    if (r.first != at)
      throw damaged_file(path_,
                         fmt::format("element {} of tensor `{}` is {}", std::min(at, r.first), name,
                                     r.first > at ? "in no piece" : "in two pieces"));
    at += r.count;
  }
  const std::scoped_lock lock(mutex_);
  if (known_.size() == kKnownTensors) known_.pop_back();
  known_.emplace_front(name, all);
  return all;
}

void ShardReader::read(std::string_view name, int64_t first, int64_t count, float* values) const {
  const PiecedTensor& t = tensor(name);
  MT_CHECK(first >= 0 && count >= 0 && count <= t.shape.count() - first,
           "elements {} + {} of {} of {}", first, count, t.shape.count(), name);
  const auto all = ranges(name);
  auto range = std::ranges::upper_bound(*all, first, {}, &Range::first);
  for (const int64_t end = first + count; first < end; ++range) {
    const Range& r = *std::prev(range);
    const Piece& piece = t.pieces[r.piece];
    const std::string in_file = piece_name(name, piece.run);
    const File from = file(piece.file);
    if (!from->contains(in_file) || from->info(in_file).dtype != t.dtype ||
        from->info(in_file).count() != piece.run.total())
      throw damaged_file(
          from->path(),
          fmt::format("it has no tensor `{}` of {} elements of {}, as {} says", in_file,
                      piece.run.total(), safetensors_name(t.dtype), kIndexJson));
    const int64_t n = std::min(end, r.first + r.count) - first;
    from->read(in_file, r.in_piece + first - r.first, n, values);
    first += n, values += n;
  }
}

}  // namespace mtrain::storage
