#include "recipe/load/flags.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>

#include "base/strings.h"
#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {
namespace {

// The long options of `mtrain train`.
constexpr std::string_view kOwn[] = {"--recipe", "--print-recipe", "--dry-run",    "--world-size",
                                     "--trace",  "--profile",      "--verbose",    "--strict",
                                     "--help",   "--version",      "--token_file", "--token-file"};

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

// Whether a word that no setting has is almost an option of the program, which refuses it.
bool is_misspelt_option(std::string_view name) {
  return !names_setting(name.substr(2)) && !nearest(name, {kOwn, std::end(kOwn)}).empty();
}

}  // namespace

std::vector<std::string> flags_to_overrides(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const std::string_view name = word.substr(0, word.find('='));
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

}  // namespace mtrain::recipe
