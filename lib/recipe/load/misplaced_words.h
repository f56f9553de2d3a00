// Words on a training's command line that belong to another program or another place.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"

namespace mtrain::recipe {

// Throws UserError, with a hint, for options of mtrain-launch and for other tools' options and
// commands that people type by habit, such as --nproc, --config_file or `finetune`. Messages name
// `launcher`, which is mtrain-launch with the options that were given to it.
inline constexpr const char* kLauncherProgram = "mtrain-launch";
void refuse_misplaced(const std::vector<std::string>& words,
                      const std::vector<std::string>& folders,
                      const std::string& launcher = kLauncherProgram);

// Throws UserError if the first word is a command of another tool alone, such as `automodel`.
void refuse_other_commands(const std::vector<std::string>& words,
                           const std::vector<std::string>& folders,
                           const std::string& launcher = kLauncherProgram);

// Returns the error for the command line of a training without a recipe. `program` is the text
// before the words, such as "mtrain" or "mtrain-launch --nproc_per_node=2".
UserError no_recipe_error(const std::vector<std::string>& words, const std::string& program);

// Throws UserError for an option that mtrain does not have. `words` are those of train_words().
void refuse_unknown_options(const std::vector<std::string>& words);

}  // namespace mtrain::recipe
