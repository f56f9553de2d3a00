#include "recipe/load/misplaced_words.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/find_recipe.h"
#include "recipe/load/flags.h"
#include "recipe/load/raw_settings.h"
#include "recipe/load/word_hints.h"

namespace mtrain::recipe {
namespace {

// What a launcher option takes. `number` allows words such as gpu, too; `pairs` means key=value.
enum class Takes { nothing, number, word, pairs };
struct LauncherOption {
  std::string_view name;
  Takes takes;
};
constexpr LauncherOption kLauncher[] = {{"nproc_per_node", Takes::number},
                                        {"nnodes", Takes::number},
                                        {"node_rank", Takes::number},
                                        {"master_addr", Takes::word},
                                        {"master_port", Takes::number},
                                        {"standalone", Takes::nothing},
                                        {"rdzv_endpoint", Takes::word},
                                        {"rdzv_backend", Takes::word},
                                        {"rdzv_id", Takes::word},
                                        {"rdzv_conf", Takes::pairs},
                                        {"max_restarts", Takes::number},
                                        {"monitor_interval", Takes::number},
                                        {"start_method", Takes::word},
                                        {"local_addr", Takes::word},
                                        {"local_ranks_filter", Takes::word},
                                        {"numa_binding", Takes::word}};

enum class Meant { ranks, recipe };
struct OtherOption {
  std::string_view name;
  Meant meant;
};
constexpr OtherOption kOtherOptions[] = {{"-n", Meant::ranks},
                                         {"-np", Meant::ranks},
                                         {"--np", Meant::ranks},
                                         {"--nproc", Meant::ranks},
                                         {"--nprocs", Meant::ranks},
                                         {"--num_proc", Meant::ranks},
                                         {"--num_procs", Meant::ranks},
                                         {"--gpus", Meant::ranks},
                                         {"--num_gpus", Meant::ranks},
                                         {"--ngpus", Meant::ranks},
                                         {"--n_gpus", Meant::ranks},
                                         {"--num_processes", Meant::ranks},
                                         {"--ranks", Meant::ranks},
                                         {"--gpus_per_node", Meant::ranks},
                                         {"--config_file", Meant::recipe},
                                         {"--job.config_file", Meant::recipe},
                                         {"--config_path", Meant::recipe},
                                         {"--config_name", Meant::recipe},
                                         {"--recipe_file", Meant::recipe},
                                         {"--cfg", Meant::recipe},
                                         {"--yaml", Meant::recipe}};

enum class Verb { train, tune, resume };
struct OtherCommand {
  std::string_view name;
  Verb verb;
};
constexpr OtherCommand kOtherCommands[] = {
    {"run", Verb::train},      {"pretrain", Verb::train}, {"fit", Verb::train},
    {"launch", Verb::train},   {"start", Verb::train},    {"llm", Verb::tune},
    {"vlm", Verb::tune},       {"finetune", Verb::tune},  {"fine-tune", Verb::tune},
    {"fine_tune", Verb::tune}, {"sft", Verb::tune},       {"tune", Verb::tune},
    {"resume", Verb::resume},  {"automodel", Verb::train}};

std::string with_underscores(std::string_view word) {
  std::string name(word.substr(0, word.find('=')));
  const size_t from = std::min(name.find_first_not_of('-'), name.size());
  std::replace(name.begin() + long(from), name.end(), '-', '_');
  return name;
}

bool is_option(std::string_view word) { return word.size() > 1 && word[0] == '-'; }

bool is_setting_word(std::string_view word) {
  return !is_option(word) && (word.starts_with('~') || word.find('=') != std::string::npos);
}
bool is_file_of_recipe(std::string_view word) {
  return word.ends_with(".yaml") || word.ends_with(".yml");
}

// Whether the launcher accepts the word as a number of ranks.
bool is_ranks(std::string_view word) {
  if (word == "auto" || word == "gpu" || word == "cpu") return true;
  return !word.empty() && word.find_first_not_of("0123456789") == std::string::npos &&
         word.find_first_not_of('0') != std::string::npos;
}
// Whether the word is a number or a list of numbers: 4, -1, 0,1 or 1:2.
bool is_numeric(std::string_view word) {
  return !word.empty() && word.find_first_not_of("0123456789,-:.") == std::string::npos;
}

// Returns the value of the option at `i`: the text after its `=`, or the next word if `accepts`
// allows it. In the second case `i` moves to that word.
template <class Accepts>
std::string value_at(const std::vector<std::string>& words, size_t& i, Accepts accepts) {
  if (const size_t equals = words[i].find('='); equals != std::string::npos)
    return words[i].substr(equals + 1);
  return i + 1 < words.size() && accepts(words[i + 1]) ? words[++i] : "";
}

// Returns the words without secrets and quoted for a shell, each after a space.
std::string typed(const std::vector<std::string>& words) {
  constexpr std::string_view kSpecial = " \t\n;{}[]()<>|&$*?!#`\"\\'";
  std::string text;
  for (const std::string& word : without_secrets(words)) {
    text += ' ';
    if (!word.empty() && word.find_first_of(kSpecial) == std::string::npos) {
      text += word;
      continue;
    }
    text += '\'';
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += '\'';
  }
  return text;
}

std::string recipe_among(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (is_setting_word(word)) continue;
    const std::string value = is_option(word) && word.find('=') != std::string::npos
                                  ? word.substr(word.find('=') + 1)
                                  : word;
    if (is_file_of_recipe(value)) return value;
  }
  return {};
}

// Returns the words of a training, quoted for a shell, after RECIPE if they do not name a recipe.
// Leaves out the commands of other programs before them: `automodel finetune llm`.
std::string training(std::vector<std::string> words) {
  if (!recipe_among(words).empty())
    while (std::ranges::count(kOtherCommands, words[0], &OtherCommand::name) > 0)
      words.erase(words.begin());
  const bool has_recipe =
      !recipe_among(words).empty() || std::ranges::any_of(words, [](const std::string& word) {
        return word.starts_with("--recipe=") || word.starts_with("--config=") ||
               (!is_option(word) && !is_setting_word(word) && !is_numeric(word) && word != "train");
      });
  return (has_recipe ? "" : " RECIPE") + typed(words);
}

void refuse_launcher_options(const std::vector<std::string>& words, const std::string& launcher) {
  std::string name;
  std::vector<std::string> rest, moved;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string option = with_underscores(words[i]);
    const auto row = std::ranges::find_if(kLauncher, [&](const LauncherOption& known) {
      return option.starts_with("--") && option.substr(2) == known.name;
    });
    if (row == std::end(kLauncher)) {
      rest.push_back(words[i]);
      continue;
    }
    if (name.empty()) name = words[i].substr(0, words[i].find('='));
    const std::string value = value_at(words, i, [&](const std::string& next) {
      if (row->takes == Takes::number) return is_numeric(next) || is_ranks(next);
      return row->takes != Takes::nothing && !is_option(next) && !is_file_of_recipe(next) &&
             (row->takes == Takes::pairs || !is_setting_word(next));
    });
    const bool ranks = row->name == "nproc_per_node" && value.empty();
    const std::string given = ranks ? "2" : value;
    moved.push_back(given.empty() ? option : fmt::format("{}={}", option, given));
  }
  if (!name.empty())
    throw UserError(
        fmt::format("{} is an option of mtrain-launch", name),
        fmt::format("write it before the recipe: {}{}{}", launcher, typed(moved), training(rest)));
}

