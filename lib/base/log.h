// Log lines for people, on stderr. The progress line and metrics live in lib/observe.
#pragma once
#include <string_view>

namespace mtrain::log {

void info(std::string_view message);
void warn(std::string_view message);
void error(std::string_view message);

}  // namespace mtrain::log
