// The schema as documents: for editors, for reading, and for one question.
#pragma once
#include <string>
#include <string_view>

namespace mtrain::recipe {

// A JSON Schema (draft 7) of recipes, with every accepted spelling; editors complete and check by
// it.
std::string schema_json();

// One table per section: field, type, default, meaning, other spellings.
std::string schema_markdown();

// A field or a section, by any of its names. Throws UserError, with the nearest name, if there is
// none.
std::string explain(std::string_view path);

}  // namespace mtrain::recipe
