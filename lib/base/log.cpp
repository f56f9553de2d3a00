#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <string>
#include <utility>

#include "base/terminal.h"

namespace mtrain::log {
namespace {
constexpr int kOutput = 2;  // stderr

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    const auto mode = wants_color(kOutput) ? spdlog::color_mode::always : spdlog::color_mode::never;
    spdlog::logger made("mtrain", std::make_shared<spdlog::sinks::stderr_color_sink_mt>(mode));
    made.set_pattern("%^%l%$: %v");
    return made;
  }();
  return instance;
}

std::mutex g_mutex;
Overlay* g_overlay = nullptr;

// The record has a separate mutex, since its writer may log a warning.
constexpr size_t kMaxEarly = 1 << 20;  // bytes
std::recursive_mutex g_record_mutex;
std::string g_early;
std::function<void(std::string_view)> g_record;

void write(spdlog::level::level_enum level, std::string_view message) {
  const auto name = spdlog::level::to_string_view(level);
  const std::string head = std::string(name.data(), name.size()) + ": ";
  const std::string text = head + std::string(message);
  {
    std::lock_guard lock(g_mutex);
    const std::string shown = fit_terminal(kOutput, text);  // the logger writes the head itself
    const auto line = [&] { logger().log(level, std::string_view(shown).substr(head.size())); };
    g_overlay ? g_overlay->interrupt(line) : line();
  }
  record(text + "\n");
}
}  // namespace

void info(std::string_view message) { write(spdlog::level::info, message); }
void warn(std::string_view message) { write(spdlog::level::warn, message); }
void error(std::string_view message) { write(spdlog::level::err, message); }

void record(std::string_view lines) {
  std::lock_guard lock(g_record_mutex);
  if (g_record)
    g_record(lines);
  else if (g_early.size() + lines.size() <= kMaxEarly)
    g_early += lines;
}

void set_record(std::function<void(std::string_view)> write) {
  std::lock_guard lock(g_record_mutex);
  g_record = std::move(write);
  if (const std::string early = std::exchange(g_early, {}); g_record && !early.empty())
    g_record(early);
}

void set_overlay(Overlay* overlay) {
  std::lock_guard lock(g_mutex);
  g_overlay = overlay;
}

}  // namespace mtrain::log
