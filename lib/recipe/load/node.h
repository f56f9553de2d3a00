// Node is the tree of a YAML or JSON document before a schema gives it meaning: scalars, lists and
// mappings, each with its place in the text.
#pragma once
#include <cstddef>
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
  std::string text;            // the text of a scalar
  bool quoted = false;         // a quoted scalar is a text, even if it looks like a number
  std::string reference = {};  // the text before its references were replaced; empty without any
  SourceLocation location = {};
  std::vector<Node> items = {};  // the items of a list, or the values of a mapping
  std::vector<Key> keys = {};    // the keys of a mapping; items[i] belongs to keys[i]

  // null, none, None and ~ mean "not set".
  bool unset() const;
};

// Returns the number of nodes in a tree, the root included.
size_t count_nodes(const Node& node);

// Parses one YAML document. Syntax errors go to `diagnostics`. Returns false if `out` cannot be
// used.
bool parse_yaml(const std::string& text, const std::string& source, Diagnostics& diagnostics,
                Node& out);

// Parses a JSON document. Keys are in alphabetical order, and every node has the place `source`. A
// key that an object has twice is an error.
bool parse_json(const std::string& text, const std::string& source, Diagnostics& diagnostics,
                Node& out);

// Parses the value of an override. Messages quote `shown` instead of the value, which may be a
// secret. Every node has the place `source`, without a line.
bool parse_override_value(const std::string& text, const std::string& shown,
                          const std::string& source, std::string_view field,
                          Diagnostics& diagnostics, Node& out);

}  // namespace mtrain::recipe
