// How both programs read options: checks of values, and errors in the same form as those of a
// recipe.
#pragma once
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace CLI {
class App;
class ParseError;
class Validator;
}  // namespace CLI

namespace mtrain {

// Checks that an option is a number from `least` to `most`, and not NaN.
CLI::Validator number_from(double least, double most);
// Checks that an option is an integer in this range. The hint for a wrong value shows `example`,
// clamped to the range.
CLI::Validator integer_from(int64_t least, int64_t most, int64_t example = 8);
// Checks that an option is one of the words.
CLI::Validator one_of(std::vector<std::string> words);

// Returns the value that belongs to `word`. one_of() must have checked the word.
template <class E>
E pick(const std::string& word, std::initializer_list<std::pair<const char*, E>> names) {
  for (const auto& [name, value] : names)
    if (word == name) return value;
  throw BugError("unchecked choice " + word);
}

// Returns the error for a command line that `app` could not read: the wrong word, and the most
// similar valid one. It does not contain CLI11's own text.
UserError command_line_error(const CLI::App& app, const CLI::ParseError& error);

// Replaces underscores in the names of options by dashes if `app` or its commands have the option
// with dashes: both spellings mean the same.
void spell_options_as_known(const CLI::App& app, std::vector<std::string>& words);

// Returns a hint with the command's option that is most similar to `word`; empty if there is none.
std::string nearest_option(const CLI::App& command, const std::string& word);

// Fits the help of `app`, and of commands that are added later, to the terminal, or to 80 columns.
void fit_help(CLI::App& app);
// Appends example commands to the help of a command, one per line. They must run as written.
void set_examples(CLI::App& command, std::initializer_list<const char*> examples);

// Prints lines to stdout, wrapped if that is a terminal. The text must end with a line break.
void print_lines(const std::string& text);
// Prints `PROGRAM: warning: ...` to stderr.
void print_warning(const char* program, const std::string& text);
// Prints the error as `PROGRAM: error: ...`, with its hint, to stderr. Returns the exit code: 2 for
// errors that the user can fix, else 1.
int report_error(const char* program, const std::exception& error);

}  // namespace mtrain
