#include "apps/command_line.h"

#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "base/strings.h"
#include "base/terminal.h"

namespace mtrain {
namespace {

// Separates the message of a check from a valid value of the option.
constexpr char kExample = '\n';

std::string join(const std::vector<std::string>& words, const char* between = ", ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

// Returns the command that the command line has selected: `data build`, or the program itself.
const CLI::App& reached(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  return commands.empty() ? app : reached(*commands.back());
}

std::string path_of(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent ? path_of(*parent) + " " + command.get_name() : command.get_name();
}

// Returns the options of the command and of its groups.
std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  std::vector<const CLI::Option*> all = command.get_options();
  for (const CLI::App* group : command.get_subcommands({}))
    if (group->get_name().empty())
      for (const CLI::Option* option : group->get_options()) all.push_back(option);
  return all;
}

std::vector<std::string> commands_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands({}))
    if (!sub->get_name().empty()) names.push_back(sub->get_name());
  return names;
}

// Returns the option that an error text of CLI11 mentions. If the text contains several names, the
// longest one counts.
const CLI::Option* option_in(const CLI::App& app, const std::string& text) {
  const CLI::Option* found = nullptr;
  for (const CLI::App* command = &reached(app); command; command = command->get_parent())
    for (const CLI::Option* option : options_of(*command)) {
      const std::string name = option->get_name();
      if (text.find(name) != std::string::npos &&
          (!found || name.size() > found->get_name().size()))
        found = option;
    }
  return found;
}

// Returns the first example of the command, or of its subcommands, that contains `word`; empty if
// there is none. Words after several spaces explain an example.
std::string example_of(const CLI::App& command, const std::string& word) {
  std::string example;
  for (const std::string& line : split(command.get_footer(), '\n')) {
    const std::string_view text = trim(line);
    example += text.substr(0, text.find("  "));
    if (example.ends_with(" \\")) {  // it continues on the next line
      example.pop_back();
      continue;
    }
    if (example.starts_with(path_of(command)) && example.find(word) != std::string::npos)
      return example;
    example.clear();
  }
  for (const CLI::App* sub : command.get_subcommands({}))
    if (!sub->get_name().empty())
      if (const std::string line = example_of(*sub, word); !line.empty()) return line;
  return {};
}

// Returns a hint with an example of the option, and its description.
std::string about(const CLI::App& command, const CLI::Option& option) {
  const std::string line = example_of(command, option.get_positional() ? "" : option.get_name());
  const std::string what = fmt::format("{}: {}", option.get_name(), option.get_description());
  return line.empty() ? what : fmt::format("for example {}; {}", line, what);
}

std::string help_of(const CLI::App& command) {
  const std::string line = command.get_parent() ? example_of(command, "") : "";
  const std::string help = fmt::format("see `{} --help`", path_of(command));
  return line.empty() ? help : fmt::format("write {}; {}", line, help);
}

struct OtherOption {
  std::string_view command, name, hint;
};
// Options of Megatron's preprocess_data.py and of other tools, with a hint for each.
constexpr OtherOption kOtherOptions[] = {
    {"mtrain data build", "--output-prefix", "did you mean --output?"},
    {"mtrain data build", "--json-keys", "did you mean --json-field?"},
    {"mtrain data build", "--json-key", "did you mean --json-field?"},
    {"mtrain data build", "--workers", "did you mean --threads?"},
    {"mtrain data build", "--partitions", "did you mean --threads?"},
    {"mtrain data build", "--tokenizer-type",
     "did you mean --tokenizer? it takes byte, a tokenizer.json, or its folder"},
    {"mtrain data build", "--tokenizer-model", "did you mean --tokenizer?"},
    {"mtrain data build", "--tokenizer-name", "did you mean --tokenizer?"},
    {"mtrain data build", "--vocab-file",
     "did you mean --tokenizer? it takes a tokenizer.json, or its folder"},
    {"mtrain data build", "--merge-file",
     "did you mean --tokenizer? it takes a tokenizer.json, or its folder"},
    {"mtrain data build", "--append-eod",
     "leave it out: documents end with the end-of-document token unless --no-eod is given"},
    {"mtrain data build", "--append-bos", "did you mean --bos always?"},
    {"mtrain data build", "--dataset-impl", "leave it out: the files are .bin and .idx"},
    {"mtrain data build", "--log-interval", "leave it out: progress is shown on a terminal"},
    {"mtrain generate", "--max-new-tokens", "did you mean --tokens?"},
    {"mtrain generate", "--max-tokens", "did you mean --tokens?"},
    {"mtrain generate", "--max-length", "did you mean --tokens? it counts only the added tokens"},
    {"mtrain generate", "--length", "did you mean --tokens?"},
    {"mtrain export", "--model", "write mtrain export hf RUN --output FOLDER"},
    {"mtrain export hf", "--model", "write mtrain export hf RUN --output FOLDER"},
    {"mtrain export", "--output", "write mtrain export hf RUN --output FOLDER"},
    {"mtrain import", "--model", "write mtrain import hf FOLDER --output RUN"},
    {"mtrain import hf", "--model", "write mtrain import hf FOLDER --output RUN"},
    {"mtrain import", "--output", "write mtrain import hf FOLDER --output RUN"}};

