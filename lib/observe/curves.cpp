#include "observe/curves.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/core.h>

#include "base/error.h"
#include "base/terminal.h"

namespace mtrain::observe {

namespace {

constexpr double kNoPoint = std::numeric_limits<double>::quiet_NaN();
constexpr double kLargest = 1e300;  // differences of smaller values stay finite
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kPlain = "\x1b[0m";

struct Point {
  double step, value;  // the value is NaN at a gap of the line
};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double x) { low = std::min(low, x), high = std::max(high, x); }
  bool empty() const { return low > high; }
  double share(double x) const { return high > low ? (x - low) / (high - low) : 0.5; }
  double at(double share) const { return low + share * (high - low); }
};

int64_t last_step(const std::vector<Curve>& curves) {
  int64_t last = 0;
  for (const Curve& curve : curves)
    for (const Series* series : {curve.line, curve.marks})
      if (series && !series->empty()) last = std::max(last, series->steps.back());
  return last;
}

// Returns the points to draw, on the scale of the axis.
std::vector<Point> points_of(const Series* series, int64_t from, int64_t smooth, bool log) {
  std::vector<Point> points;
  if (!series) return points;
  double sum = 0;
  int64_t count = 0;  // values in the sum
  for (size_t i = 0; i < series->steps.size(); ++i) {
    double value = series->values[i];
    if (!(std::abs(value) < kLargest)) {
      sum = 0, count = 0;
      value = kNoPoint;
    } else if (smooth > 1) {
      sum += value;
      if (++count > smooth) {
        sum -= series->values[i - size_t(smooth)];
        count = smooth;
      }
      value = sum / double(count);
    }
    if (log) value = value > 0 ? std::log10(value) : kNoPoint;
    if (series->steps[i] >= from) points.push_back({double(series->steps[i]), value});
  }
  return points;
}

struct Cell {
  uint8_t dots = 0;
  int line = -1, mark = -1;  // the last curve with a dot here, and the curve of the letter
  char letter = 0;
};

// The dots of a braille cell by column and row, as Unicode numbers them.
constexpr std::array<std::array<uint8_t, 4>, 2> kDots{{{1, 2, 4, 64}, {8, 16, 32, 128}}};

class Canvas {
 public:
  Canvas(int columns, int rows, bool braille)
      : columns_(columns),
        rows_(rows),
        across_(braille ? 2 : 1),
        down_(braille ? 4 : 1),
        cells_(size_t(columns) * size_t(rows)) {}

  // The number of points of the canvas; y is counted from the top.
  int width() const { return columns_ * across_; }
  int height() const { return rows_ * down_; }
  int across() const { return across_; }

  void dot(int curve, int x, int y) {
    Cell& cell = at(x / across_, y / down_);
    cell.dots |= kDots[size_t(x % across_)][size_t(y % down_)];
    cell.line = curve;
  }
  void vertical(int curve, int x, int y0, int y1) {
    for (int y = std::min(y0, y1); y <= std::max(y0, y1); ++y) dot(curve, x, y);
  }
  // Joins two points; the first one is already drawn.
  void join(int curve, int x0, int y0, int x1, int y1) {
    int before = y0;
    for (int x = x0 + 1; x <= x1; ++x) {
      const int y = y0 + int(std::lround(double(y1 - y0) * (x - x0) / (x1 - x0)));
      const int step = y > before ? 1 : y < before ? -1 : 0;
      vertical(curve, x, before + step, y);
      before = y;
    }
  }
  // A mark does not cover a mark of another curve if a cell to the left is free.
  void letter(int curve, char letter, int column, int row) {
    int place = column;
    while (place > 0 && at(place, row).mark >= 0 && at(place, row).mark != curve) --place;
    if (at(place, row).mark >= 0 && at(place, row).mark != curve) place = column;
    at(place, row).mark = curve;
    at(place, row).letter = letter;
  }
  void letter_at_point(int curve, char c, int x, int y) {
    letter(curve, c, x / across_, y / down_);
  }

