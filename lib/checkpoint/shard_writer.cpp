#include "checkpoint/shard_writer.h"

#include <algorithm>

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

// A tensor of a rank's file: a part of this rank's memory, which is a piece of a saved tensor.
struct ShardPiece {
  std::string tensor;  // its name, without that of the piece
  Shape shape;         // of the full tensor
  StridedRun run;
  Tensor values;

  std::string name() const { return storage::piece_name(tensor, run); }
  int64_t bytes() const { return values.count() * dtype_size(values.dtype()); }
};

// Returns the part of an owned range that a planned run is.
const model::OwnedPart& part_with(const std::vector<model::OwnedPart>& parts,
                                  const PlannedRun& run) {
  const auto part = std::ranges::find_if(parts, [&](const model::OwnedPart& p) {
    return p.in_param <= run.here && run.here + run.full.total() <= p.in_param + p.count;
  });
  MT_CHECK(part != parts.end(), "this rank owns no elements {} + {} of {}", run.here,
           run.full.total(), run.parameter->name);
  return *part;
}

// Returns the pieces of both sets, the weights first.
std::vector<ShardPiece> pieces_of(const CheckpointParts& t, TensorSet set) {
  const std::vector<optim::StateTensor> state = t.optimizer.state();
  std::vector<SavedKind> kinds;
  if (set == TensorSet::weights)
    kinds.push_back({"", [](const model::ParamSpec&) { return true; }});
  else
    for (const optim::StateTensor& s : state)
      kinds.push_back(
          {s.suffix, [values = &s.values](const model::ParamSpec& p) { return values->has(p); }});
  std::vector<ShardPiece> pieces;
  if (t.control.rank() == 0)
    for (const ReplicatedTensor& r : t.replicated)
      if (r.of_model == (set == TensorSet::weights))
        pieces.push_back(
            {r.name, r.value.shape(), {.first = 0, .count = r.value.count()}, r.value});
  for (const PlannedRun& run : save_plan(t.params, t.copies, kinds)) {
    const model::Parameter& p = *run.parameter;
    const std::vector<model::OwnedPart> parts = owned_parts(p);
    const model::OwnedPart& part = part_with(parts, run);
    const int64_t in_range = part.in_range + run.here - part.in_param, count = run.full.total();
    const Tensor values = set == TensorSet::weights
                              ? part.range->weights().flat(in_range, {count})
                              : state[run.kind].values.at(*p.unit, *part.range, in_range, count);
    pieces.push_back({p.name + kinds[run.kind].suffix, p.full_shape(), run.full, values});
  }
  // Wider types come first in a file, so that all tensors are aligned.
  std::ranges::stable_sort(pieces, std::greater<>(),
                           [](const ShardPiece& p) { return dtype_size(p.values.dtype()); });
  return pieces;
}

WrittenShard write_file(const CheckpointParts& t, const fs::path& path, TensorSet set,
                        const std::vector<ShardPiece>& pieces,
                        const std::function<void(int64_t)>& written,
                        const std::function<void(const std::function<void()>&)>& in_background) {
  std::vector<storage::TensorInfo> infos;
  for (const ShardPiece& p : pieces)
    infos.push_back({p.name(), p.values.dtype(), Shape{p.values.count()}});
  storage::SafetensorsWriter file(path, infos, storage::Metadata{{"format", "mtrain"}},
                                  storage::SafetensorsWriter::Sums::beside, t.io_threads);
  WrittenShard shard{.name = path.filename().string()};
  shard.index.files.push_back(shard.name);
  for (const ShardPiece& p : pieces) {
    int64_t rest = p.bytes();
    file.write(p.name(), p.values.flat(0, {p.values.count()}), t.compute, [&] {
      const int64_t n = std::min(rest, storage::SafetensorsWriter::kCopiedAtOnce);
      rest -= n;
      written(n);
    });
    storage::PiecedTensor& tensor = shard.index.of(set)[p.tensor];
    tensor.dtype = p.values.dtype();
    tensor.shape = p.shape;
    tensor.pieces.push_back({.file = 0, .run = p.run});
  }
  in_background([&] { file.commit(); });
  shard.bytes = int64_t(fs::file_size(path));
  shard.sums_hash = content_hash(read_file(storage::sums_path(path)));
  return shard;
}

constexpr TensorSet kShardSets[] = {TensorSet::weights, TensorSet::optimizer};

}  // namespace

int64_t shard_bytes(const CheckpointParts& t) {
  int64_t bytes = 0;
  for (const TensorSet set : kShardSets)
    for (const ShardPiece& p : pieces_of(t, set)) bytes += p.bytes();
  return bytes;
}

std::vector<WrittenShard> write_shards(
    const CheckpointParts& t, const fs::path& folder, const WriteProgress& progress,
    const std::function<void(const std::function<void()>&)>& in_background) {
  // Gathers that started after the update may still write the units' values.
  for (model::ParamUnit* unit : t.params.units()) own_master(t.data_parallel, *unit);
  std::vector<std::vector<ShardPiece>> pieces;
  int64_t done = 0, total = 0;
  for (const TensorSet set : kShardSets) {
    pieces.push_back(pieces_of(t, set));
    for (const ShardPiece& p : pieces.back()) total += p.bytes();
  }
  std::vector<WrittenShard> shards;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].empty()) continue;
    const fs::path path = folder / storage::shard_file_name(kShardSets[i], t.control.rank());
    shards.push_back(write_file(
        t, path, kShardSets[i], pieces[i],
        [&](int64_t bytes) {
          done += bytes;
          if (progress) progress(done, total);
        },
        in_background));
  }
  return shards;
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
