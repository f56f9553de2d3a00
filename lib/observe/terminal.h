// Asks about the terminal behind a file descriptor, and fits text to it.
#pragma once
#include <string>
#include <string_view>

namespace mtrain::observe {

bool is_live_terminal(int fd);  // whether it is a terminal with escape codes, and not in CI
bool wants_color(int fd);       // whether it is a live terminal and NO_COLOR is not set
bool is_pipe(int fd);           // whether another program reads it
int terminal_width(int fd);     // columns; 80 if unknown
int terminal_height(int fd);    // lines; 24 if unknown
bool locale_is_utf8();  // whether the user's terminal shows UTF-8, by LC_ALL, LC_CTYPE, LANG

// Returns how many columns `text` takes, one per code point.
int display_width(std::string_view text);

// Returns the longest prefix of `text` that fits into `columns`, in whole code points.
std::string_view fit_columns(std::string_view text, int columns);

// Breaks the lines that are longer than `columns` between words. A longer word stays whole, so that
// a path can be copied.
std::string wrap_words(std::string_view text, int columns);

// Writes all of `text` at once, so that lines of several threads do not mix. Ignores errors, since
// a closed terminal must not end a training.
void write_all(int fd, std::string_view text);

}  // namespace mtrain::observe
