#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

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
}  // namespace

void info(std::string_view message) { logger().info(message); }
void warn(std::string_view message) { logger().warn(message); }
void error(std::string_view message) { logger().error(message); }

}  // namespace mtrain::log
