#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain {

std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string to_lower(std::string_view text);

// "1.30M", "124M", "7.24B"
std::string human_count(double n);
// "512 KiB", "3.70 GiB"
std::string human_bytes(double n);
// "42 s", "3 min 10 s", "2 h 05 min"; "?" for a number that is not a duration
std::string human_duration(double seconds);

// Returns the candidate with the smallest edit distance to `word`, or "" if none is close enough.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace mtrain
