// Writes the schema as documents: JSON for editors, Markdown for readers.
#pragma once
#include <string>
#include <string_view>

namespace mtrain::recipe {

// Returns a JSON Schema (draft 7) of recipes with every accepted name. Editors complete and check
// recipes with it.
std::string schema_json();

// Returns one table per section, with the columns field, type, default, meaning and other names.
std::string schema_markdown();

// Returns a table of other tools' words that mtrain does not accept, with their replacements.
std::string words_markdown();

}  // namespace mtrain::recipe
