// Generates the script of shell completion from the commands and the schema of recipes. The script
// is therefore always up to date.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "commands.h"
#include "recipe/load/find_recipe.h"
#include "recipe/schema/schema.h"

namespace mtrain {

namespace {

// completion_script() replaces the words between % signs. zsh runs the script with bashcompinit:
// immediately, or as a completion file. Such a file begins with #compdef, and zsh reads it when it
// first completes one of the programs. The words after mtrain-launch's own options are for mtrain.
constexpr const char* kScript = R"bash(_mtrain_settings='%SETTINGS%'
_mtrain_recipes='%RECIPES%'
_mtrain_values() {
  local words=
  case $1 in
%VALUES%  esac
  echo "$words"
}
# The downloaded models of the Hugging Face Hub.
_mtrain_models() {
  local cache folder
  for cache in "$HF_HUB_CACHE" "${HF_HOME:+$HF_HOME/hub}" "${XDG_CACHE_HOME:+$XDG_CACHE_HOME/huggingface/hub}" \
    ~/.cache/huggingface/hub; do
    for folder in ${cache:+"$cache"/models--*/}; do
      [[ -d $folder ]] && folder=${folder%/} && folder=${folder##*/models--} && echo "${folder/--//}"
    done
  done
}
_mtrain_words() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} setting= command= words= i
  COMPREPLY=()
  # The shell splits words at `=`.
  if [[ $cur == '=' ]]; then
    setting=$prev cur=
  elif [[ $prev == '=' ]]; then
    setting=${COMP_WORDS[COMP_CWORD-2]}
  fi
  if [[ $setting ]]; then
    COMPREPLY=($(compgen -W "$(_mtrain_values "$setting")" -- "$cur"))
    case $setting in
      model.from | tokenizer.path)
        COMPREPLY=($(compgen -W "$(_mtrain_models)" -- "$cur") $(compgen -f -- "$cur")) ;;
    esac
    return
  fi
  case $prev in
    --recipe | -r | --config | -c)
      COMPREPLY=($(compgen -W "$_mtrain_recipes" -- "$cur") $(compgen -f -- "$cur"))
      compopt -o filenames 2>/dev/null
      return ;;
    --model | --tokenizer | -t)
      COMPREPLY=($(compgen -W "$(_mtrain_models)" -- "$cur") $(compgen -f -- "$cur"))
      compopt -o filenames 2>/dev/null
      return ;;
    %FILE_OPTIONS%)
      COMPREPLY=($(compgen -f -- "$cur"))
      compopt -o filenames 2>/dev/null
      return ;;
  esac
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "${command:+$command }${COMP_WORDS[i]}" in
      %COMMANDS%) command="${command:+$command }${COMP_WORDS[i]}" ;;
    esac
  done
  case $command in
%WORDS%  esac
  case $command in
    '' | train)
      if [[ $cur == [a-z]* ]]; then
        words="$words $_mtrain_settings"
        compopt -o nospace 2>/dev/null
      fi ;;
    explain) words="$words ${_mtrain_settings//=/}" ;;
  esac
  if [[ ${COMP_WORDS[0]} == *mtrain-launch ]]; then
    words="$words $("${COMP_WORDS[0]}" --help 2>/dev/null | grep -oE -e '--[a-z][a-z_-]*')"
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  case $command in
    status | timeline | watch | compare | report | checkpoint\ *)
      COMPREPLY+=($(compgen -f -- "$cur"))
      compopt -o filenames 2>/dev/null ;;
    'import hf')
      COMPREPLY+=($(compgen -W "$(_mtrain_models)" -- "$cur") $(compgen -f -- "$cur"))
      compopt -o filenames 2>/dev/null ;;
  esac
}
complete -F _mtrain_words mtrain mtrain-launch
)bash";

// The same for fish, which does not split words at `=`.
constexpr const char* kFishScript = R"fish(function __mtrain_values
  switch $argv[1]
%VALUES%  end
end
function __mtrain_models
  for cache in $HF_HUB_CACHE $HF_HOME/hub $XDG_CACHE_HOME/huggingface/hub ~/.cache/huggingface/hub
    for folder in $cache/models--*/
      string replace -- '--' / (string replace -r '.*/models--(.*)/$' '$1' -- $folder)
    end
  end
end
function __mtrain_words
  set -l current (commandline -ct)
  set -l words (commandline -opc)
  if string match -q -- '*=*' $current
    set -l setting (string split -m 1 = -- $current)[1]
    for value in (__mtrain_values $setting)
      echo $setting=$value
    end
    if contains -- $setting model.from tokenizer.path
      for value in (__mtrain_models)
        echo $setting=$value
      end
    end
    return
  end
  switch $words[-1]
    case --recipe -r --config -c
      string split ' ' -- '%RECIPES%'
      __fish_complete_path $current
      return
    case --model --tokenizer -t
      __mtrain_models
      __fish_complete_path $current
      return
    case %FILE_OPTIONS%
      __fish_complete_path $current
      return
  end
  set -l command
  for word in $words[2..-1]
    set -l longer (string join ' ' -- $command $word)
    switch $longer
      case %COMMANDS%
        set command $longer
    end
  end
  switch "$command"
