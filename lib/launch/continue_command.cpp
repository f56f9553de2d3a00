#include "launch/continue_command.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace mtrain::launch {

namespace {

bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
}

std::string quoted(const std::string& word) {
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

std::string continue_command(const std::vector<std::string>& words) {
  std::string command;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--load") ++i;  // Megatron's flag, with the folder
    if (word == "--load" || word.starts_with("--load=") || word.starts_with("checkpoint.load=") ||
        word == "~checkpoint.load")
      continue;
    command += quoted(word) + " ";
  }
  return command + "checkpoint.load=latest";
}

}  // namespace mtrain::launch
