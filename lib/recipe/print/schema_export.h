// Writes the schema as documents: JSON for editors, Markdown for people.
#pragma once
#include <string>
#include <string_view>

namespace mtrain::recipe {

// Returns a JSON Schema (draft 7) of recipes with every accepted name. Editors complete and check
// recipes with it.
std::string schema_json();

// Returns one table per section, with the columns field, type, default, meaning and other names.
std::string schema_markdown();

// Returns a table of the words of other tools that are not accepted, with what to write instead.
std::string words_markdown();

}  // namespace mtrain::recipe