  std::string row(int row, const CurveOptions& options, size_t curves) const {
    std::string out, color, spaces;
    for (int column = 0; column < columns_; ++column) {
      const Cell& cell = cells_[size_t(row) * size_t(columns_) + size_t(column)];
      std::string wanted, text;
      if (cell.mark >= 0) {
        wanted = std::string(curve_color(size_t(cell.mark))) + kBold;
        text = cell.letter;
      } else if (cell.dots) {
        wanted = curve_color(size_t(cell.line));
        if (options.braille)  // U+2800 and the dots, in UTF-8
          text = {char(0xe2), char(0xa0 | cell.dots >> 6), char(0x80 | (cell.dots & 0x3f))};
        else
          text = line_letter(size_t(cell.line), curves);
      } else {
        spaces += ' ';
        continue;
      }
      out += spaces;
      spaces.clear();
      if (options.color && wanted != color) {
        if (!color.empty()) out += kPlain;
        out += color = wanted;
      }
      out += text;
    }
    return color.empty() ? out : out + kPlain;
  }

 private:
  Cell& at(int column, int row) { return cells_[size_t(row) * size_t(columns_) + size_t(column)]; }

  int columns_, rows_, across_, down_;
  std::vector<Cell> cells_;
};

struct Axes {
  Range steps, values;
  int x(const Canvas& canvas, double step) const {
    return int(std::lround(steps.share(step) * (canvas.width() - 1)));
  }
  int y(const Canvas& canvas, double value) const {
    return int(std::lround((1 - values.share(value)) * (canvas.height() - 1)));
  }
};

void draw_line(Canvas& canvas, const Axes& axes, int curve, const std::vector<Point>& points,
               bool lettered, char letter, size_t curves) {
  int x = -1, y = 0;                                  // of the point before; x is -1 after a gap
  std::vector<int> rows(size_t(canvas.width()), -1);  // where the line is last at each x
  int last = -1;
  for (const Point& point : points) {
    if (std::isnan(point.value)) {
      x = -1;
      continue;
    }
    const int next_x = axes.x(canvas, point.step), next_y = axes.y(canvas, point.value);
    if (x < 0)
      canvas.dot(curve, next_x, next_y);
    else if (next_x == x)
      canvas.vertical(curve, x, y, next_y);
    else
      canvas.join(curve, x, y, next_x, next_y);
    for (int between = x < 0 ? next_x : x + 1; between <= next_x; ++between)
      rows[size_t(between)] =
          x < 0 || next_x == x ? next_y : y + (next_y - y) * (between - x) / (next_x - x);
    x = next_x, y = next_y;
    last = next_x;
  }
  if (!lettered || last < 0) return;
  // Puts letters at the end and along the line, at different places for each curve.
  constexpr int kLetters = 4;
  const int apart = std::max(1, canvas.width() / kLetters);
  const int first = apart * (2 * curve + 1) / int(2 * curves);
  for (int at = first; at < last - 2 * canvas.across(); at += apart)
    if (rows[size_t(at)] >= 0) canvas.letter_at_point(curve, letter, at, rows[size_t(at)]);
  canvas.letter_at_point(curve, letter, last, rows[size_t(last)]);
}

std::string axis_label(double value, double range) {
  if (std::abs(value) >= 1e6 || (value != 0 && std::abs(value) < 1e-4 && range < 1e-2))
    return fmt::format("{:.3e}", value);
  const int digits = range > 0 ? std::clamp(2 - int(std::floor(std::log10(range))), 0, 6) : 2;
  return fmt::format("{:.{}f}", value, digits);
}

// Returns the labels of the rows, as wide as the widest; empty ones between them.
std::vector<std::string> row_labels(const Range& values, int rows, bool log) {
  std::vector<std::string> labels(size_t(rows), "");
  const int count = std::max(2, (rows + 1) / 3);
  size_t width = 0;
  for (int i = 0; i < count; ++i) {
    const int row = int(std::lround(double(i) * (rows - 1) / (count - 1)));
    const double value = values.at(1 - double(row) / (rows - 1));
    std::string& label = labels[size_t(row)];
    label = log ? fmt::format("{:.4g}", std::pow(10, value))
                : axis_label(value, values.high - values.low);
    width = std::max(width, label.size());
  }
  for (std::string& label : labels) label.insert(0, width - label.size(), ' ');
  return labels;
}

