// What is known of the terminal behind a file descriptor.
#pragma once
#include <string>
#include <string_view>

namespace mtrain::observe {

bool is_live_terminal(int fd);  // a terminal that understands escape codes, outside CI
bool wants_color(int fd);       // a live terminal, and NO_COLOR is not set
int terminal_width(int fd);     // columns; 80 when unknown

// Returns how many columns `text` takes, one per code point.
int display_width(std::string_view text);

// Returns the longest beginning of `text` that fits `columns`, in whole code points.
std::string_view fit_columns(std::string_view text, int columns);

// Writes all of `text` at once, so that lines of several threads do not mix. Ignores errors, since
// a closed terminal must not end a training.
void write_all(int fd, std::string_view text);

}  // namespace mtrain::observe
