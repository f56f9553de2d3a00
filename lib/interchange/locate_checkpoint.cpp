#include "interchange/locate_checkpoint.h"

#include <string>

#include "interchange/model_source.h"
#include "recipe/recipe.h"

namespace mtrain::interchange {

namespace fs = std::filesystem;

std::optional<storage::CheckpointRef> locate_checkpoint(const fs::path& path) {
  if (auto ref = storage::complete_checkpoint(path)) return ref;
  if (auto ref = storage::find_latest(path)) return ref;
  if (auto ref = storage::find_latest(path / "checkpoints")) return ref;
  const fs::path file = path / "recipe.yaml";
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return std::nullopt;
  Diagnostics diagnostics;
  // The model's sizes do not matter here. With this text, the folder of model.from is not read.
  const auto run =
      recipe::read_recipe(model_source(), file.string(), {}, diagnostics, "model: {}\n");
  diagnostics.throw_if_errors();
  return run ? storage::find_latest(run->checkpoint.dir) : std::nullopt;
}

std::optional<storage::CheckpointRef> locate_start(const std::string& load,
                                                   const fs::path& checkpoint_dir) {
  if (auto ref = locate_checkpoint(load)) return ref;
  if (load != "best") return std::nullopt;
  return storage::complete_checkpoint(checkpoint_dir / load);
}

}  // namespace mtrain::interchange
