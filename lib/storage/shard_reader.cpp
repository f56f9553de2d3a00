#include "storage/shard_reader.h"

#include <sys/resource.h>
#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <set>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/strings.h"
#include "storage/file_sums.h"
#include "storage/safetensors_dtype.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

// Blocks that are kept after their use: threads of a rank read neighbouring parts of a tensor.
constexpr size_t kBlocksAfterUse = 8;
// Blocks that are read ahead of their use: 48 MiB.
constexpr size_t kBlocksAhead = 12;
// The pieces of a tensor may take some megabytes.
constexpr size_t kKnownTensors = 4;
// Elements that are looked up at a time. This bounds the memory for rows of few elements.
constexpr int64_t kWindow = 64 << 10;

// A matrix that was saved by its columns may need a file of each rank of tensor parallelism for
// each row. An open file has two descriptors.
size_t most_open_files() {
  constexpr rlim_t kFewest = 8, kMost = 128, kShare = 8;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFewest;
  return std::clamp(limit.rlim_cur / kShare, kFewest, kMost);
}

// Returns how many elements of the run come before element `at` of the tensor.
int64_t elements_before(const StridedRun& r, int64_t at) {
  if (at <= r.first) return 0;
  if (r.times == 1) return std::min(at - r.first, r.count);
  const int64_t row = (at - r.first) / r.stride, in_row = (at - r.first) % r.stride;
  return row >= r.times ? r.total() : row * r.count + std::min(in_row, r.count);
}

// Returns the element of the tensor that is element `at` of the run.
int64_t element_at(const StridedRun& r, int64_t at) {
  return r.first + at / r.count * r.stride + at % r.count;
}

// Finds the value of `key` in a list, and moves it to the front; nothing if it is not there.
template <class Key, class Value, class Asked>
const Value* find_recent(std::list<std::pair<Key, Value>>& list, const Asked& key) {
  const auto at = std::ranges::find_if(list, [&](const auto& entry) { return entry.first == key; });
  if (at == list.end()) return nullptr;
  list.splice(list.begin(), list, at);
  return &list.front().second;
}

}  // namespace

ShardReader::ShardReader(fs::path folder, TensorSet set, ReadOptions options)
    : folder_(std::move(folder)),
      path_(folder_ / kIndexJson),
      set_(set),
      manifest_(read_manifest(folder_)),
      index_(read_index(folder_, manifest_)),
      io_threads_(options.io_threads),
      open_files_(most_open_files()),
      cache_(std::make_shared<BlockCache>(kBlocksAfterUse, options.direct)) {
  cache_->set_observer([this](const BlockKey& key) {
    if (ReadAhead* ahead = needed_) ahead->needed(key);
  });
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
  std::shared_ptr<OpenFile> open;
  {
    const std::scoped_lock lock(mutex_);
    if (const auto* known = find_recent(open_, number)) {
      open = *known;
    } else {
      open = std::make_shared<OpenFile>();
      if (open_.size() >= open_files_) open_.pop_back();
      open_.emplace_front(number, open);
    }
  }
  const std::scoped_lock lock(open->opening);
  if (!open->file) {
    const std::string& name = index_.files[size_t(number)];
    open->file = std::make_shared<SafetensorsReader>(
        folder_ / name, checked_sums(folder_, manifest_, name), cache_, number);
  }
  return open->file;
}

std::shared_ptr<const ShardReader::SortedPieces> ShardReader::sorted_pieces(
    std::string_view name) const {
  {
    const std::scoped_lock lock(mutex_);
    if (const auto* known = find_recent(known_, name)) return *known;
  }
  auto sorted = std::make_shared<SortedPieces>();
  sorted->tensor = &tensor(name);
  for (const Piece& p : sorted->tensor->pieces) sorted->pieces.push_back(&p);
  std::ranges::sort(sorted->pieces, {}, [](const Piece* p) { return p->run.first; });
  int64_t end = 0;
  for (const Piece* p : sorted->pieces) sorted->ends.push_back(end = std::max(end, p->run.end()));
  const std::scoped_lock lock(mutex_);
  if (known_.size() == kKnownTensors) known_.pop_back();
  known_.emplace_front(name, sorted);
  return sorted;
}

std::vector<ShardReader::Part> ShardReader::parts_of(const SortedPieces& sorted, int64_t first,
                                                     int64_t count) {
  std::vector<Part> parts;
  const auto after = std::ranges::lower_bound(sorted.pieces, first + count, {},
                                              [](const Piece* p) { return p->run.first; });
  for (auto i = after - sorted.pieces.begin() - 1; i >= 0 && sorted.ends[size_t(i)] > first; --i) {
    const Piece* p = sorted.pieces[size_t(i)];
    const int64_t begin = elements_before(p->run, first),
                  end = elements_before(p->run, first + count);
    if (begin < end) parts.push_back({p, begin, end});
  }
  std::ranges::reverse(parts);
  return parts;
}

// Throws unless each of the elements is in one part.
void ShardReader::require_once(std::string_view name, const std::vector<Part>& parts, int64_t first,
                               int64_t count) const {
  if (parts.size() == 1 && parts[0].end - parts[0].begin == count) return;
  std::vector<std::pair<int64_t, int64_t>> ranges;  // first element and count
  for (const Part& part : parts)
    for (int64_t i = part.begin, n = 0; i < part.end; i += n) {
      const StridedRun& r = part.piece->run;
      n = std::min(part.end - i, r.count - i % r.count);
      ranges.emplace_back(element_at(r, i), n);
    }
  std::ranges::sort(ranges);
  ranges.emplace_back(first + count, 0);
  int64_t at = first;
  for (const auto& [begin, n] : ranges) {
    if (begin != at)
      throw damaged_file(path_, fmt::format("element {} of tensor `{}` is {}", std::min(at, begin),
                                            name, begin > at ? "in no piece" : "in two pieces"));
    at += n;
  }
}

