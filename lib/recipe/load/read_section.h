// Reads a YAML document into a struct by its table of fields, for files that are not recipes.
#pragma once
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "recipe/load/node.h"
#include "recipe/load/value.h"

namespace mtrain::recipe {

namespace section {

struct Row {
  std::string path;  // "gpu.memory_gib"
  std::string_view help;
  FieldOptions options;
  const TypeOps* ops = nullptr;  // null for a section
  void* value = nullptr;
};

template <class Section>
void add_rows(const std::string& prefix, Section& section, std::vector<Row>& rows) {
  const auto add = [&](const auto& field) {
    auto& value = section.*field.member;
    const std::string path = prefix + std::string(field.name);
    if constexpr (requires { value.fields; }) {
      rows.push_back({path, field.help, field.options});
      add_rows(path + ".", value, rows);
    } else {
      rows.push_back({path, field.help, field.options,
                      type_ops<std::remove_reference_t<decltype(value)>>(), &value});
    }
  };
  std::apply([&](const auto&... field) { (add(field), ...); }, Section::fields);
}

void read_rows(const Node& root, const std::vector<Row>& rows, Diagnostics& diagnostics);

}  // namespace section

// Returns the rows of a struct's fields and sections, in their order.
template <class Section>
std::vector<section::Row> section_rows(Section& out) {
  std::vector<section::Row> rows;
  section::add_rows("", out, rows);
  return rows;
}

// Reads the text of a file, which messages call `source`. Reports all mistakes: keys that do not
// exist, with the nearest one, and values that a field refuses. Records the places of the fields.
template <class Section>
void read_section(const std::string& text, const std::string& source, Section& out,
                  Diagnostics& diagnostics) {
  diagnostics.add_source(source);
  Node root;
  if (parse_yaml(text, source, diagnostics, root))
    section::read_rows(root, section_rows(out), diagnostics);
}

}  // namespace mtrain::recipe
