// How both programs read options: checks of values, and errors in the form that a recipe's have.
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
// A hint for a wrong value shows `example`, or what is nearest to it in the range.
CLI::Validator whole_number_from(int64_t least, int64_t most, int64_t example = 8);
// Checks that an option is one of the words.
CLI::Validator one_of(std::vector<std::string> words);

// Returns the value that goes by the word, which one_of() has checked.
template <class E>
E pick(const std::string& word, std::initializer_list<std::pair<const char*, E>> names) {
  for (const auto& [name, value] : names)
    if (word == name) return value;
  throw BugError("unchecked choice " + word);
}

// Returns the error for a command line that `app` could not read: which word is wrong, and what was
// probably meant. CLI11's own text is not part of it.
UserError command_line_error(const CLI::App& app, const CLI::ParseError& error);

// Replaces underscores in the names of options by dashes where `app` or its commands know the
// option by that name: both spellings mean the same.
void spell_options_as_known(const CLI::App& app, std::vector<std::string>& words);

// Returns a hint that names the option of the command that `word` is nearest to; empty if none is.
std::string nearest_option(const CLI::App& command, const std::string& word);

// Makes the help of `app`, and of the commands that it gets later, fit the terminal, or 80 columns.
void fit_help(CLI::App& app);
// Ends the help of a command with commands that run as they are written, one a line.
void set_examples(CLI::App& command, std::initializer_list<const char*> examples);

// Prints lines to stdout, wrapped if that is a terminal. The text has an end of line.
void print_lines(const std::string& text);
// Prints `PROGRAM: warning: ...` to stderr.
void print_warning(const char* program, const std::string& text);
// Prints the error as `PROGRAM: error: ...`, with its hint, to stderr. Returns the exit code: 2 for
// what a user can mend, else 1.
int report_error(const char* program, const std::exception& error);

}  // namespace mtrain