const StoredTensor& ShardReader::stored(const SafetensorsReader& file, std::string_view name,
                                        const PiecedTensor& t, const Piece& piece) const {
  const std::string in_file = piece_name(name, piece.run);
  if (file.contains(in_file))
    if (const StoredTensor& found = file.info(in_file);
        found.dtype == t.dtype && found.count() == piece.run.total())
      return found;
  throw damaged_file(file.path(),
                     fmt::format("it has no tensor `{}` of {} elements of {}, as {} says", in_file,
                                 piece.run.total(), safetensors_name(t.dtype), kIndexJson));
}

// Reads the part's elements into `values`, which begins with element `first` of the tensor.
void ShardReader::read_part(std::string_view name, const PiecedTensor& t, const Part& part,
                            int64_t first, float* values) const {
  const StridedRun& r = part.piece->run;
  const File from = file(part.piece->file);
  const StoredTensor& in_file = stored(*from, name, t, *part.piece);
  const int64_t count = part.end - part.begin;
  if (part.begin / r.count == (part.end - 1) / r.count)
    return from->read(in_file, part.begin, count, values + element_at(r, part.begin) - first);
  // A part of the columns: its rows follow each other in the file.
  std::vector<float> rows(static_cast<size_t>(count));
  from->read(in_file, part.begin, count, rows.data());
  for (int64_t i = part.begin, n = 0; i < part.end; i += n) {
    n = std::min(part.end - i, r.count - i % r.count);
    std::memcpy(values + element_at(r, i) - first, rows.data() + i - part.begin,
                size_t(n) * sizeof(float));
  }
}

void ShardReader::read(std::string_view name, int64_t first, int64_t count, float* values) const {
  const auto sorted = sorted_pieces(name);
  const PiecedTensor& t = *sorted->tensor;
  MT_CHECK(first >= 0 && count >= 0 && count <= t.shape.count() - first,
           "elements {} + {} of {} of {}", first, count, t.shape.count(), name);
  for (const int64_t end = first + count; first < end; first += kWindow, values += kWindow) {
    const int64_t n = std::min(kWindow, end - first);
    const std::vector<Part> parts = parts_of(*sorted, first, n);
    require_once(name, parts, first, n);
    // A row of a matrix that was saved by its columns needs a block of each file.
    if (parts.size() > 1) cache_->keep_at_least(parts.size() + kBlocksAfterUse + kBlocksAhead);
    for (const Part& part : parts) read_part(name, t, part, first, values);
  }
}

class ShardReader::Blocks {
 public:
  Blocks(const ShardReader& reader, std::vector<ExpectedRun> runs)
      : reader_(reader), runs_(std::move(runs)) {}

  std::optional<BlockKey> next() {
    while (ready_.empty() && run_ < runs_.size()) add_window();
    if (ready_.empty()) return std::nullopt;
    const BlockKey key = ready_.front();
    ready_.pop_front();
    return key;
  }

 private:
  // Adds the blocks of the next elements, and passes these.
  void add_window() {
    const auto& [name, run] = runs_[run_];
    const int64_t first = element_at(run, at_),
                  n = std::min({run.total() - at_, run.count - at_ % run.count, kWindow});
    const auto sorted = reader_.sorted_pieces(name);
    int64_t rows = n == run.count ? run.times : 1;  // that are in the same blocks
    for (const Part& part : parts_of(*sorted, first, n))
      rows = std::min(rows, add_part(name, *sorted->tensor, part, run.stride));
    at_ = std::min(at_ + std::max<int64_t>(rows, 1) * n, run.total());
    if (at_ == run.total()) ++run_, at_ = 0;
  }

  // Adds the blocks of a part. Returns how many rows of `stride` elements follow it in its last
  // block.
  int64_t add_part(const std::string& name, const PiecedTensor& t, const Part& part,
                   int64_t stride) {
    const int32_t number = part.piece->file;
    const File file = reader_.file(number);
    const StoredTensor& in_file = reader_.stored(*file, name, t, *part.piece);
    if (!file->file().has_sums()) return 1;
    const int64_t size = dtype_size(t.dtype), end = in_file.begin + part.end * size,
                  last = (end - 1) / kSumsBlock;
    for (int64_t b = (in_file.begin + part.begin * size) / kSumsBlock; b <= last; ++b)
      if (listed_.emplace(number, b).second) ready_.push_back({number, b});
    const int64_t row = part.piece->run.times > 1 ? part.piece->run.count : stride;
    if (row == 0) return 1;
    return std::min(((last + 1) * kSumsBlock - end) / (row * size),
                    (part.piece->run.total() - part.end) / row);
  }

  const ShardReader& reader_;
  const std::vector<ExpectedRun> runs_;
  size_t run_ = 0;
  int64_t at_ = 0;  // elements of this run that were passed
  std::set<std::pair<int32_t, int64_t>> listed_;
  std::deque<BlockKey> ready_;
};

void ShardReader::expect(std::vector<ExpectedRun> runs) const {
  needed_ = nullptr;
  ahead_.reset();
  cache_->keep_at_least(kBlocksAfterUse + kBlocksAhead);
  const auto blocks = std::make_shared<Blocks>(*this, std::move(runs));
  ahead_ = std::make_unique<ReadAhead>(
      io_threads_, kBlocksAhead, [blocks] { return blocks->next(); },
      [this](const BlockKey& key) {
        return file(int32_t(key.file))->file().read_ahead(key.block);
      });
  needed_ = ahead_.get();
}

}  // namespace mtrain::storage
