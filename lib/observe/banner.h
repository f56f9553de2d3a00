// The table that a run prints before its first step: a title, and rows of two columns.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mtrain {

struct BannerRow {
  std::string label, text;
};

// The labels align; a text longer than `width` columns allow goes on under itself, broken between
// words.
std::string banner(std::string_view title, const std::vector<BannerRow>& rows, int width);

// The same, fitted to the terminal behind `fd`.
void print_banner(int fd, std::string_view title, const std::vector<BannerRow>& rows);

}  // namespace mtrain