// Returns the number of ranks that the value of another tool's option asks for.
std::string ranks_of(const std::string& value) {
  if (is_ranks(value)) return value;
  const bool list = is_numeric(value) && value.find(',') != std::string::npos;
  return list ? std::to_string(1 + std::ranges::count(value, ',')) : "2";
}

void refuse_other_options(const std::vector<std::string>& words, const std::string& launcher) {
  for (size_t i = 0; i < words.size(); ++i) {
    const auto row =
        std::ranges::find(kOtherOptions, with_underscores(words[i]), &OtherOption::name);
    if (row == std::end(kOtherOptions)) continue;
    const std::string name = words[i].substr(0, words[i].find('='));
    std::vector<std::string> rest{words.begin(), words.begin() + long(i)};
    std::string value = value_at(words, i, [&](const std::string& next) {
      return row->meant == Meant::ranks ? is_numeric(next) || is_ranks(next)
                                        : !is_option(next) && !is_setting_word(next);
    });
    rest.insert(rest.end(), words.begin() + long(i) + 1, words.end());
    if (row->meant == Meant::ranks) {
      if (is_file_of_recipe(value)) rest.insert(rest.begin(), std::exchange(value, ""));
      const bool known = launcher.find("--nproc") != std::string::npos;
      throw UserError(
          fmt::format("{}: no such option", name),
          fmt::format("did you mean --nproc_per_node? write {}{}{}", launcher,
                      known ? "" : " --nproc_per_node=" + ranks_of(value), training(rest)));
    }
    if (!value.empty()) rest.insert(rest.begin(), value);
    const bool alone = launcher == kLauncherProgram;
    throw UserError(fmt::format("{}: no such option", name),
                    fmt::format("did you mean --config? write {}{}", alone ? "mtrain" : launcher,
                                training(rest)));
  }
}

}  // namespace

