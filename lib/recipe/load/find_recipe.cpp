#include "recipe/load/find_recipe.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/value.h"

namespace mtrain::recipe {
namespace {

namespace fs = std::filesystem;

struct OtherName {
  std::string_view name, recipe;
};
// Other names of ready recipes: those of Megatron-Bridge's models, and short ones.
constexpr OtherName kOtherNames[] = {
    {"llama2_7b", "llama2_7b"},        {"llama_8b", "llama3_8b"},
    {"llama_70b", "llama3_70b"},       {"llama_405b", "llama3_1_405b"},
    {"llama31_8b", "llama3_1_8b"},     {"llama31_70b", "llama3_1_70b"},
    {"llama31_405b", "llama3_1_405b"}, {"llama32_1b", "llama3_2_1b"},
    {"llama32_3b", "llama3_2_3b"},     {"gpt2", "gpt2_124m"},
    {"qwen25_500m", "qwen2_5_0_5b"},   {"qwen25_1p5b", "qwen2_5_1_5b"},
    {"qwen25_7b", "qwen2_5_7b"},       {"qwen25_14b", "qwen2_5_14b"},
    {"qwen25_32b", "qwen2_5_32b"},     {"qwen25_72b", "qwen2_5_72b"},
    {"qwen3_600m", "qwen3_0_6b"},      {"qwen3_1p7b", "qwen3_1_7b"}};

// Returns the ready recipes by their names; a folder that comes first wins.
std::map<std::string, fs::path> ready_recipes(const std::vector<std::string>& folders) {
  std::map<std::string, fs::path> recipes;
  std::error_code ignored;
  for (const auto& folder : folders)
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      if (entry.path().extension() == ".yaml")
        recipes.emplace(entry.path().stem().string(), entry.path());
  return recipes;
}

// Returns the model of a function of Megatron-Bridge that configures a pre-training:
// llama3_8b_pretrain_config, llama3_8b_pretrain_2gpu_h100_bf16_config. Empty for other names.
std::string pretrained_model(const std::string& name) {
  const auto at = name.find("_pretrain_");
  return at != std::string::npos && name.ends_with("_config") ? name.substr(0, at) : "";
}

}  // namespace

std::vector<std::string> recipe_folders(const std::string& program) {
  std::vector<std::string> folders;
  const auto add = [&](const fs::path& folder) {
    std::error_code ignored;
    if (fs::is_regular_file(folder / "quickstart.yaml", ignored))
      folders.push_back(folder.string());
  };
  fs::path folder = fs::path(program).lexically_normal().parent_path();
  add(folder.parent_path() / "share" / "mtrain" / "recipes");
  for (int up = 0; up < 6 && folder.has_relative_path(); ++up, folder = folder.parent_path())
    add(folder / "recipes");
  return folders;
}

std::string find_recipe(const std::string& name, const std::vector<std::string>& folders,
                        Diagnostics& diagnostics) {
  std::error_code ignored;
  const auto status =
      fs::status(name, ignored);  // what is no regular file is refused when it is read
  if ((fs::exists(status) && !fs::is_directory(status)) || name.find('/') != std::string::npos)
    return name;
  if (fs::is_regular_file(name + ".yaml", ignored)) return name + ".yaml";
  const auto recipes = ready_recipes(folders);
  std::string word = name.ends_with(".yaml") ? name.substr(0, name.size() - 5) : name;
  const std::string model = pretrained_model(word);
  if (!model.empty()) word = model;
  for (const OtherName& other : kOtherNames)
    if (fold_name(other.name) == fold_name(word)) word = other.recipe;
  std::vector<std::string> names;
  for (const auto& [stem, path] : recipes) {
    names.push_back(stem);
    if (fold_name(stem) != fold_name(word)) continue;
    diagnostics.add_source(path.string());
    diagnostics.resolved("", fmt::format("`{}` is the ready recipe {}", name, path.string()));
    return path.string();
  }
  for (const OtherName& other : kOtherNames) names.emplace_back(other.name);
  const std::string meant = nearest(word, names);
  std::string list;
  for (const auto& [stem, path] : recipes) list += (list.empty() ? "" : ", ") + stem;
  diagnostics.add_source(name);
  diagnostics.add("", "there is no file and no ready recipe of this name",
                  meant.empty()
                      ? fmt::format("give the path of a YAML recipe, or one of {}", list)
                      : fmt::format("did you mean {}? ready recipes are {}", meant, list));
  return {};
}

}  // namespace mtrain::recipe
