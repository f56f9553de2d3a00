#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>

#include "base/file.h"
#include "checkpoint/ranks_together.h"
#include "checkpoint/save_steps.h"
#include "checkpoint/state_entries.h"
#include "checkpoint/train_checkpoint.h"
#include "storage/free_space.h"
#include "storage/manifest.h"
#include "storage/recorded_recipe.h"

namespace mtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

// Returns the delayed scales of all layers, each line once. Ranks that share a layer or its experts
// have the same scales, so only some of them report. All ranks must call it.
std::string float8_state(const CheckpointParts& t) {
  using model::UnitKind;
  const bool layers = t.data_parallel.first_copy(UnitKind::layer) && t.tensor_parallel.rank() == 0;
  const bool experts = t.data_parallel.first_copy(UnitKind::experts);
  std::set<std::string> lines;
  const std::string own = t.quantizer ? t.quantizer->state(t.compute, layers, experts) : "";
  for (const std::string& rank : t.control.texts(own)) {
    std::istringstream text(rank);
    for (std::string line; std::getline(text, line);) lines.insert(line + "\n");
  }
  std::string all;
  for (const std::string& line : lines) all += line;
  return all;
}

// Waits until this host sees what another rank has made: some file systems show new files late.
void await(const std::function<void()>& meanwhile, const std::function<bool()>& visible,
           const std::function<RunError()>& error) {
  constexpr std::chrono::seconds kLongest{60};
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (!visible()) {
    if (std::chrono::steady_clock::now() > end) throw error();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    meanwhile();
  }
}

constexpr const char* kShare = "checkpoint.dir must be a folder that all hosts share";

void await_file(const std::function<void()>& meanwhile, const fs::path& file, size_t rank,
                int64_t bytes) {
  std::error_code error;
  await(
      meanwhile, [&] { return int64_t(fs::file_size(file, error)) == bytes && !error; },
      [&] {
        return RunError(
            fmt::format("{} does not see {} with its {} bytes, which rank {} has written",
                        host_name(), file.string(), bytes, rank),
            kShare);
      });
}

// Collects the shards of all ranks on rank 0, and checks that they are the model.
storage::CheckpointIndex gather_index(const std::vector<spec::TensorSpec>& parameters,
                                      const fs::path& folder, const std::vector<std::string>& texts,
                                      std::map<std::string, std::string>& sums,
                                      const std::function<void()>& meanwhile) {
  storage::CheckpointIndex index;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::vector<WrittenShard> shards = parse_shards(texts[rank]);
    for (const WrittenShard& s : shards) await_file(meanwhile, folder / s.name, rank, s.bytes);
    add_shards(shards, index, sums);
  }
  for (const spec::TensorSpec& p : parameters)
    MT_CHECK(index.weights.contains(p.name), "no rank has written {}", p.name);
  for (const auto set : {storage::TensorSet::weights, storage::TensorSet::optimizer})
    for (const auto& [name, tensor] : index.of(set)) {
      int64_t count = 0;
      for (const storage::Piece& p : tensor.pieces) count += p.run.total();
      MT_CHECK(count == tensor.shape.count(), "{} of {} elements of {} were written", count,
               tensor.shape.count(), name);
    }
  return index;
}

}  // namespace

void add_shards(const std::vector<WrittenShard>& shards, storage::CheckpointIndex& index,
                std::map<std::string, std::string>& sums) {
  for (const WrittenShard& s : shards) {
    const auto number = int32_t(index.files.size());
    index.files.push_back(s.name);
    sums[s.name] = s.sums_hash;
    for (const auto set : {storage::TensorSet::weights, storage::TensorSet::optimizer})
      for (const auto& [name, from] : s.index.of(set)) {
        storage::PiecedTensor& to = index.of(set)[name];
        to.dtype = from.dtype;
        to.shape = from.shape;
        for (const storage::Piece& p : from.pieces) to.pieces.push_back({number, p.run});
      }
  }
}

