// What is known of the terminal behind a file descriptor.
#pragma once
#include <string>
#include <string_view>

namespace mtrain {

bool is_live_terminal(int fd);  // a terminal that understands escape codes, outside CI
bool wants_color(int fd);       // a live terminal, and NO_COLOR is not set
int terminal_width(int fd);     // columns; 80 when unknown

// Columns that `text` takes: one per code point.
int display_width(std::string_view text);

// The longest beginning of `text` that fits `columns`, never cutting a code point.
std::string_view fit_columns(std::string_view text, int columns);

// All of `text` at once, so that lines of several threads do not mix. Errors are ignored: a closed
// terminal must not end a training.
void write_all(int fd, std::string_view text);

}  // namespace mtrain
