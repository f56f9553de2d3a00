#include "observe/progress.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/strings.h"
#include "base/terminal.h"

namespace mtrain::observe {

namespace {

constexpr const char* kClearLine = "\r\x1b[K";
constexpr int kMaxCells = 20, kMinCells = 6;  // of the bar
constexpr int kRecordWidth = 100;             // columns of tables in the log's record

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::chrono::steady_clock::time_point after(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(seconds));
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
  std::string further;
  for (const double loss : p.mtp_losses) further += fmt::format(" {:.4f}", loss);
  if (!further.empty()) fields.push_back({"mtp" + further, 4});
  add(p.lr, 3, fmt::format("lr {:.2e}", p.lr));
  add(p.grad_norm, 2, fmt::format("grad {:.3f}", p.grad_norm));
  add(p.loss_scale, 2, fmt::format("scale {:.6g}", p.loss_scale));
  add(p.tokens_per_s, 6, fmt::format("{} tok/s", human_count(p.tokens_per_s)));
  // No arithmetic is faster than the device's peak: if it seems to be, the measured peak is too
  // low.
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
  // The bar takes room from all fields except the step and the loss.
  const auto wanted = [&] {
    const int of_bar = with_bar && fields.size() > 2 ? kGap + kBrackets + kMinCells : 0;
    return display_width(line) + of_bar;
  };
  while (width > 0 && wanted() > width && fields.size() > 1) {
    fields.erase(std::ranges::min_element(fields, {}, &Field::importance));
    line = join(fields);
  }
  const int room = width > 0 ? width - display_width(line) - kGap - kBrackets : kMaxCells;
  if (with_bar && room >= kMinCells) {
    const double done = double(progress.step) / double(progress.total);
    fields.insert(fields.begin() + 1, {bar_of(done, std::min(room, kMaxCells)), 0});
    line = join(fields);
  }
  return width > 0 ? std::string(fit_columns(line, width)) : line;
}

ProgressLine::ProgressLine(ProgressOptions options)
    : options_(options),
      // The reader of a pipe, such as tee, may write to the same terminal at any time.
      live_(options.live.value_or(is_live_terminal(options.err) && !is_pipe(options.out))),
      color_(live_ && options.color.value_or(wants_color(options.err))) {
  if (live_)
    log::set_overlay(this);
  else
    teller_ = std::thread([this] { tell_of_activities(); });
}

ProgressLine::~ProgressLine() {
  finish();
  if (live_) log::set_overlay(nullptr);
  if (!teller_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  teller_.join();
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
  const bool first = activity_.empty();
  activity_ = text;
  if (live_) {
    if (draws_now() || first) draw();
  } else if (first) {
    next_quiet_ = after(options_.quiet_s - since.count());
    changed_.notify_all();
  }
}

void ProgressLine::tell_of_activities() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (activity_.empty()) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, next_quiet_) == std::cv_status::timeout && !ends_ &&
               !activity_.empty() && std::chrono::steady_clock::now() >= next_quiet_) {
      next_quiet_ = after(options_.quiet_again_s);
      print(options_.err, fit_terminal(options_.err, activity_) + "\n");
    }
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
  stay(options_.out, [lines](int columns) { return wrap_words(lines, columns); });
}
void ProgressLine::note(const Layout& lines) { stay(options_.out, lines); }

void ProgressLine::tell(std::string_view line) {
  stay(options_.err, [line](int columns) { return wrap_words(line, columns); });
}
void ProgressLine::tell(const Layout& lines) { stay(options_.err, lines); }

void ProgressLine::stay(int fd, const Layout& lines) {
  {
    std::lock_guard lock(mutex_);
    print(fd, lines(line_width(fd)) + "\n");
  }
  log::record(lines(0) + "\n");
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

void ProgressLine::keep() {
  std::string line;
  {
    std::lock_guard lock(mutex_);
    if (!last_ || stays_) return;
    stays_ = true;
    print(options_.out, step_line(*last_) + "\n");
    line = format_progress(*last_, 0) + "\n";
  }
  log::record(line);
}

void ProgressLine::finish() {
  keep();
  std::lock_guard lock(mutex_);
  clear();
  last_.reset();
  activity_.clear();
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

// A line in a file or a pipe has all fields.
std::string ProgressLine::step_line(const StepProgress& p) const {
  return format_progress(p, line_width(options_.out));
}

// One column stays free, as in all lines, and two more for the ^C that a terminal shows for the
// key.
void ProgressLine::draw() {
  const int width = std::max(1, terminal_width(options_.err) - 3);
  std::string line;
  if (!activity_.empty())
    line = fit_columns(activity_, width);
  else if (last_)
    line = format_progress(*last_, width, Bar::yes);
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