void refuse_other_commands(const std::vector<std::string>& words,
                           const std::vector<std::string>& folders, const std::string& launcher) {
  if (words.empty() || (words.size() > 1 && words[1].starts_with('='))) return;
  const auto row = std::ranges::find(kOtherCommands, words[0], &OtherCommand::name);
  Diagnostics ignored;
  if (row == std::end(kOtherCommands) || !find_recipe(words[0], folders, ignored).empty()) return;
  const std::string recipe = recipe_among(words),
                    program = launcher == kLauncherProgram ? "mtrain" : launcher;
  std::vector<std::string> settings;
  std::ranges::copy_if(words, std::back_inserter(settings), is_setting_word);
  if (row->verb == Verb::train || (row->verb == Verb::tune && !recipe.empty()))
    throw UserError(fmt::format("`{}` is not a command of mtrain", words[0]),
                    fmt::format("a recipe alone starts its training: write {} {}{}", program,
                                recipe.empty() ? "quickstart" : recipe, typed(settings)));
  if (row->verb == Verb::resume) {
    const bool folder = words.size() > 1 && !is_option(words[1]) && !is_setting_word(words[1]) &&
                        !is_file_of_recipe(words[1]);
    throw UserError(fmt::format("`{}` is not a command of mtrain", words[0]),
                    fmt::format("a run continues by the command that began it: write {} {}{} "
                                "checkpoint.load=latest{}",
                                program, recipe.empty() ? "RECIPE" : recipe, typed(settings),
                                folder ? typed({"train.run_dir=" + words[1]}) : ""));
  }
  throw UserError(fmt::format("`{}` is not a command of mtrain", words[0]),
                  fmt::format("write {} sft model.from=FOLDER, a Hugging Face folder with "
                              "config.json and safetensors, or the name of a downloaded model",
                              program));
}

void refuse_misplaced(const std::vector<std::string>& words,
                      const std::vector<std::string>& folders, const std::string& launcher) {
  refuse_launcher_options(words, launcher);
  refuse_other_options(words, launcher);
  refuse_other_commands(words, folders, launcher);
}

UserError no_recipe_error(const std::vector<std::string>& words, const std::string& program) {
  const std::vector<std::string> own = own_options();
  bool flags = false;
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    const bool is_own = std::ranges::any_of(own, [&](const std::string& option) {
      return with_underscores(option) == with_underscores(name);
    });
    if (!name.starts_with("--") || name.size() < 4 || is_own) continue;
    if (!names_setting(name.substr(2)) && !find_word_hint(with_underscores(name.substr(2))))
      return UserError(fmt::format("{}: no such option", name),
                       "`mtrain --help` lists the options; Megatron's flags go beside --recipe");
    flags = true;
  }
  if (flags)
    return UserError("no recipe given: Megatron's flags alone would not build Megatron's model",
                     "give the flags beside --recipe; what they leave out has mtrain's defaults, "
                     "those of a Llama, not Megatron's");
  return UserError("no recipe given",
                   fmt::format("give the path of a YAML recipe, or the name of a ready one: write "
                               "{} quickstart{}",
                               program, typed(words)));
}

void refuse_unknown_options(const std::vector<std::string>& words) {
  const std::vector<std::string> own = own_options();
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (!name.starts_with("--") || name == "--" || std::ranges::count(own, name) > 0) continue;
    const std::string meant = nearest(name, own);
    throw UserError(fmt::format("{}: mtrain has no such option", name),
                    meant.empty() ? "`mtrain --help` lists what it takes"
                                  : fmt::format("did you mean {}?", meant));
  }
}

}  // namespace mtrain::recipe
