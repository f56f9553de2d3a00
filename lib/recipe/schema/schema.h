// The schema at run time: one row per field, made from the sections' field tuples.
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
  std::function<void*(Recipe&)> at;

  std::vector<std::string> aliases() const;
  std::string show(const Recipe& recipe) const;
  std::string show_default() const;
  void reset(Recipe& recipe) const;  // to the default
};

struct SchemaSection {
  std::string path;  // "model.rope_scaling"
  std::string_view help;
  FieldOptions options;
};

const std::vector<SchemaRow>& schema_rows();  // in the order of the structs
const std::vector<SchemaSection>& schema_sections();

const SchemaRow* find_row(std::string_view path);  // by its own path or an alias; null if unknown
const SchemaSection* find_section(std::string_view path);
// Whether some spelling of a field lies below `path`, so that a mapping may stand there.
bool is_section_path(std::string_view path);

// The strategies that read the field, with a blank between them; empty where all do.
std::string strategies_of(const SchemaRow& row);
// Whether the recipe's strategy reads the field at all.
bool belongs_to_strategy(const SchemaRow& row, const Recipe& recipe);

// The key that was probably meant, as a full path; empty if none is close.
std::string nearest_key(std::string_view path);

}  // namespace mtrain::recipe
