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
// Other names of ready recipes: Megatron-Bridge's names of the models, and short names.
constexpr OtherName kOtherNames[] = {{"llama2_7b", "llama2_7b"},
                                     {"llama_8b", "llama3_8b"},
                                     {"llama_70b", "llama3_70b"},
                                     {"llama_405b", "llama3_1_405b"},
                                     {"llama31_8b", "llama3_1_8b"},
                                     {"llama31_70b", "llama3_1_70b"},
                                     {"llama31_405b", "llama3_1_405b"},
                                     {"llama32_1b", "llama3_2_1b"},
                                     {"llama32_3b", "llama3_2_3b"},
                                     {"gpt2", "gpt2_124m"},
                                     {"qwen25_500m", "qwen2_5_0_5b"},
                                     {"qwen25_1p5b", "qwen2_5_1_5b"},
                                     {"qwen25_7b", "qwen2_5_7b"},
                                     {"qwen25_14b", "qwen2_5_14b"},
                                     {"qwen25_32b", "qwen2_5_32b"},
                                     {"qwen25_72b", "qwen2_5_72b"},
                                     {"qwen3_600m", "qwen3_0_6b"},
                                     {"qwen3_1p7b", "qwen3_1_7b"},
                                     {"moonlight_16b", "moonlight_16b_a3b"}};

// Returns the ready recipes by their names. Of two recipes with one name the earlier folder's wins.
std::map<std::string, fs::path> ready_recipes(const std::vector<std::string>& folders) {
  std::map<std::string, fs::path> recipes;
  std::error_code ignored;
  for (const auto& folder : folders)
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      if (entry.path().extension() == ".yaml")
        recipes.emplace(entry.path().stem().string(), entry.path());
  return recipes;
}

// A function of Megatron-Bridge that configures a pre-training: llama3_8b_pretrain_config,
// llama3_8b_pretrain_2gpu_h100_bf16_config.
struct BridgeFunction {
  std::string model;               // empty for other names
  std::vector<std::string> words;  // between `pretrain` and `config`
};
BridgeFunction bridge_function(const std::string& name) {
  const std::string_view middle = "_pretrain_", end = "_config";
  const auto at = name.find(middle);
  if (at == std::string::npos || !name.ends_with(end)) return {};
  BridgeFunction f{.model = name.substr(0, at), .words = {}};
  const size_t begin = at + middle.size();
  if (begin + end.size() <= name.size())
    f.words = split(name.substr(begin, name.size() - end.size() - begin), '_');
  return f;
}

// Whether a word of such a name describes only the machine for which the function was tuned.
bool is_of_machine(std::string_view word) {
  static constexpr std::string_view kMachines[] = {"bf16", "a100",  "h100",  "h200", "b200",
                                                   "b300", "gb200", "gb300", "r100", "vr200"};
  return std::ranges::count(kMachines, word) > 0 || word.ends_with("gpu") || word.ends_with("gpus");
}

// Returns the override that does what the word asks for; empty if there is none.
std::string override_of(std::string_view word) {
  struct Row {
    std::string_view word, text;
  };
  static constexpr Row kRows[] = {
      {"fp8cs", "mixed_precision=bf16_with_fp8_current_scaling_mixed"},
      {"fp8ds", "mixed_precision=bf16_with_fp8_delayed_scaling_mixed"},
      {"fp8sc", "mixed_precision=bf16_with_fp8_subchannel_scaling_mixed"},
      {"fp8mx", "mixed_precision=bf16_with_mxfp8_mixed"},
      {"deterministic", "debug.deterministic=true"}};
  for (const Row& row : kRows)
    if (row.word == word) return std::string(row.text);
  if (word.size() < 2 || word.size() > 5 || word.back() != 'k' ||
      !is_integer_text(std::string(word.substr(0, word.size() - 1))))
    return {};
  return fmt::format("dataset.seq_length={}", 1024 * std::stoll(std::string(word)));
}

