// debug: checks that cost time, and records for a closer look.
#pragma once
#include <optional>
#include <string>
#include <tuple>

#include "recipe/field.h"

namespace mtrain {

struct DebugConfig {
  bool stream_sanitizer = false;
  std::optional<std::string> trace;
  bool deterministic = false, strict = true, check_nan = true;

  static constexpr auto fields = std::tuple{
      Field{"stream_sanitizer", &DebugConfig::stream_sanitizer,
            "report two accesses of a buffer that no event orders"},
      Field{"trace", &DebugConfig::trace, "write a Chrome / Perfetto trace to this file"},
      Field{"deterministic", &DebugConfig::deterministic,
            "bitwise equal runs, also where that is slower"},
      Field{"strict", &DebugConfig::strict,
            "refuse an overlap that cannot be active; false turns it off with a warning"},
      Field{"check_nan", &DebugConfig::check_nan,
            "stop at the first loss or gradient that is not finite and name its tensor"}};
};

}  // namespace mtrain
