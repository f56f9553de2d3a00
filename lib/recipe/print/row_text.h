// Texts about a setting for the user.
#pragma once
#include <string>
#include <vector>

#include "recipe/schema/schema.h"

namespace mtrain::recipe {

// Returns the words, separated by commas, each in this kind of quotes.
std::string join(const std::vector<std::string>& words, const char* quote);
std::string type_text(const SchemaRow& row);
std::string range_text(const FieldOptions& options);  // "at least 1"; empty: any value
// Returns the other accepted names of the setting.
std::vector<std::string> all_spellings(const SchemaRow& row);

}  // namespace mtrain::recipe