// Adds an error and returns true if the function's name asks for more than the ready recipe does.
bool refuse_words(const std::string& name, const BridgeFunction& function,
                  const std::string& recipe, Diagnostics& diagnostics) {
  std::string asked, overrides, unbuilt;
  for (const std::string& word : function.words) {
    if (is_of_machine(word)) continue;
    asked += (asked.empty() ? "" : ", ") + word;
    const std::string text = override_of(word);
    overrides += text.empty() ? "" : " " + text;
    if (text.empty()) unbuilt += (unbuilt.empty() ? "" : ", ") + word;
  }
  if (asked.empty()) return false;
  diagnostics.add_source(name);
  diagnostics.add(
      "",
      fmt::format("the name asks for {}, which the ready recipe {} does not do{}", asked, recipe,
                  unbuilt.empty() ? "" : fmt::format("; {} is not supported", unbuilt)),
      fmt::format("write --recipe {}{}", recipe, overrides));
  return true;
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
  // Other files than regular ones are refused later, when the recipe is read.
  const auto status = fs::status(name, ignored);
  if (fs::exists(status) && !fs::is_directory(status)) return name;
  const auto recipes = ready_recipes(folders);
  if (name.find('/') != std::string::npos) {
    const std::string stem = fs::path(name).stem().string();
    if (fs::exists(status) || !recipes.contains(stem)) return name;
    diagnostics.add_source(name);
    diagnostics.add(
        "", "there is no such file",
        fmt::format("write mtrain {}: a ready recipe is named without folder and .yaml", stem));
    return {};
  }
  if (fs::is_regular_file(name + ".yaml", ignored)) return name + ".yaml";
  std::string word = name.ends_with(".yaml") ? name.substr(0, name.size() - 5) : name;
  const BridgeFunction function = bridge_function(word);
  if (!function.model.empty()) word = function.model;
  for (const OtherName& other : kOtherNames)
    if (fold_name(other.name) == fold_name(word)) word = other.recipe;
  std::vector<std::string> names;
  for (const auto& [stem, path] : recipes) {
    names.push_back(stem);
    if (fold_name(stem) != fold_name(word)) continue;
    if (refuse_words(name, function, stem, diagnostics)) return {};
    diagnostics.add_source(path.string());
    diagnostics.resolved("", fmt::format("`{}` is the ready recipe {}", name, path.string()));
    return path.string();
  }
  for (const OtherName& other : kOtherNames) names.emplace_back(other.name);
  // Do not suggest a family with a different version number, which is a different model. The number
  // is in the first word (qwen3_8b), or follows a v in the second one (deepseek_v3).
  const auto digits_of_family = [](const std::string& model) {
    size_t end = model.find('_');
    if (end != std::string::npos && end + 2 < model.size() && model[end + 1] == 'v' &&
        std::isdigit(uint8_t(model[end + 2])))
      end = model.find('_', end + 1);
    std::string family = model.substr(0, end);
    std::erase_if(family, [](unsigned char c) { return !std::isdigit(c); });
    return family;
  };
  std::erase_if(names, [&](const std::string& model) {
    return digits_of_family(model) != digits_of_family(word);
  });
  std::vector<std::string> files;  // the recipes in the current folder
  for (const auto& entry : fs::directory_iterator(".", ignored))
    if (entry.path().extension() == ".yaml") files.push_back(entry.path().filename().string());
  std::string meant = nearest(name, files);
  if (meant.empty()) meant = nearest(word, names);
  std::string list;
  for (const auto& [stem, path] : recipes) list += (list.empty() ? "" : ", ") + stem;
  diagnostics.add_source(name);
  diagnostics.add("", "there is no file and no ready recipe of this name",
                  meant.empty() ? fmt::format("give the path of a YAML recipe, or one of {}", list)
                                : fmt::format("did you mean {}?", meant));
  return {};
}

}  // namespace mtrain::recipe
