// Keys of other systems that do not name a setting of mtrain. Each is reported once: why it has no
// effect, that it is ignored, or that it is refused and what to write instead.
#pragma once
#include <string>
#include <string_view>

#include "recipe/load/diagnostics.h"
#include "recipe/load/node.h"

namespace mtrain::recipe {

struct ForeignKey {
  // A dotted path. With ".*" at its end it stands for the section and all that lies below. The last
  // part of a path also stands for a command-line flag of that name.
  std::string_view path;
  Severity severity;
  std::string_view reason, hint = {};
  // Whether this value asks for what mtrain does anyway. Then nothing is reported.
  bool (*harmless)(const Node& value) = nullptr;
  bool kept = false;  // the value is kept in Recipe::foreign, to compare it with fields
};

// Returns the row that covers `path`, or null.
const ForeignKey* find_foreign_key(std::string_view path);
// Returns the row whose path ends in `word`, a command-line flag without a section, or null. For a
// negated flag ("no_masked_softmax_fusion") returns the row of the plain flag if it has no meaning.
const ForeignKey* find_foreign_flag(std::string_view word);

}  // namespace mtrain::recipe