void write_state(const SavedState& saved, const SaveOptions& options, const fs::path& folder) {
  const TrainProgress& progress = saved.progress;
  storage::TrainState state = options.state;
  state.set(kStep, progress.steps_done);
  if (progress.updates != progress.steps_done) state.set(kUpdates, progress.updates);
  state.set(kSamples, progress.samples);
  if (progress.updated_samples != progress.samples)
    state.set(kUpdatedSamples, progress.updated_samples);
  if (!progress.loss_scale.empty()) state.set(kLossScale, progress.loss_scale);
  if (!progress.spikes.empty()) state.set(kSpikes, progress.spikes);
  state.set(kRanks, saved.ranks);
  if (!saved.float8.empty()) state.set(kFloat8Scales, saved.float8);
  state.set(storage::kRecipeEntry, options.recipe);
  state.save(folder / kState);
  write_file_atomic(folder / storage::kRecipeCopy, options.recipe, Durable::later);
}

SavedState saved_state(const CheckpointParts& t, const TrainProgress& progress) {
  return {.progress = progress,
          .float8 = float8_state(t),
          .ranks = t.control.size(),
          .parameters = t.parameters};
}

int64_t bytes_of_all_ranks(const CheckpointParts& t) {
  int64_t bytes = 0;
  for (const std::string& rank : t.control.texts(std::to_string(shard_bytes(t))))
    bytes += std::stoll(rank);
  return bytes;
}

void await_folder(const fs::path& folder, const std::function<void()>& meanwhile) {
  std::error_code error;
  await(
      meanwhile, [&] { return fs::is_directory(folder, error); },
      [&] {
        return RunError(fmt::format("{} does not see the folder {}, which rank 0 has made",
                                    host_name(), folder.string()),
                        kShare);
      });
}

void prepare_commit(storage::CheckpointWriter& writer, const SavedState& state,
                    const std::vector<std::string>& texts, SaveOptions& options,
                    const std::function<void()>& meanwhile) {
  std::map<std::string, std::string> sums;
  storage::CheckpointIndex index =
      gather_index(state.parameters, writer.folder(), texts, sums, meanwhile);
  write_state(state, options, writer.folder());
  // The commit writes it again.
  if (options.added) write_index(writer.folder(), state.progress.steps_done, index, sums);
  writer.set_index(std::move(index), std::move(sums));
  writer.set_step_hook(options.on_commit);
}

fs::path save_checkpoint(const CheckpointParts& t, const TrainProgress& progress,
                         SaveOptions options) {
  const bool first = t.control.rank() == 0;
  const int64_t bytes = bytes_of_all_ranks(t);
  std::optional<storage::CheckpointWriter> writer;
  all_together(t.control, [&](Meetings&) {
    if (!first) return;
    writer.emplace(options.root, progress.steps_done, options.keep, options.job);
    storage::require_space(writer->folder(), bytes);
  });
  const fs::path folder = t.control.texts(first ? writer->folder().string() : "")[0];
  std::vector<WrittenShard> shards;
  all_together(t.control, [&](Meetings& meetings) {
    await_folder(folder, [&] { meetings.during_work(); });
    if (options.on_commit) options.on_commit("write");
    shards = write_shards(
        t, folder,
        [&](int64_t done, int64_t total) {
          if (t.progress) t.progress("checkpoint", done, total);
          meetings.during_work();
        },
        [&](const std::function<void()>& work) { meetings.run(work); });
    if (!first && options.on_commit) options.on_commit("report");
  });
  const SavedState state = saved_state(t, progress);
  // They have the size of index.json together: no other rank needs them.
  const std::vector<std::string> texts = t.control.texts_on_first(shards_text(shards));
  all_together(t.control, [&](Meetings& meetings) {
    if (!first) return;
    meetings.run([&] { prepare_commit(*writer, state, texts, options, [] {}); });
  });
  if (options.added) {
    if (t.progress) t.progress("added", 0, 0);
    add_files(t.control, folder, options.added);
  }
  fs::path committed;
  all_together(t.control, [&](Meetings& meetings) {
    if (!first) return;
    meetings.run([&] { committed = writer->commit(); });
  });
  return committed;
}

}  // namespace mtrain::checkpoint
