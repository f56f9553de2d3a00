// What is printed about a setting, in words.
#pragma once
#include <string>
#include <vector>

#include "recipe/schema/schema.h"

namespace mtrain::recipe {

// Returns the words between commas, each in quotes of that kind.
std::string join(const std::vector<std::string>& words, const char* quote);
std::string type_text(const SchemaRow& row);
std::string range_text(const FieldOptions& options);  // "at least 1"; empty: any value
// Returns the other names that the setting is accepted under.
std::vector<std::string> all_spellings(const SchemaRow& row);

}  // namespace mtrain::recipe
