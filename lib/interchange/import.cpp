#include "interchange/import.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "interchange/side_files.h"
#include "storage/checkpoint_dir.h"
#include "storage/manifest.h"
#include "storage/new_folder.h"
#include "storage/recorded_recipe.h"
#include "storage/safetensors.h"
#include "storage/state.h"

namespace mtrain::interchange {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kImportedAtOnce = int64_t{1} << 22;  // elements in memory at a time
constexpr int64_t kLongestSample = 4096;               // tokens: the recipe's largest seq_length

void write_weights(const HfFolder& folder, const fs::path& path) {
  nlohmann::json types = nlohmann::json::object();
  for (const storage::StoredTensor* t : folder.tensors->tensors()) types[t->name] = t->type;
  std::vector<storage::TensorInfo> infos;
  for (const MappedTensor& t : folder.map.tensors()) infos.push_back({t.name, DType::f32, t.shape});
  storage::SafetensorsWriter writer(path, infos,
                                    {{"format", "mtrain"}, {kImportedTypes, types.dump()}},
                                    storage::SafetensorsWriter::Sums::beside);
  const auto source = folder.source();
  std::vector<float> values;
  for (const MappedTensor& t : folder.map.tensors())
    for (int64_t first = 0; first < t.shape.count(); first += kImportedAtOnce) {
      const int64_t count = std::min(kImportedAtOnce, t.shape.count() - first);
      values.resize(size_t(count));
      source->read(t.name, first, count, values.data());
      writer.write_part(t.name, ConstSpan{values.data(), count, DType::f32});
    }
  writer.commit();
}

}  // namespace

// A recipe that trains from these weights sets precision, dropout and parallelism itself. This one
// describes the model.
std::string imported_recipe(const HfFolder& folder, const fs::path& tokenizer) {
  recipe::Recipe r = folder.recipe;
  r.model.from.reset();
  r.model.init = recipe::WeightInit::weights;
  r.model.attention_dropout = r.model.hidden_dropout = r.model.embedding_dropout = 0;
  r.dataset.train = {"none"};
  r.dataset.seq_length =
      std::min(kLongestSample, r.model.max_position_embeddings.value_or(kLongestSample));
  // Sequences up to the original length then have the same factors as in transformers.
  if (r.model.rope_scaling.type == recipe::RopeScalingType::longrope)
    r.dataset.seq_length =
        std::min(r.dataset.seq_length, r.model.rope_scaling.original_max_position_embeddings);
  r.tokenizer.type = recipe::TokenizerType::huggingface;  // not bytes, even if the file is absent
  r.tokenizer.path = (fs::absolute(tokenizer) / "tokenizer.json").string();
  return fmt::format(
      "# Imported from {}. It was trained on no data of mtrain's.\n{}mixed_precision: fp32\n",
      fs::absolute(folder.tensors->path()).string(),
      recipe::print_sections(r, {"model", "dataset", "tokenizer"}));
}

fs::path import_hf(const HfFolder& folder, const fs::path& output) {
  if (storage::find_latest(output))
    throw UserError(fmt::format("{} holds checkpoints already", output.string()),
                    "give another --output");
  storage::NewFolder whole(output);
  storage::CheckpointWriter writer(whole.path(), 0);
  write_weights(folder, writer.folder() / "model.safetensors");
  const fs::path from = folder.tensors->path();
  const std::string recipe = imported_recipe(folder, output / "step-00000000");
  write_file_atomic(writer.folder() / storage::kRecipeCopy, recipe);
  storage::TrainState state;
  state.set(storage::kRecipeEntry, recipe);
  state.save(writer.folder() / "state.json");
  write_file_atomic(writer.folder() / "config.json", read_file(from / "config.json"));
  copy_side_files(from, writer.folder());
  const fs::path name = writer.commit().filename();
  whole.commit();
  return output / name;
}

}  // namespace mtrain::interchange
