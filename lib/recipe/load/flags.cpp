#include "recipe/load/flags.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>

#include <fmt/core.h>

#include "base/error.h"
#include "base/strings.h"
#include "recipe/load/find_recipe.h"
#include "recipe/load/misplaced_words.h"
#include "recipe/load/raw_settings.h"
#include "recipe/load/word_hints.h"

namespace mtrain::recipe {
namespace {

// The long options of `mtrain train`.
constexpr std::string_view kOwn[] = {"--recipe",     "--config", "--print-recipe", "--dry-run",
                                     "--world-size", "--trace",  "--profile",      "--verbose",
                                     "--strict",     "--help",   "--version",      "--token_file",
                                     "--token-file", "--nvtx",   "--trace-steps"};
// The commands that do not train.
constexpr std::string_view kCommands[] = {
    "calibrate", "checkpoint", "compare",  "completion", "data",     "doctor", "eval",
    "explain",   "export",     "generate", "import",     "parity",   "plan",   "recipe",
    "report",    "schedule",   "schema",   "status",     "timeline", "watch"};
// The options that take the next word as their value.
constexpr std::string_view kWithValue[] = {"--recipe",      "--world-size", "--trace",
                                           "--trace-steps", "--token_file", "--token-file"};

bool is_flag(std::string_view word) {
  return word.size() > 3 && word.starts_with("--") && word[2] != '-';
}

// Whether a word after a flag is its value: neither a flag nor an override.
bool is_value(std::string_view word) {
  const bool option =
      word.size() > 1 && word[0] == '-' && std::isalpha(static_cast<unsigned char>(word[1]));
  return !word.empty() && !is_flag(word) && !option && word != "--" && word[0] != '~' &&
         word.find('=') == std::string_view::npos;
}

std::string name_of(std::string_view flag) {
  std::string name(flag);
  std::ranges::replace(name, '-', '_');
  return name;
}

// Returns the program's own option that `name` spells with underscores, as --world_size; or empty.
std::string own_spelling(std::string_view name) {
  if (!is_flag(name) || name.find('_') == std::string_view::npos ||
      std::ranges::count(kOwn, name) > 0)
    return {};
  const auto own = std::ranges::find_if(
      kOwn, [&](std::string_view option) { return name_of(option) == name_of(name); });
  return own == std::end(kOwn) ? "" : std::string(*own);
}

// Whether the word is not a setting, but resembles an option of the program. It is refused later.
bool is_misspelt_option(std::string_view name) {
  return !names_setting(name.substr(2)) && !find_word_hint(name_of(name.substr(2))) &&
         !nearest(name, own_options()).empty();
}

bool is_setting(std::string_view word) {
  return !word.starts_with('-') && !word.empty() &&
         (word[0] == '~' || word.find('=') != std::string::npos);
}

bool has_suffix_of_recipe(std::string_view word) {
  return word.ends_with(".yaml") || word.ends_with(".yml");
}

// Whether a word that is neither an option nor a setting can be a recipe.
bool names_recipe(const std::string& word, const std::vector<std::string>& folders) {
  if (has_suffix_of_recipe(word) || word.find('/') != std::string::npos) return true;
  if (word.find("_pretrain_") != std::string::npos) return true;  // find_recipe() reports it
  Diagnostics ignored;
  return !find_recipe(word, folders, ignored).empty();
}

// Refuses a setting that a blank divides into several words: `path = value` or `path=[a, b]`.
void refuse_parted(const std::vector<std::string>& words, size_t i) {
  const std::string& word = words[i];
  const std::string next = i + 1 < words.size() && is_value(words[i + 1]) ? words[i + 1] : "";
  const std::string& setting = word.starts_with('=') && i > 0 ? words[i - 1] : word;
  const std::string name = setting.substr(0, setting.find('='));
  const bool secret = holds_secrets(name);
  const auto refuse = [&](const std::string& read, const std::string& meant) {
    throw UserError(
        fmt::format("`{}`: a setting has no spaces around `=`", secret ? name + " =" : read),
        fmt::format("write {}", secret ? name + "=VALUE" : meant));
  };
  if (word == "=" || word.starts_with("= ")) {
    const std::string before = i > 0 ? words[i - 1] : "SETTING";
    refuse(fmt::format("{} = {}", before, next), fmt::format("{}={}", before, next));
  }
  if (word[0] == '=' && i > 0)
    refuse(fmt::format("{} {}", words[i - 1], word), words[i - 1] + word);
  if (word.ends_with('=') && !next.empty() && !has_suffix_of_recipe(next))
    refuse(fmt::format("{} {}", word, next), word + next);
  const auto open_brackets = [](const std::string& text) {
    return std::ranges::count_if(text, [](char c) { return c == '[' || c == '{'; }) -
           std::ranges::count_if(text, [](char c) { return c == ']' || c == '}'; });
  };
  if (open_brackets(word) <= 0 || word.find('=') == std::string::npos) return;
  std::string full = word;
  for (size_t k = i + 1; k < words.size() && open_brackets(full) > 0; ++k) full += " " + words[k];
  if (full != word)
    throw UserError(
        fmt::format("`{}`: the value ends at a space", secret ? name + "=..." : word),
        fmt::format("put quotes around the setting: '{}'", secret ? name + "=..." : full));
}

// Refuses a bare word that is the name of a setting, or that follows the recipe.
void refuse_bare(const std::vector<std::string>& words, size_t i, bool recipe_known) {
  const std::string& word = words[i];
  const std::string next = i + 1 < words.size() && is_value(words[i + 1]) ? words[i + 1] : "";
  if (i + 1 < words.size() && words[i + 1].starts_with('=')) refuse_parted(words, i + 1);
  if (names_setting(word))
    throw UserError(
        fmt::format("`{}` has no value", word),
        fmt::format("write {}={}", word, next.empty() || holds_secrets(word) ? "VALUE" : next));
  if (recipe_known)
    throw UserError(fmt::format("`{}` is not an override: it has no `=`", word),
                    "write path=value, such as optimizer.lr=1e-4, or ~path to reset a field");
}

// Whether `word` is one of the options that take the next word as their value.
bool takes_next(std::string_view word) {
  return word == "-r" || word == "-c" || word == "--config" ||
         std::ranges::count(kWithValue, word) > 0;
}

}  // namespace

std::vector<std::string> flags_to_overrides(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const std::string_view name = word.substr(0, word.find('='));
    if (const std::string own = own_spelling(name); !own.empty()) {
      out.push_back(own + std::string(word.substr(name.size())));
      continue;
    }
    if (!is_flag(word) || std::ranges::count(kOwn, name) > 0 || is_misspelt_option(name)) {
      out.push_back(words[i]);
      continue;
    }
    if (name.size() < word.size()) {  // --name=value
      out.emplace_back(word.substr(2));
      continue;
    }
    std::vector<std::string> values;
    while (i + 1 < words.size() && is_value(words[i + 1])) values.push_back(words[++i]);
    std::string text = values.empty() ? "true" : values[0];
    if (values.size() > 1) {
      text = "[" + values[0];
      for (size_t k = 1; k < values.size(); ++k) text += ", " + values[k];
      text += "]";
    }
    out.push_back(std::string(name.substr(2)) + "=" + text);
  }
  return out;
}