UserError unknown_word(const CLI::App& command, const std::string& word) {
  const std::string name = path_of(command);
  if (word.starts_with('-') && word.size() > 1) {
    const std::string shown = word.substr(0, word.find('='));
    std::string dashes = shown;
    std::ranges::replace(dashes, '_', '-');
    for (const OtherOption& other : kOtherOptions)
      if (other.command == name && other.name == dashes)
        return UserError(fmt::format("{}: {} has no such option", shown, name),
                         std::string(other.hint));
    const std::string meant = nearest_option(command, shown);
    return UserError(fmt::format("{}: {} has no such option", shown, name),
                     meant.empty() ? help_of(command) : meant);
  }
  const std::vector<std::string> commands = commands_of(command);
  if (commands.empty())
    return UserError(fmt::format("`{}`: {} takes no further word", word, name), help_of(command));
  const std::string meant = nearest(word, commands);
  return UserError(fmt::format("`{}`: {} has no such command", word, name),
                   meant.empty() ? "the commands are " + join(commands)
                                 : fmt::format("did you mean `{} {}`?", name, meant));
}

UserError missing(const CLI::App& command) {
  // A misspelt word is reported first, since it may be the missing one.
  for (const CLI::App* at = &command; at; at = at->get_parent())
    for (const std::string& word : at->remaining())
      if (word.starts_with('-') || (at == &command && !commands_of(command).empty()))
        return unknown_word(*at, word);
  const std::string name = path_of(command);
  for (const CLI::Option* option : options_of(command))
    if (option->get_required() && option->count() == 0)
      return UserError(fmt::format("{} needs {}", name, option->get_name()),
                       about(command, *option));
  for (const CLI::App* group : command.get_subcommands({})) {
    if (!group->get_name().empty() || group->get_require_option_min() == 0) continue;
    std::vector<std::string> names, given;
    for (const CLI::Option* option : group->get_options()) {
      if (option == group->get_help_ptr()) continue;
      names.push_back(option->get_name());
      if (option->count() > 0) given.push_back(option->get_name());
    }
    if (given.empty())
      return UserError(fmt::format("{} needs one of {}", name, join(names)), help_of(command));
    if (given.size() > 1)
      return UserError(fmt::format("{} exclude each other", join(given, " and ")),
                       "give one of them");
  }
  const std::vector<std::string> commands = commands_of(command);
  const std::string line = example_of(command, "");
  return UserError(fmt::format("{} needs a command", name),
                   fmt::format("the commands are {}; write {}", join(commands),
                               line.empty() ? name + " " + commands[0] : line));
}

UserError wrong_value(const CLI::App& app, const CLI::ParseError& error) {
  const std::string text = error.what();
  const CLI::Option* option = option_in(app, text);
  if (!option) return UserError("the command line cannot be read", help_of(reached(app)));
  const std::string name = option->get_name(), prefix = name + ": ";
  // Errors of this file's checks have a message. Other errors are about the number or the type of
  // the values.
  const CLI::App& command = reached(app);
  const auto write = [&](const std::string& value) {
    return fmt::format("write {}{}", option->get_positional() ? "" : name + " ", value);
  };
  if (dynamic_cast<const CLI::ValidationError*>(&error) && text.starts_with(prefix)) {
    const size_t value = text.find(kExample);
    if (value == std::string::npos) return UserError(text, about(command, *option));
    return UserError(text.substr(0, value), write(text.substr(value + 1)));
  }
  const bool flag = option->get_expected_max() == 0;
  const std::vector<std::string> values = option->results();
  if (flag) return UserError(fmt::format("{} is a flag and takes no value", name), "write " + name);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error))
    return values.size() > 1
               ? UserError(
                     fmt::format("{} is given {} times: {}", name, values.size(), join(values)),
                     "give it once")
               : UserError(fmt::format("{} needs a value", name), about(command, *option));
  const std::string type = option->get_type_name();
  const char* expected = type.starts_with("UINT")  ? "a whole number, 0 or more"
                         : type.starts_with("INT") ? "a whole number"
                                                   : "a number";
  return UserError(fmt::format("{}: expected {}, got `{}`", name, expected, join(values, " ")),
                   write(option->get_default_str().empty() ? "8" : option->get_default_str()));
}

// Returns an error about the two options of a text such as "--a excludes --b".
UserError about_two(const std::string& text, const std::string& verb, const char* form,
                    const char* hint) {
  const size_t at = text.find(verb);
  return UserError(
      fmt::format(fmt::runtime(form), text.substr(0, at), text.substr(at + verb.size())), hint);
}

CLI::Validator check(std::string described, std::function<std::string(const std::string&)> wrong) {
  return CLI::Validator([wrong](std::string& text) { return wrong(text); }, std::move(described));
}

// Lines of help are hard to read beyond 100 columns.
int help_width() { return std::min(terminal_width(STDOUT_FILENO) - 1, 100); }

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    return wrap_words(CLI::Formatter::make_help(app, std::move(name), mode), help_width());
  }
};

}  // namespace