%WORDS%  end
  if contains -- "$command" '' train explain; and string match -qr '^[a-z]' -- $current
    set -l settings (string split ' ' -- '%SETTINGS%')
    if test "$command" = explain
      string trim -r -c = -- $settings
    else
      string join \n -- $settings
    end
  end
  if string match -q -- '*mtrain-launch' $words[1]
    $words[1] --help 2>/dev/null | string match -ar -- '--[a-z][a-z_-]*'
  end
  switch "$command"
    case status timeline watch compare report 'checkpoint *'
      __fish_complete_path $current
    case 'import hf'
      __mtrain_models
      __fish_complete_path $current
  end
end
complete -c mtrain -f -a '(__mtrain_words)'
complete -c mtrain-launch -f -a '(__mtrain_words)'
)fish";

void replace(std::string& text, std::string_view name, const std::string& by) {
  text.replace(text.find(name), name.size(), by);
}

void append(std::string& words, const std::string& word, const char* between = " ") {
  words += (words.empty() ? "" : between) + word;
}

struct Command {
  std::string path;  // "data build"; empty: mtrain itself
  const CLI::App* app;
};

std::vector<Command> commands_of(const CLI::App& app, const std::string& path = "") {
  std::vector<Command> all{{path, &app}};
  for (const CLI::App* sub : app.get_subcommands({})) {
    const std::string below = path.empty() ? sub->get_name() : path + " " + sub->get_name();
    for (Command& c : commands_of(*sub, below)) all.push_back(std::move(c));
  }
  return all;
}

std::string words_of(const CLI::App& app) {
  std::string words;
  for (const CLI::App* sub : app.get_subcommands({})) append(words, sub->get_name());
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) append(words, "--" + name);
    // The type name of a positional with a few valid words lists them: {bash,zsh,fish}.
    const std::string type = option->get_type_name();
    const size_t open = type.find('{'), close = type.find('}');
    if (!option->get_positional() || open == std::string::npos || close == std::string::npos)
      continue;
    std::string choices = type.substr(open + 1, close - open - 1);
    for (char& c : choices)
      if (c == ',') c = ' ';
    append(words, choices);
  }
  return words;
}

// Returns a branch for each setting that accepts only a few words; `form` is its format string.
std::string setting_values(const char* form) {
  std::string out;
  for (const recipe::SchemaRow& row : recipe::schema_rows()) {
    const recipe::TypeInfo info = row.ops->info();
    std::string words;
    for (const auto& choice : info.choices) append(words, std::string(choice));
    if (info.kind == recipe::TypeInfo::Kind::boolean) append(words, "true false");
    if (info.may_be_auto) append(words, "auto");
    if (!words.empty()) out += fmt::format(fmt::runtime(form), row.path, words);
  }
  return out;
}

// Returns the names of the ready recipes.
std::string ready_recipes() {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::set<std::string> names;
  for (const std::string& folder : recipe::recipe_folders(program))
    for (const auto& file : std::filesystem::directory_iterator(folder))
      if (file.path().extension() == ".yaml") names.insert(file.path().stem().string());
  std::string words;
  for (const std::string& name : names) append(words, name);
  return words;
}

std::string completion_script(const CLI::App& app, bool fish) {
  const char* between = fish ? " " : " | ";
  std::string settings, paths, words, file_options;
  for (const recipe::SchemaRow& row : recipe::schema_rows()) append(settings, row.path + "=");
  for (const Command& c : commands_of(app)) {
    if (!c.path.empty()) append(paths, "'" + c.path + "'", between);
    words += fmt::format(fmt::runtime(fish ? "    case '{}'\n      string split ' ' -- '{}'\n"
                                           : "    '{}') words='{}' ;;\n"),
                         c.path, words_of(*c.app));
  }
  for (const char* option : {"--trace", "--token_file", "--token-file", "--run", "--data",
                             "--prompts", "--input", "-i", "--output", "-o", "--train", "--valid",
                             "--from-csv", "--svg", "--html", "--log_dir", "--log-dir"})
    append(file_options, option, between);
  std::string script = fish ? kFishScript : kScript;
  replace(script, "%SETTINGS%", settings);
  replace(script, "%RECIPES%", ready_recipes());
  replace(script, "%VALUES%",
          setting_values(fish ? "    case {}\n      string split ' ' -- '{}'\n"
                              : "    {}) words='{}' ;;\n"));
  replace(script, "%FILE_OPTIONS%", file_options);
  replace(script, "%COMMANDS%", paths);
  replace(script, "%WORDS%", words);
  return script;
}

}  // namespace

void add_completion_command(CLI::App& app) {
  auto* command = app.add_subcommand("completion", "print completion for a shell");
  set_examples(*command, {"eval \"$(mtrain completion bash)\"  # in ~/.bashrc",
                          "eval \"$(mtrain completion zsh)\"  # in ~/.zshrc",
                          "mtrain completion fish | source  # in ~/.config/fish/config.fish"});
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell)->required()->check(one_of({"bash", "zsh", "fish"}));
  command->callback([&app, shell] {
    const bool zsh = *shell == "zsh";
    if (zsh)
      std::puts("#compdef mtrain mtrain-launch\nautoload -U +X bashcompinit && bashcompinit");
    std::fputs(completion_script(app, *shell == "fish").c_str(), stdout);
    // If zsh reads the file during a completion, it needs the first result now.
    if (zsh) std::puts("if (( $+CURRENT )); then _bash_complete -F _mtrain_words; fi");
  });
}

}  // namespace mtrain
