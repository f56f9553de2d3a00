// The schema at run time has one row per field, made from the field tuples of the sections.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/load/value.h"
#include "recipe/recipe.h"

namespace mtrain::recipe {

struct SchemaRow {
  std::string path;  // "optimizer.lr"
  std::string_view help;
  FieldOptions options;
  const TypeOps* ops;
  std::function<void*(Recipe&)> at;  // the address of the field's value

  std::vector<std::string> aliases() const;
  std::string show(const Recipe& recipe) const;
  std::string show_default() const;
};

struct SchemaSection {
  std::string path;  // "model.rope_scaling"
  std::string_view help;
  FieldOptions options;
};

const std::vector<SchemaRow>& schema_rows();  // in the order of the structs
const std::vector<SchemaSection>& schema_sections();

// Finds a field by its own path or an alias; returns null if there is none.
const SchemaRow* find_row(std::string_view path);
const SchemaSection* find_section(std::string_view path);
// Returns whether `path` is a section: it has fields, by any of their names, and a recipe may have
// a mapping there.
bool is_section_path(std::string_view path);

// Returns the strategies that read the field, separated by blanks; empty if all do.
std::string strategies_of(const SchemaRow& row);
// Returns whether the recipe's strategy reads the field.
bool belongs_to_strategy(const SchemaRow& row, const Recipe& recipe);

// Returns the full path of the most similar key; empty if none is close.
std::string nearest_key(std::string_view path);

}  // namespace mtrain::recipe
