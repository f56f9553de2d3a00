// Writes the schema as documents: JSON for editors, Markdown for people, or one entry of it.
#pragma once
#include <string>
#include <string_view>

namespace mtrain::recipe {

// Returns a JSON Schema (draft 7) of recipes with every accepted name. Editors complete and check
// recipes with it.
std::string schema_json();

// Returns one table per section, with the columns field, type, default, meaning and other names.
std::string schema_markdown();

// Describes a field or a section, which may be given by any of its names. Throws UserError with the
// nearest name if there is none.
std::string explain(std::string_view path);

}  // namespace mtrain::recipe
