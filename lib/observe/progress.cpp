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
constexpr int kMostCells = 20, kFewestCells = 6;  // of the bar
constexpr int kRecordWidth = 100;                 // columns of tables in the log's record

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Field {
  std::string text;
  int importance;  // the field with the lowest is left out first
};

std::string bar_of(double done, int cells) {
  const int full = std::clamp(int(done * cells), 0, cells);
  return fmt::format("[{}{}]", std::string(size_t(full), '#'),
                     std::string(size_t(cells - full), '.'));
}

std::vector<Field> fields_of(const StepProgress& p) {
  std::vector<Field> fields;
  const auto total = std::to_string(p.total);
  fields.push_back({fmt::format("step {:>{}}/{}", p.step, total.size(), total), 9});
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

std::string format_progress(const StepProgress& progress, int width, Bar bar) {
  auto fields = fields_of(progress);
  constexpr int kGap = 2, kBrackets = 2;
  const bool with_bar = bar == Bar::yes && progress.total > 0;
  std::string line = join(fields);
  // The bar takes room from all but the step and the loss.
  const auto wanted = [&] {
    const int of_bar = with_bar && fields.size() > 2 ? kGap + kBrackets + kFewestCells : 0;
    return display_width(line) + of_bar;
  };
  while (width > 0 && wanted() > width && fields.size() > 1) {
    fields.erase(std::ranges::min_element(fields, {}, &Field::importance));
    line = join(fields);
  }
  const int room = width > 0 ? width - display_width(line) - kGap - kBrackets : kMostCells;
  if (with_bar && room >= kFewestCells) {
    const double done = double(progress.step) / double(progress.total);
    fields.insert(fields.begin() + 1, {bar_of(done, std::min(room, kMostCells)), 0});
    line = join(fields);
  }
  return width > 0 ? std::string(fit_columns(line, width)) : line;
}

ProgressLine::ProgressLine(ProgressOptions options)
    : options_(options),
      // What reads a pipe, such as tee, may write to the same terminal at any time.
      live_(options.live.value_or(is_live_terminal(options.err) && !is_pipe(options.out))),
      color_(live_ && options.color.value_or(wants_color(options.err))) {
  if (live_) log::set_overlay(this);
}

ProgressLine::~ProgressLine() {
  finish();
  if (live_) log::set_overlay(nullptr);
}

void ProgressLine::update(StepProgress p, bool stays) {
  {
    std::lock_guard lock(mutex_);
    activity_.clear();
    if (std::isfinite(p.step_s)) {
      step_s_ = step_s_ == 0 ? p.step_s : 0.9 * step_s_ + 0.1 * p.step_s;
      if (std::isnan(p.eta_s) && p.total > p.step) p.eta_s = step_s_ * double(p.total - p.step);
    }
    last_ = p;
    stays_ = stays;
    if (stays)
      print(options_.out, step_line(p) + "\n");
    else if (live_ && draws_now())
      draw();
  }
  if (stays) log::record(format_progress(p, 0) + "\n");
}

void ProgressLine::activity(std::string_view text, std::chrono::duration<double> since) {
  std::lock_guard lock(mutex_);
  const int64_t now = now_ns();
  if (activity_.empty()) next_quiet_ns_ = now + int64_t((options_.quiet_s - since.count()) * 1e9);
  const bool first = activity_.empty();
  activity_ = text;
  if (live_) {
    if (draws_now() || first) draw();
  } else if (now >= next_quiet_ns_) {
    next_quiet_ns_ = now + int64_t(options_.quiet_again_s * 1e9);
    print(options_.err, activity_ + "\n");
  }
}

void ProgressLine::idle() {
  std::lock_guard lock(mutex_);
  if (activity_.empty()) return;
  activity_.clear();
  clear();
  if (live_) draw();
}

void ProgressLine::note(std::string_view lines) {
  const std::string text = fmt::format("{}\n", lines);
  {
    std::lock_guard lock(mutex_);
    print(options_.out,
          is_live_terminal(options_.out) ? wrap_words(text, columns(options_.out)) : text);
  }
  log::record(text);
}

void ProgressLine::tell(std::string_view line) {
  const std::string text = fmt::format("{}\n", line);
  {
    std::lock_guard lock(mutex_);
    print(options_.err, text);
  }
  log::record(text);
}

void ProgressLine::banner(std::string_view title, const std::vector<BannerRow>& rows) {
  {
    std::lock_guard lock(mutex_);
    clear();
    print_banner(options_.out, title, rows);
    if (live_) draw();
  }
  log::record(observe::banner(title, rows, kRecordWidth));
}

void ProgressLine::finish() {
  std::string line;
  {
    std::lock_guard lock(mutex_);
    clear();
    if (last_ && !stays_) {
      write_all(options_.out, step_line(*last_) + "\n");
      line = format_progress(*last_, 0) + "\n";
    }
    last_.reset();
    activity_.clear();
  }
  if (!line.empty()) log::record(line);
}

void ProgressLine::interrupt(const std::function<void()>& write_line) {
  std::lock_guard lock(mutex_);
  const bool shown = shown_;
  clear();
  write_line();
  if (shown) draw();
}

void ProgressLine::print(int fd, std::string_view lines) {
  clear();
  write_all(fd, lines);
  if (live_) draw();
}

void ProgressLine::clear() {
  if (shown_) write_all(options_.err, kClearLine);
  shown_ = false;
}

bool ProgressLine::draws_now() {
  const int64_t now = now_ns();
  if (now < next_draw_ns_) return false;
  next_draw_ns_ = now + int64_t(options_.min_interval_s * 1e9);
  return true;
}

int ProgressLine::columns(int fd) const { return options_.width.value_or(terminal_width(fd)) - 1; }

// A line in a file or a pipe has all fields.
std::string ProgressLine::step_line(const StepProgress& p) const {
  return format_progress(p, is_live_terminal(options_.out) ? columns(options_.out) : 0);
}

// One column stays free, since some terminals wrap when the last column is filled.
void ProgressLine::draw() {
  std::string line;
  if (!activity_.empty())
    line = fit_columns(activity_, columns(options_.err));
  else if (last_)
    line = format_progress(*last_, columns(options_.err), Bar::yes);
  if (line.empty()) return;
  if (const auto at = line.find("loss "); color_ && activity_.empty() && at != std::string::npos) {
    const auto begin = at + 5, end = std::min(line.find(' ', begin), line.size());
    line.insert(end, "\x1b[0m");
    line.insert(begin, "\x1b[1m");
  }
  write_all(options_.err, fmt::format("\r{}\x1b[K", line));
  shown_ = true;
}

}  // namespace mtrain::observe
