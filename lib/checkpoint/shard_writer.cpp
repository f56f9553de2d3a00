#include "checkpoint/shard_writer.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "base/content_hash.h"
#include "base/file.h"
#include "storage/file_sums.h"
#include "storage/safetensors.h"

namespace mtrain::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;
using storage::TensorSet;

namespace {

using Written = std::function<void(int64_t bytes)>;  // called after each part of a piece

// Writes one file. `write` writes the values of a piece.
template <class Piece, class Write>
WrittenShard write_file(const fs::path& path, TensorSet set, const std::vector<Piece>& pieces,
                        int io_threads, const Write& write,
                        const std::function<void(const std::function<void()>&)>& in_background) {
  std::vector<storage::TensorInfo> infos;
  for (const ShardPiece& p : pieces) infos.push_back({p.name(), p.dtype, Shape{p.count()}});
  storage::SafetensorsWriter file(path, infos, storage::Metadata{{"format", "mtrain"}},
                                  storage::SafetensorsWriter::Sums::beside, io_threads);
  WrittenShard shard{.name = path.filename().string()};
  shard.index.files.push_back(shard.name);
  for (const Piece& p : pieces) {
    write(file, p);
    storage::PiecedTensor& tensor = shard.index.of(set)[p.tensor];
    tensor.dtype = p.dtype;
    tensor.shape = p.shape;
    tensor.pieces.push_back({.file = 0, .run = p.run});
  }
  in_background([&] { file.commit(); });
  shard.bytes = int64_t(fs::file_size(path));
  shard.sums_hash = content_hash(read_file(storage::sums_path(path)));
  return shard;
}

void write_live(storage::SafetensorsWriter& file, const LivePiece& p, Stream& compute,
                const Written& written) {
  int64_t rest = p.bytes();
  file.write(p.name(), p.values, compute, [&] {
    const int64_t n = std::min(rest, storage::SafetensorsWriter::kCopiedAtOnce);
    rest -= n;
    written(n);
  });
}

void write_copy(storage::SafetensorsWriter& file, const HostPiece& p, const Written& written) {
  const int64_t size = dtype_size(p.dtype), part = storage::SafetensorsWriter::kCopiedAtOnce / size;
  for (int64_t first = 0; first < p.count(); first += part) {
    const int64_t n = std::min(part, p.count() - first);
    file.write_part(p.name(), {p.values.as<char>() + first * size, n, p.dtype});
    written(n * size);
  }
}

// Writes the files of this rank that have pieces. `write` writes the values of a piece, and calls
// its last argument.
template <class Piece, class Write>
std::vector<WrittenShard> write_files(
    const std::map<TensorSet, std::vector<Piece>>& pieces, int rank, const fs::path& folder,
    int io_threads, const Write& write, const WriteProgress& progress,
    const std::function<void(const std::function<void()>&)>& in_background) {
  int64_t done = 0, total = 0;
  for (const auto& [set, of_file] : pieces)
    for (const ShardPiece& p : of_file) total += p.bytes();
  const Written written = [&](int64_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  };
  std::vector<WrittenShard> shards;
  for (const TensorSet set : kShardSets) {
    const auto of_file = pieces.find(set);
    if (of_file == pieces.end() || of_file->second.empty()) continue;
    shards.push_back(write_file(
        folder / storage::shard_file_name(set, rank), set, of_file->second, io_threads,
        [&](storage::SafetensorsWriter& file, const Piece& p) { write(file, p, written); },
        in_background));
  }
  in_background([&] { sync_directory(folder); });
  return shards;
}

}  // namespace

std::vector<WrittenShard> write_shards(
    const CheckpointParts& t, const fs::path& folder, const WriteProgress& progress,
    const std::function<void(const std::function<void()>&)>& in_background) {
  await_values(t);
  std::map<TensorSet, std::vector<LivePiece>> pieces;
  for (const TensorSet set : kShardSets) pieces[set] = live_pieces(t, set);
  return write_files(
      pieces, t.control.rank(), folder, t.io_threads,
      [&](storage::SafetensorsWriter& file, const LivePiece& p, const Written& written) {
        write_live(file, p, t.compute, written);
      },
      progress, in_background);
}

std::vector<WrittenShard> write_shards(const Snapshot& snapshot, int rank, const fs::path& folder,
                                       int io_threads, const WriteProgress& progress) {
  snapshot.wait();
  std::map<TensorSet, std::vector<HostPiece>> pieces;
  for (const TensorSet set : kShardSets) pieces[set] = snapshot.pieces(set);
  return write_files(pieces, rank, folder, io_threads, write_copy, progress,
                     [](const std::function<void()>& work) { work(); });
}

std::string shards_text(const std::vector<WrittenShard>& shards) {
  json files = json::array();
  for (const WrittenShard& s : shards) {
    json sets = json::object();
    for (const TensorSet set : {TensorSet::weights, TensorSet::optimizer})
      for (const auto& [name, t] : s.index.of(set)) {
        std::vector<int64_t> shape;
        for (int i = 0; i < t.shape.rank(); ++i) shape.push_back(t.shape[i]);
        sets[std::string(tensor_set_name(set))][name] = {int(t.dtype), shape,
                                                         storage::pieces_text(t.pieces)};
      }
    files.push_back({s.name, s.bytes, s.sums_hash, sets});
  }
  return files.dump();
}

std::vector<WrittenShard> parse_shards(const std::string& text) {
  std::vector<WrittenShard> shards;
  for (const json& f : json::parse(text)) {
    WrittenShard s{.name = f[0], .bytes = f[1], .sums_hash = f[2]};
    s.index.files.push_back(s.name);
    for (const TensorSet set : {TensorSet::weights, TensorSet::optimizer}) {
      const auto tensors = f[3].find(tensor_set_name(set));
      if (tensors == f[3].end()) continue;
      for (const auto& [name, t] : tensors->items())
        s.index.of(set)[name] = {.dtype = DType(t[0].get<int>()),
                                 .shape = storage::shape_of(t[1].get<std::vector<int64_t>>()),
                                 .pieces = storage::parse_pieces(t[2].get<std::string>())};
    }
    shards.push_back(std::move(s));
  }
  return shards;
}

}  // namespace mtrain::checkpoint
