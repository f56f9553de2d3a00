// Megatron's command-line flags as overrides of a recipe.
#pragma once
#include <string>
#include <vector>

namespace mtrain::recipe {

// Rewrites the flags among the words of a command line: "--tp-comm-overlap" becomes
// "tp_comm_overlap=true", "--context-parallel-size 4" becomes "context_parallel_size=4", and
// "--cp-comm-type a2a p2p" becomes "cp_comm_type=[a2a, p2p]". All other words stay, among them
// mtrain's own options.
std::vector<std::string> flags_to_overrides(const std::vector<std::string>& words);

// Returns the words of a training's command line with everything about the recipe in one form:
// flags are overrides, and a recipe that is given by -r, -c, --config or as the first bare word is
// given by --recipe. `folders` have the ready recipes, whose names are bare words, too. Throws
// UserError for a word that is neither: blanks around `=`, a misspelt command.
std::vector<std::string> train_words(const std::vector<std::string>& words,
                                     const std::vector<std::string>& folders);

// Returns the words of a command line without the values that nothing may print: those of the
// variables for ranks. "launch.env.TOKEN=abc" becomes "launch.env.TOKEN=...".
std::vector<std::string> without_secrets(const std::vector<std::string>& words);

// Whether the word is a command of mtrain that does not train.
bool is_command(const std::string& word);

// Whether the words can be a training's: the first is an option, a setting, `train` or a recipe. A
// command of mtrain is none, even if a recipe has its name.
bool begins_training(const std::vector<std::string>& words,
                     const std::vector<std::string>& folders);

// Returns the names of the program's own long options.
std::vector<std::string> own_options();

}  // namespace mtrain::recipe