CLI::Validator number_from(double least, double most) {
  return check(fmt::format("from {} to {}", least, most), [least, most](const std::string& text) {
    double value = 0;
    const bool fits =
        CLI::detail::lexical_cast(text, value) && value >= least && value <= most;  // false for NaN
    return fits ? std::string()
                : fmt::format("expected a number from {} to {}, got `{}`{}{}", least, most, text,
                              kExample, std::clamp(0.5, least, most));
  });
}

CLI::Validator integer_from(int64_t least, int64_t most, int64_t example) {
  return check(
      fmt::format("from {} to {}", least, most), [least, most, example](const std::string& text) {
        int64_t value = 0;
        const bool fits = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return fits ? std::string()
                    : fmt::format("expected a whole number from {} to {}, got `{}`{}{}", least,
                                  most, text, kExample, std::clamp(example, least, most));
      });
}

CLI::Validator one_of(std::vector<std::string> words) {
  return check("{" + join(words, ",") + "}", [words](const std::string& text) {
    if (std::ranges::count(words, text) > 0) return std::string();
    const std::string meant = nearest(text, words);
    return fmt::format("expected one of {}, got `{}`{}{}{}", join(words), text,
                       meant.empty() ? "" : fmt::format("; did you mean {}?", meant), kExample,
                       meant.empty() ? words[0] : meant);
  });
}

void spell_options_as_known(const CLI::App& app, std::vector<std::string>& words) {
  std::vector<std::string> known;
  const std::function<void(const CLI::App&)> collect = [&](const CLI::App& command) {
    for (const CLI::Option* option : options_of(command))
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    for (const CLI::App* sub : command.get_subcommands({})) collect(*sub);
  };
  collect(app);
  for (std::string& word : words) {
    const size_t end = std::min(word.find('='), word.size());
    if (!word.starts_with("--") || std::ranges::count(known, word.substr(0, end)) > 0) continue;
    std::string dashes = word.substr(0, end);
    std::replace(dashes.begin(), dashes.end(), '_', '-');
    if (std::ranges::count(known, dashes) > 0) word.replace(0, end, dashes);
  }
}

std::string nearest_option(const CLI::App& command, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options_of(command))
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  std::string name = word;
  if (name.starts_with('-') && !name.starts_with("--")) name.insert(0, "-");
  std::ranges::replace(name, '_', '-');
  for (const std::string& known : names) {
    std::string dashes = known;
    std::ranges::replace(dashes, '_', '-');
    if (dashes == name) return fmt::format("did you mean {}?", known);
  }
  const std::string meant = nearest(name, names);
  return meant.empty() ? meant : fmt::format("did you mean {}?", meant);
}

UserError command_line_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = reached(app);
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    for (const CLI::App* at = &command; at; at = at->get_parent())
      if (const auto words = at->remaining(); !words.empty())
        return unknown_word(*at, words.front());
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error)) return missing(command);
  if (dynamic_cast<const CLI::ExcludesError*>(&error))
    return about_two(error.what(), " excludes ", "{} and {} exclude each other",
                     "leave one of them out");
  if (dynamic_cast<const CLI::RequiresError*>(&error))
    return about_two(error.what(), " requires ", "{} needs {}", "give both, or neither");
  return wrong_value(app, error);
}

void fit_help(CLI::App& app) {
  app.formatter(std::make_shared<HelpFormatter>());
  // On a narrow terminal the descriptions get a larger part of the width.
  app.get_formatter()->column_width(help_width() < 72 ? 26 : 34);
}

void set_examples(CLI::App& command, std::initializer_list<const char*> examples) {
  std::string text = "Examples:";
  for (const char* example : examples)
    text += "\n" + wrap_command(std::string("  ") + example, help_width());
  command.footer(text);
}

namespace {

// Prints `PROGRAM: KIND: text` and the lines of the hint.
void print_message(const char* program, const char* kind, const char* color,
                   const std::string& text, const std::string& hint) {
  std::string message = fmt::format("{}: {}: {}", program, kind, text);
  if (!hint.empty()) message += "\n    hint: " + hint;
  std::string shown = fit_terminal(STDERR_FILENO, message) + "\n";
  if (wants_color(STDERR_FILENO)) {
    const size_t at = shown.find(kind, std::strlen(program));
    shown.insert(at + std::strlen(kind) + 1, "\033[0m");
    shown.insert(at, color);
  }
  std::fputs(shown.c_str(), stderr);
}

}  // namespace

void print_lines(const std::string& text) {
  std::fputs(fit_terminal(STDOUT_FILENO, text).c_str(), stdout);
}

void print_warning(const char* program, const std::string& text) {
  print_message(program, "warning", "\033[1;33m", text, "");
}

int report_error(const char* program, const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  print_message(program, "error", "\033[1;31m", known ? known->message() : error.what(),
                known ? known->hint() : "");
  return dynamic_cast<const UserError*>(&error) ? 2 : 1;
}

}  // namespace mtrain
