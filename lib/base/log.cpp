#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <mutex>

namespace mtrain::log {
namespace {
spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("mtrain", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made.set_pattern("%^%l%$: %v");
    return made;
  }();
  return instance;
}

std::mutex g_mutex;
Overlay* g_overlay = nullptr;

void write(spdlog::level::level_enum level, std::string_view message) {
  std::lock_guard lock(g_mutex);
  const auto line = [&] { logger().log(level, message); };
  g_overlay ? g_overlay->interrupt(line) : line();
}
}  // namespace

void info(std::string_view message) { write(spdlog::level::info, message); }
void warn(std::string_view message) { write(spdlog::level::warn, message); }
void error(std::string_view message) { write(spdlog::level::err, message); }

void set_overlay(Overlay* overlay) {
  std::lock_guard lock(g_mutex);
  g_overlay = overlay;
}

}  // namespace mtrain::log
