// The options of a training. mtrain-launch checks them and passes them to mtrain.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace mtrain {

struct TrainOptions {
  std::string recipe, trace, trace_steps, token_file;
  std::vector<std::string> overrides;
  bool profile = false, verbose = false, print_recipe = false, dry_run = false, strict = false,
       nvtx = false;
  std::optional<int64_t> world_size;  // absent: the launcher's number of ranks

  bool runs() const { return !dry_run && !print_recipe; }
  // Returns the overrides, and the settings that other options, such as --strict, stand for.
  std::vector<std::string> settings() const;
};

// Declares the options in a command. Parsing fills `o`, which must live as long as the command.
void declare_train_options(CLI::App& command, TrainOptions& o);

// Adds --token_file, the file from which the ranks of several hosts can read the job's token.
void add_token_option(CLI::App& command, std::string& file);

// Reads the words of a training's command line, as recipe::train_words() returns them. Throws
// UserError for words that mtrain would refuse. A missing recipe is not an error here.
TrainOptions read_train_options(const std::vector<std::string>& words);

// Throws UserError for options that contradict each other.
void check_train_options(const TrainOptions& o);

}  // namespace mtrain
