#include "interchange/checkpoint_record.h"

#include <optional>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "interchange/model_source.h"
#include "recipe/recipe.h"
#include "recipe/schema/schema.h"
#include "storage/checkpoint_dir.h"
#include "storage/manifest.h"
#include "storage/recorded_recipe.h"

namespace mtrain::interchange {

namespace fs = std::filesystem;

namespace {

// Reads a recipe. The model of `record` replaces the folder of model.from, which may be gone.
std::optional<recipe::Recipe> read(const std::string& text, const std::string& name,
                                   const std::string& record) {
  Diagnostics diagnostics;
  auto recipe = recipe::read_recipe_text(model_source(), text, name, {"debug.strict=false"},
                                         diagnostics, record);
  diagnostics.throw_if_errors();
  return recipe;
}

std::string differences(const storage::RecordedRecipe& record, const fs::path& copy,
                        const std::string& text) {
  const auto saved = read(record.text, record.file.string(), record.text);
  const auto copied = read(text, copy.string(), record.text);
  if (!saved || !copied) return "it cannot be read";
  std::vector<std::string> lines;
  for (const recipe::SchemaRow& row : recipe::schema_rows())
    if (row.show(*saved) != row.show(*copied))
      lines.push_back(
          fmt::format("{} is {} there, and {}", row.path, row.show(*copied), row.show(*saved)));
  return fmt::format("{}", fmt::join(lines, "; "));
}

}  // namespace

std::string changed_copy(const fs::path& checkpoint) {
  const storage::RecordedRecipe record = storage::recorded_recipe(checkpoint);
  if (record.text.empty()) return "";
  const fs::path copy = checkpoint / storage::kRecipeCopy;
  std::string why;
  try {
    const std::string text = read_file(copy);
    if (text != record.text) why = differences(record, copy, text);
  } catch (const Error& e) {
    why = e.message();
  }
  if (why.empty()) return "";
  return fmt::format("{} differs from the recipe that {} records and that the run follows: {}",
                     copy.string(), record.file.filename().string(), why);
}

void report_checkpoint(const fs::path& checkpoint) {
  if (const std::string changed = changed_copy(checkpoint); !changed.empty()) log::warn(changed);
  std::error_code error;
  const bool saved =
      storage::is_ours(checkpoint) && fs::exists(storage::manifest_path(checkpoint), error);
  if (saved && !storage::read_manifest(checkpoint).has_sums)
    log::info(
        fmt::format("{} has no checksums, since an earlier version saved it: damage to its "
                    "files may go unseen",
                    checkpoint.string()));
}

std::string recorded_text(const fs::path& checkpoint) {
  const storage::RecordedRecipe record = storage::recorded_recipe(checkpoint);
  return record.text.empty() ? read_file(record.file) : record.text;
}

recipe::ModelConfig recorded_model(const fs::path& checkpoint) {
  Diagnostics ignored;
  const std::string text = recorded_text(checkpoint);
  const auto recipe =
      recipe::read_recipe_text(model_source(), text, "the saved recipe", {}, ignored, text);
  return recipe ? recipe->model : recipe::ModelConfig();
}

recipe::Recipe recorded_recipe(const fs::path& checkpoint,
                               const std::vector<std::string>& overrides) {
  Diagnostics diagnostics;
  const auto recipe = recipe::read_recipe_text(model_source(), recorded_text(checkpoint),
                                               fmt::format("the recipe of {}", checkpoint.string()),
                                               overrides, diagnostics);
  diagnostics.throw_if_errors();
  MT_CHECK(recipe, "{} gave neither a recipe nor an error", checkpoint.string());
  return *recipe;
}

}  // namespace mtrain::interchange
