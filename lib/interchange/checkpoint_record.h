// The recipe that a checkpoint records in its state.json, and the copy of it in recipe.yaml.
#pragma once
#include <filesystem>
#include <string>

namespace mtrain::interchange {

// Returns why recipe.yaml, beside a recorded recipe, is not a copy of it: a value differs, or it
// cannot be read. Empty if all values agree, whatever comments and layout it has, and where the
// checkpoint records no recipe. Nothing but this message depends on the copy.
std::string changed_copy(const std::filesystem::path& checkpoint);

// Logs a warning if changed_copy() returns one, and a note if the checkpoint has no checksums,
// since an earlier version saved it. One rank calls it for a checkpoint that is used.
void report_checkpoint(const std::filesystem::path& checkpoint);

// Returns the text of the recipe under which the checkpoint was saved. Throws UserError.
std::string recorded_text(const std::filesystem::path& checkpoint);

}  // namespace mtrain::interchange
