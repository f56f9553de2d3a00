// Properties of the terminal of a file descriptor, and layout of text for it.
#pragma once
#include <string>
#include <string_view>

namespace mtrain {

bool is_live_terminal(int fd);  // whether it is a terminal with escape codes, and not in CI
bool wants_color(int fd);       // whether it is a live terminal and NO_COLOR is not set
bool is_pipe(int fd);           // whether it is a pipe, which another program reads
int terminal_width(int fd);     // columns; without a terminal the value of COLUMNS, or 80
int terminal_height(int fd);    // lines; 24 if unknown
bool locale_is_utf8();          // whether the locale uses UTF-8, by LC_ALL, LC_CTYPE, LANG
// Returns the columns that a line may take: all but the last of a terminal, since some terminals
// wrap when the last is filled. 0 for a file or a pipe: their lines have no limit.
int line_width(int fd);

// Returns how many columns `text` takes: two for wide East Asian characters, none for combining
// marks and for escape codes.
int display_width(std::string_view text);

// Returns the longest prefix of `text` that fits into `columns`, in complete code points.
std::string_view fit_columns(std::string_view text, int columns);

// Whether a text has no control character: a terminal obeys those of ASCII and, in UTF-8, U+0080 to
// U+009F. Bytes that are not UTF-8 may be such a character for a terminal with 8 bits.
bool is_printable(std::string_view text);

// Returns a text of a file, which may come from anyone, for one line of a terminal. Control
// characters become question marks. More than `longest` bytes are cut, and end with "...".
std::string printable(std::string_view text, size_t longest = 200);

// Breaks lines longer than `columns` between words; 0 means no limit. A longer word stays complete:
// a path can then be copied. The continuation of a line is indented by two more than the line. In a
// line of two columns, separated by two or more blanks, the second column is wrapped and its
// continuation is aligned with it. If the second column has too little room beside the first, it
// begins below it.
std::string wrap_words(std::string_view text, int columns);

// The same for a shell command: each line but the last ends with a backslash, and the command can
// be copied. Never breaks within quotes. A comment at its end may be moved to a line before it.
std::string wrap_command(std::string_view command, int columns);

// Returns wrap_words() for the terminal of `fd`; for a file or a pipe the unchanged text.
std::string fit_terminal(int fd, std::string_view text);

// Writes all of `text` at once: lines of several threads then do not mix. Ignores errors, since a
// closed terminal must not end a training.
void write_all(int fd, std::string_view text);

}  // namespace mtrain
