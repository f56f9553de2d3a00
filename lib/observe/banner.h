// The table that a run prints before its first step: a title, and rows of two columns.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mtrain::observe {

struct BannerRow {
  std::string label, text;
};

// Returns the table with its texts aligned. A text that is too long for `width` columns is broken
// between words and continues in the next line.
std::string banner(std::string_view title, const std::vector<BannerRow>& rows, int width);

// Prints the same table, fitted to the terminal of `fd`.
void print_banner(int fd, std::string_view title, const std::vector<BannerRow>& rows);

}  // namespace mtrain::observe
