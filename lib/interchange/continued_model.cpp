#include "interchange/continued_model.h"

#include <filesystem>
#include <optional>

#include "base/hub_cache.h"
#include "interchange/checkpoint_record.h"
#include "interchange/locate_checkpoint.h"
#include "interchange/model_source.h"
#include "storage/checkpoint_dir.h"

namespace mtrain::interchange {

namespace fs = std::filesystem;

namespace {

// Replaces a saved model whose sizes do not matter. Therefore no folder is read.
constexpr const char* kNoSizes = "model: {}\n";

std::optional<storage::CheckpointRef> find_start(const recipe::Recipe& r, bool restarted) {
  // All checkpoints of a run have its model, so a damaged newest one does not matter here.
  if (restarted)
    if (auto own = storage::newest_sound(r.checkpoint.dir)) return own;
  if (!r.checkpoint.load) return std::nullopt;
  if (*r.checkpoint.load == "latest") return storage::newest_sound(r.checkpoint.dir);
  return locate_start(*r.checkpoint.load, r.checkpoint.dir);
}

}  // namespace

std::string continued_model(const std::string& recipe, const std::vector<std::string>& overrides,
                            bool restarted) {
  Diagnostics ignored;
  const auto now = recipe::read_recipe(model_source(), recipe, overrides, ignored, kNoSizes);
  if (!now || !now->model.from) return "";
  const auto start = find_start(*now, restarted);
  if (!start) return "";
  const std::string text = recorded_text(start->path);
  const auto saved =
      recipe::read_recipe_text(model_source(), text, "the saved recipe", {}, ignored, kNoSizes);
  // Recipes that were printed before this field existed also lack other fields of the folder.
  const bool whole = saved && saved->given("model.attention_bias");
  return whole && saved->model.from == now->model.from ? text : "";
}

recipe::Recipe without_lost_tokenizer(recipe::Recipe r, const std::string& saved_model) {
  if (saved_model.empty() || r.model.vocab_size == 0 || !r.tokenizer.path) return r;
  std::error_code error;
  fs::path file = hub_model_folder(*r.tokenizer.path);
  if (fs::is_directory(file, error)) file /= "tokenizer.json";
  if (!fs::exists(file, error)) r.tokenizer.path.reset();
  return r;
}

}  // namespace mtrain::interchange
