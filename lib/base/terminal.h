// Asks about the terminal behind a file descriptor, and lays text out for it.
#pragma once
#include <string>
#include <string_view>

namespace mtrain {

bool is_live_terminal(int fd);  // whether it is a terminal with escape codes, and not in CI
bool wants_color(int fd);       // whether it is a live terminal and NO_COLOR is not set
bool is_pipe(int fd);           // whether another program reads it
int terminal_width(int fd);     // columns; without a terminal those of COLUMNS, or 80
int terminal_height(int fd);    // lines; 24 if unknown
bool locale_is_utf8();          // whether the user reads UTF-8, by LC_ALL, LC_CTYPE, LANG
// Columns that a line may take: all but the last of a terminal, since some terminals wrap when that
// is filled. 0 for a file or a pipe, where lines have no limit.
int line_width(int fd);

// Returns how many columns `text` takes: two for the wide letters of East Asia, none for combining
// marks and for escape codes.
int display_width(std::string_view text);

// Returns the longest prefix of `text` that fits into `columns`, in complete code points.
std::string_view fit_columns(std::string_view text, int columns);

// Breaks the lines that are longer than `columns` between words; 0 is no limit. A longer word stays
// complete, so that a path can be copied. The rest of a line is indented by two more than its
// begin, or as far in a column on the right. In a line of two columns, which two or more blanks
// part, the second one is wrapped; if it has too little room beside the first, it begins below it.
std::string wrap_words(std::string_view text, int columns);

// The same for a command of a shell: each line but the last ends with a backslash, so that the
// command can be copied. Never breaks within quotes. A comment at its end may get a line before it.
std::string wrap_command(std::string_view command, int columns);

// Returns wrap_words() for the terminal behind `fd`; for a file or a pipe the text as it is.
std::string fit_terminal(int fd, std::string_view text);

// Writes all of `text` at once, so that lines of several threads do not mix. Ignores errors, since
// a closed terminal must not end a training.
void write_all(int fd, std::string_view text);

}  // namespace mtrain
