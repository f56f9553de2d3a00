#include "observe/progress.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/strings.h"
#include "observe/terminal.h"

namespace mtrain::observe {

namespace {

constexpr const char* kClearLine = "\r\x1b[K";
constexpr int kBarCells = 20;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Field {
  std::string text;
  int importance;  // the field with the lowest is left out first
};

std::string bar(double done) {
  const int full = std::clamp(int(done * kBarCells), 0, kBarCells);
  return fmt::format("[{}{}]", std::string(size_t(full), '#'),
                     std::string(size_t(kBarCells - full), '.'));
}

std::vector<Field> fields_of(const StepProgress& p, bool with_bar) {
  std::vector<Field> fields;
  const auto total = std::to_string(p.total);
  fields.push_back({fmt::format("step {:>{}}/{}", p.step, total.size(), total), 9});
  if (with_bar && p.total > 0) fields.push_back({bar(double(p.step) / double(p.total)), 1});
  const auto add = [&](double value, int importance, const std::string& text) {
    if (!std::isnan(value)) fields.push_back({text, importance});
  };
  // A NaN loss is shown, since it is a result of the step and not a missing figure.
  fields.push_back({fmt::format("loss {:.4f}", p.loss), 8});
  add(p.lr, 3, fmt::format("lr {:.2e}", p.lr));
  add(p.grad_norm, 2, fmt::format("grad {:.3f}", p.grad_norm));
  add(p.loss_scale, 2, fmt::format("scale {:.6g}", p.loss_scale));
  add(p.tokens_per_s, 6, fmt::format("{} tok/s", human_count(p.tokens_per_s)));
  // No arithmetic is faster than the device's peak: beyond it the peak was measured too low.
  add(p.mfu, 5, p.mfu > 1 ? "MFU: peak mismeasured" : fmt::format("MFU {:.1f} %", 100 * p.mfu));
  add(p.eta_s, 7, fmt::format("ETA {}", human_duration(p.eta_s)));
  return fields;
}

std::string join(const std::vector<Field>& fields) {
  std::string line;
  for (const auto& f : fields) line += (line.empty() ? "" : "  ") + f.text;
  return line;
}

}  // namespace

std::string format_progress(const StepProgress& progress, int width) {
  auto fields = fields_of(progress, width > 0);
  std::string line = join(fields);
  while (width > 0 && display_width(line) > width && fields.size() > 1) {
    fields.erase(std::ranges::min_element(fields, {}, &Field::importance));
    line = join(fields);
  }
  return width > 0 ? std::string(fit_columns(line, width)) : line;
}

ProgressLine::ProgressLine(ProgressOptions options)
    : options_(options),
      live_(options.live.value_or(is_live_terminal(options.fd))),
      color_(live_ && options.color.value_or(wants_color(options.fd))) {
  if (live_) log::set_overlay(this);
}

ProgressLine::~ProgressLine() {
  finish();
  if (live_) log::set_overlay(nullptr);
}

void ProgressLine::update(StepProgress p) {
  std::lock_guard lock(mutex_);
  if (std::isfinite(p.step_s)) {
    step_s_ = step_s_ == 0 ? p.step_s : 0.9 * step_s_ + 0.1 * p.step_s;
    if (std::isnan(p.eta_s) && p.total > p.step) p.eta_s = step_s_ * double(p.total - p.step);
  }
  last_ = p;
  if (!live_) return write_all(options_.fd, format_progress(p, 0) + "\n");
  const int64_t now = now_ns();
  if (now < next_draw_ns_) return;
  next_draw_ns_ = now + int64_t(options_.min_interval_s * 1e9);
  draw_locked();
}

void ProgressLine::note(std::string_view line) {
  std::lock_guard lock(mutex_);
  write_all(options_.fd, fmt::format("{}{}\n", shown_ ? kClearLine : "", line));
  if (shown_) draw_locked();
}

void ProgressLine::finish() {
  std::lock_guard lock(mutex_);
  if (live_ && last_) {
    draw_locked();
    write_all(options_.fd, "\n");
  }
  last_.reset();
  shown_ = false;
}

void ProgressLine::interrupt(const std::function<void()>& write_line) {
  std::lock_guard lock(mutex_);
  if (shown_) write_all(options_.fd, kClearLine);
  write_line();
  if (shown_) draw_locked();
}

// One column stays free, since some terminals wrap when the last column is filled.
void ProgressLine::draw_locked() {
  if (!last_) return;
  std::string line =
      format_progress(*last_, options_.width.value_or(terminal_width(options_.fd)) - 1);
  if (const auto at = line.find("loss "); color_ && at != std::string::npos) {
    const auto begin = at + 5, end = std::min(line.find(' ', begin), line.size());
    line.insert(end, "\x1b[0m");
    line.insert(begin, "\x1b[1m");
  }
  write_all(options_.fd, fmt::format("\r{}\x1b[K", line));
  shown_ = true;
}

}  // namespace mtrain::observe
