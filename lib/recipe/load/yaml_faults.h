// Searches a YAML text for the mistakes that people make when they type a recipe. The YAML parser
// silently accepts some of them, and names the wrong place for others.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace mtrain::recipe {

struct YamlFault {
  int line = 0, column = 0;  // counted from 1
  std::string reason, hint;
};

struct YamlFaults {
  std::optional<YamlFault> certain;  // a mistake, even if the parser accepts the text
  std::optional<YamlFault> likely;   // the first explanation for a text that the parser refuses
};

// Returns the first mistakes in the text. A text that is not a file is a value on the command line,
// where `a:b` is a plain text and not a key that lacks a space.
YamlFaults find_yaml_faults(std::string_view text, bool is_file);

// Returns a fault that names the language if the text is clearly TOML, Python or a script.
std::optional<YamlFault> find_other_language(std::string_view text);

}  // namespace mtrain::recipe