// Returns the axis of steps below a plot: its line, and the line of its labels.
std::string step_axis(const Range& steps, int columns, size_t indent, bool braille) {
  constexpr int kApart = 24;  // columns between labels
  const int count = steps.high > steps.low ? std::max(2, columns / kApart + 1) : 1;
  std::vector<bool> ticks(size_t(columns), false);
  std::string labels(size_t(columns) + indent + 1, ' ');
  size_t end = 0;  // of the label before
  for (int i = 0; i < count; ++i) {
    const double share = count > 1 ? double(i) / (count - 1) : 0.5;
    const int column = int(std::lround(share * (columns - 1)));
    const std::string label = fmt::format("{}{:.0f}", i == 0 ? "step " : "", steps.at(share));
    const int wanted = int(indent) + 1 + column - int(label.size()) / 2;
    const size_t at = size_t(std::clamp(wanted, 0, int(labels.size()) - int(label.size())));
    ticks[size_t(column)] = true;
    if (i > 0 && at < end + 2) continue;
    labels.replace(at, label.size(), label);
    end = at + label.size();
  }
  std::string line = std::string(indent, ' ') + (braille ? "└" : "+");
  for (const bool tick : ticks) line += braille ? (tick ? "┬" : "─") : (tick ? "+" : "-");
  labels.erase(labels.find_last_not_of(' ') + 1);
  return line + "\n" + labels + "\n";
}

// Widens a range of zero width.
void widen(Range& values) {
  if (values.high > values.low) return;
  const double by = std::max(std::abs(values.low) * 0.05, 1e-6);
  values.low -= by, values.high += by;
}

}  // namespace

char line_letter(size_t curve, size_t curves) { return curves > 1 ? char('A' + curve) : '*'; }
char mark_letter(size_t curve, size_t curves) { return curves > 1 ? char('a' + curve) : 'o'; }

std::string_view curve_color(size_t curve) {
  constexpr std::array<std::string_view, kMaxCurves> kColors{"\x1b[36m", "\x1b[33m", "\x1b[35m",
                                                             "\x1b[32m", "\x1b[34m", "\x1b[31m"};
  return kColors[curve % kColors.size()];
}

std::string draw_curves(const std::vector<Curve>& curves, const CurveOptions& options) {
  MT_CHECK(options.rows >= 2 && options.columns >= 20, "{} x {}", options.columns, options.rows);
  int64_t from = options.from.value_or(std::numeric_limits<int64_t>::min());
  if (options.last) from = std::max(from, last_step(curves) - *options.last + 1);
  std::vector<std::vector<Point>> lines, marks;
  Axes axes;
  for (const Curve& curve : curves) {
    lines.push_back(points_of(curve.line, from, options.smooth, options.log));
    marks.push_back(points_of(curve.marks, from, 1, options.log));
    for (const auto* points : {&lines.back(), &marks.back()})
      for (const Point& point : *points) {
        if (std::isnan(point.value)) continue;
        axes.values.add(point.value);
        axes.steps.add(point.step);
      }
  }
  if (axes.steps.empty()) return "there is no value to draw\n";
  widen(axes.values);
  const std::vector<std::string> labels = row_labels(axes.values, options.rows, options.log);
  const size_t indent = labels[0].size() + 1;
  const int columns = std::max(4, options.columns - int(indent) - 1);
  Canvas canvas(columns, options.rows, options.braille);
  const bool several = curves.size() > 1;
  for (size_t i = 0; i < curves.size(); ++i)
    draw_line(canvas, axes, int(i), lines[i], several && options.braille,
              line_letter(i, curves.size()), curves.size());
  for (size_t i = 0; i < curves.size(); ++i)
    for (const Point& point : marks[i])
      if (!std::isnan(point.value))
        canvas.letter_at_point(int(i), mark_letter(i, curves.size()), axes.x(canvas, point.step),
                               axes.y(canvas, point.value));
  std::string out;
  for (int row = 0; row < options.rows; ++row) {
    const std::string& label = labels[size_t(row)];
    const bool tick = label.find_first_not_of(' ') != std::string::npos;
    out += label + (options.braille ? (tick ? " ┤" : " │") : (tick ? " +" : " |"));
    out += canvas.row(row, options, curves.size()) + "\n";
  }
  return out + step_axis(axes.steps, columns, indent, options.braille);
}

}  // namespace mtrain::observe
