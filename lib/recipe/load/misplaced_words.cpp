#include "recipe/load/misplaced_words.h"

#include <algorithm>
#include <string_view>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/find_recipe.h"
#include "recipe/load/flags.h"
#include "recipe/load/raw_settings.h"
#include "recipe/load/word_hints.h"

namespace mtrain::recipe {
namespace {

constexpr std::string_view kLauncher[] = {
    "nproc_per_node", "nnodes",           "node_rank",    "master_addr", "master_port",
    "standalone",     "rdzv_endpoint",    "rdzv_backend", "rdzv_id",     "rdzv_conf",
    "max_restarts",   "monitor_interval", "start_method", "local_addr",  "local_ranks_filter"};

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

enum class Verb { train, tune };
struct OtherCommand {
  std::string_view name;
  Verb verb;
};
constexpr OtherCommand kOtherCommands[] = {
    {"run", Verb::train},      {"pretrain", Verb::train}, {"fit", Verb::train},
    {"launch", Verb::train},   {"start", Verb::train},    {"llm", Verb::tune},
    {"vlm", Verb::tune},       {"finetune", Verb::tune},  {"fine-tune", Verb::tune},
    {"fine_tune", Verb::tune}, {"sft", Verb::tune},       {"tune", Verb::tune}};

std::string with_underscores(std::string_view word) {
  std::string name(word.substr(0, word.find('=')));
  const size_t from = std::min(name.find_first_not_of('-'), name.size());
  std::replace(name.begin() + long(from), name.end(), '-', '_');
  return name;
}

bool is_option(std::string_view word) { return word.size() > 1 && word[0] == '-'; }

// Returns the value of the option at `i`, which may be the next word; then `i` becomes that word.
std::string value_at(const std::vector<std::string>& words, size_t& i) {
  if (const size_t equals = words[i].find('='); equals != std::string::npos)
    return words[i].substr(equals + 1);
  const bool next = i + 1 < words.size() && !is_option(words[i + 1]) &&
                    words[i + 1].find('=') == std::string::npos && !words[i + 1].ends_with(".yaml");
  return next ? words[++i] : "";
}

// Returns the words as a shell reads them, each after a space.
std::string typed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : without_secrets(words))
    text +=
        word.find_first_of(" ;{[$*") == std::string::npos ? " " + word : fmt::format(" '{}'", word);
  return text;
}

std::string recipe_among(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    const std::string value = is_option(word) && word.find('=') != std::string::npos
                                  ? word.substr(word.find('=') + 1)
                                  : word;
    if (value.ends_with(".yaml") || value.ends_with(".yml")) return value;
  }
  return {};
}

void refuse_launcher_options(const std::vector<std::string>& words) {
  std::string name, moved;
  std::vector<std::string> rest;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string option = with_underscores(words[i]);
    if (!option.starts_with("--") || std::ranges::count(kLauncher, option.substr(2)) == 0) {
      rest.push_back(words[i]);
      continue;
    }
    if (name.empty()) name = words[i].substr(0, words[i].find('='));
    const std::string value = option == "--standalone" ? "" : value_at(words, i);
    moved += " " + option + (value.empty() ? "" : "=" + value);
  }
  if (!name.empty())
    throw UserError(fmt::format("{} is an option of mtrain-launch", name),
                    fmt::format("write it before the recipe: mtrain-launch{}{}", moved,
                                rest.empty() ? " RECIPE" : typed(rest)));
}

void refuse_other_options(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    const auto row =
        std::ranges::find(kOtherOptions, with_underscores(words[i]), &OtherOption::name);
    if (row == std::end(kOtherOptions)) continue;
    const std::string name = words[i].substr(0, words[i].find('='));
    const std::string recipe = recipe_among(words), value = value_at(words, i);
    if (row->meant == Meant::ranks)
      throw UserError(fmt::format("{}: no such option", name),
                      fmt::format("did you mean --nproc_per_node? write mtrain-launch "
                                  "--nproc_per_node={} {}",
                                  value.empty() ? "2" : value, recipe.empty() ? "RECIPE" : recipe));
    const std::string file = value.empty() ? recipe : value;
    throw UserError(
        fmt::format("{}: no such option", name),
        fmt::format("did you mean --config? write mtrain {}", file.empty() ? "RECIPE" : file));
  }
}

void refuse_other_commands(const std::vector<std::string>& words,
                           const std::vector<std::string>& folders) {
  if (words.empty() || (words.size() > 1 && words[1].starts_with('='))) return;
  const auto row = std::ranges::find(kOtherCommands, words[0], &OtherCommand::name);
  Diagnostics ignored;
  if (row == std::end(kOtherCommands) || !find_recipe(words[0], folders, ignored).empty()) return;
  const std::string recipe = recipe_among(words);
  if (row->verb == Verb::train)
    throw UserError(fmt::format("`{}` is not a command of mtrain", words[0]),
                    fmt::format("a recipe alone starts its training: write mtrain {}",
                                recipe.empty() ? "quickstart" : recipe));
  throw UserError(fmt::format("`{}` is not a command of mtrain", words[0]),
                  fmt::format("write mtrain {} model.from=FOLDER, a Hugging Face folder with "
                              "config.json and safetensors; nothing is downloaded",
                              recipe.empty() ? "sft" : recipe));
}

}  // namespace

void refuse_misplaced(const std::vector<std::string>& words,
                      const std::vector<std::string>& folders) {
  refuse_launcher_options(words);
  refuse_other_options(words);
  refuse_other_commands(words, folders);
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