std::vector<std::string> without_secrets(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  bool of_secret = false;  // the next words are values of a flag that sets variables
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (of_secret && is_value(word)) {
      out.emplace_back("...");
    } else if (holds_secrets(name.substr(is_flag(word) ? 2 : 0))) {
      of_secret = name == word && is_flag(word);
      out.push_back(name == word ? word : name + "=...");
    } else {
      of_secret = false;
      out.push_back(word);
    }
  }
  return out;
}

bool is_command(const std::string& word) { return std::ranges::count(kCommands, word) > 0; }

bool begins_training(const std::vector<std::string>& words,
                     const std::vector<std::string>& folders) {
  if (words.empty() || words[0].empty()) return true;
  if (is_command(words[0])) return false;
  return words[0][0] == '-' || words[0] == "train" || is_setting(words[0]) ||
         names_recipe(words[0], folders);
}

std::vector<std::string> own_options() { return {std::begin(kOwn), std::end(kOwn)}; }

std::vector<std::string> train_words(const std::vector<std::string>& raw,
                                     const std::vector<std::string>& folders) {
  refuse_misplaced(raw, folders);
  const std::vector<std::string> words = flags_to_overrides(raw);
  std::vector<std::string> out;
  bool recipe_known = std::ranges::any_of(words, [](const std::string& word) {
    const std::string option = word.substr(0, word.find('='));
    return option == "-r" || option == "-c" || option == "--recipe" || option == "--config";
  });
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.starts_with("--config=")) {
      out.push_back("--recipe=" + word.substr(9));
    } else if (takes_next(word)) {
      const bool recipe = word == "-r" || word == "-c" || word == "--config";
      out.push_back(recipe ? "--recipe" : word);
      if (i + 1 < words.size()) out.push_back(words[++i]);
    } else if (word.empty() || word[0] == '-' || (i == 0 && word == "train")) {
      out.push_back(word);
    } else if (is_setting(word)) {
      refuse_parted(words, i);
      out.push_back(word);
    } else {
      refuse_bare(words, i, recipe_known);
      if (!names_recipe(word, folders)) {
        out.push_back(word);  // the program refuses it and suggests a command
        continue;
      }
      recipe_known = true;
      out.insert(out.end(), {"--recipe", word});
    }
  }
  return out;
}

}  // namespace mtrain::recipe
