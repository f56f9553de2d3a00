#include "interchange/locate_checkpoint.h"

#include <string>

#include "interchange/model_source.h"
#include "recipe/recipe.h"
#include "storage/checkpoint_list.h"

namespace mtrain::interchange {

namespace fs = std::filesystem;

namespace {

// Returns the folder of checkpoints that a run's recipe names; nothing if `path` has no recipe.
std::optional<fs::path> named_by_recipe(const fs::path& path) {
  const fs::path file = path / "recipe.yaml";
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return std::nullopt;
  Diagnostics diagnostics;
  // The model's sizes do not matter here. With this text, the folder of model.from is not read.
  const auto run =
      recipe::read_recipe(model_source(), file.string(), {}, diagnostics, "model: {}\n");
  diagnostics.throw_if_errors();
  return run ? std::optional<fs::path>(run->checkpoint.dir) : std::nullopt;
}

}  // namespace

std::optional<storage::CheckpointRef> locate_checkpoint(const fs::path& path) {
  if (auto ref = storage::complete_checkpoint(path)) return ref;
  if (auto ref = storage::find_latest(path)) return ref;
  if (auto ref = storage::find_latest(path / "checkpoints")) return ref;
  const auto named = named_by_recipe(path);
  return named ? storage::find_latest(*named) : std::nullopt;
}

std::optional<fs::path> locate_checkpoints(const fs::path& path) {
  std::error_code error;
  const auto holds = [&](const fs::path& root) {
    return fs::is_directory(root, error) && !storage::listed_checkpoints(root).empty();
  };
  if (storage::is_ours(path)) return fs::canonical(path).parent_path();
  for (const fs::path& root : {path, path / "checkpoints"})
    if (holds(root)) return root;
  const auto named = named_by_recipe(path);
  return named && holds(*named) ? named : std::nullopt;
}

std::optional<storage::CheckpointRef> locate_start(const std::string& load,
                                                   const fs::path& checkpoint_dir) {
  if (auto ref = locate_checkpoint(load)) return ref;
  if (load != "best") return std::nullopt;
  return storage::complete_checkpoint(checkpoint_dir / load);
}

}  // namespace mtrain::interchange
