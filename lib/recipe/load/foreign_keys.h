// Keys of other systems that name no setting of mtrain. Each is told once: why it has no meaning
// here, that it is ignored, or that what it asks for is not done and what to write instead.
#pragma once
#include <string>
#include <string_view>

#include "recipe/load/diagnostics.h"
#include "recipe/load/node.h"

namespace mtrain::recipe {

struct ForeignKey {
  // A dotted path. With ".*" at its end it stands for the section and all that lies below. A path
  // without a dot also stands for a command-line flag of that name.
  std::string_view path;
  Severity severity;
  std::string_view reason, hint = {};
  // Whether this value means what mtrain does anyway, so that nothing is to be told.
  bool (*harmless)(const Node& value) = nullptr;
  bool kept = false;  // rules hold the value against fields (Recipe::foreign)
};

// Returns the row that covers `path`, or null.
const ForeignKey* find_foreign_key(std::string_view path);
// Returns the row whose path ends in `word`, which a command line gives without a section, or in
// what `word` negates ("no_masked_softmax_fusion"); or null.
const ForeignKey* find_foreign_flag(std::string_view word);

}  // namespace mtrain::recipe
