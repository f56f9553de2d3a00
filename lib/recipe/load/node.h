// A recipe as text says it, before any schema: scalars, lists and mappings, each with its place.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "recipe/load/diagnostics.h"

namespace mtrain::recipe {

struct Node {
  struct Key {
    std::string name;
    SourceLocation location;
  };
  enum class Kind { null, scalar, list, map };

  Kind kind = Kind::null;
  std::string text;     // of a scalar
  bool quoted = false;  // a quoted scalar is text, whatever it looks like
  SourceLocation location;
  std::vector<Node> items;  // of a list; the values of a mapping
  std::vector<Key> keys;    // of a mapping: items[i] belongs to keys[i]

  // null, none, None and ~ mean "not set".
  bool unset() const;
};

// Parses one YAML document. Syntax mistakes go to `problems`; false if there is no usable tree.
bool parse_yaml(const std::string& text, const std::string& source, Diagnostics& diagnostics,
                Node& out);

// Parses the value of an override, which has no lines of its own: every place is `source`.
bool parse_override_value(const std::string& text, const std::string& source,
                          std::string_view field, Diagnostics& diagnostics, Node& out);

}  // namespace mtrain::recipe
