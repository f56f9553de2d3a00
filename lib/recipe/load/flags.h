// Megatron's command-line flags as overrides of a recipe.
#pragma once
#include <string>
#include <vector>

namespace mtrain::recipe {

// Rewrites the flags among the words of a command line: "--tp-comm-overlap" becomes
// "tp_comm_overlap=true", "--context-parallel-size 4" becomes "context_parallel_size=4", and
// "--cp-comm-type a2a p2p" becomes "cp_comm_type=[a2a, p2p]". Does not change other words, such as
// mtrain's own options.
std::vector<std::string> flags_to_overrides(const std::vector<std::string>& words);

// Brings the command line of a training into one form. Flags become overrides. A recipe given by
// -r, -c, --config or as the first bare word is given by --recipe; a bare word may name a ready
// recipe in `folders`. Throws UserError for a setting with blanks around `=`, for a bare word after
// the recipe, and for words of other programs.
std::vector<std::string> train_words(const std::vector<std::string>& words,
                                     const std::vector<std::string>& folders);

// Replaces the values that must not be printed, those of the ranks' environment variables:
// "launch.env.TOKEN=abc" becomes "launch.env.TOKEN=...".
std::vector<std::string> without_secrets(const std::vector<std::string>& words);

// Whether the word is a command of mtrain that does not train.
bool is_command(const std::string& word);

// Whether the words can be the command line of a training: the first is an option, a setting,
// `train` or a recipe. Returns false for another command of mtrain, even if a recipe has its name.
bool begins_training(const std::vector<std::string>& words,
                     const std::vector<std::string>& folders);

// Returns the names of the program's own long options.
std::vector<std::string> own_options();

}  // namespace mtrain::recipe
