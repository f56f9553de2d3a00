#include <string>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "commands.h"

namespace mtrain {

CLI::Validator number_from(double least, double most) {
  const auto check = [least, most](std::string& text) {
    double value = 0;
    const bool fits =
        CLI::detail::lexical_cast(text, value) && value >= least && value <= most;  // not for NaN
    return fits ? std::string() : fmt::format("Value {} not in range {} to {}", text, least, most);
  };
  return {check, fmt::format("FLOAT in [{} - {}]", least, most)};
}

}  // namespace mtrain
