// Draws curves over steps as text: lines of braille dots, or of letters without braille.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "observe/metrics_reader.h"

namespace mtrain::observe {

// The series of one run. Either may be null.
struct Curve {
  const Series* line = nullptr;   // values whose neighbours are joined; NaN is a gap
  const Series* marks = nullptr;  // single points, such as those of evaluations
};

struct CurveOptions {
  int columns = 60, rows = 15;  // columns of the full text, rows of the plot
  bool braille = true, color = false;
  bool log = false;  // a logarithmic axis of values; leaves out values of 0 and below
  std::optional<int64_t> from = {}, last = {};  // the first step; how many of the last steps
  int64_t smooth = 1;                           // draws means over this many values of the line
};

inline constexpr size_t kMaxCurves = 6;

// The letter of a curve's line if there are several curves; its marks have the lower-case letter. A
// single curve has `*`, or only dots, and its marks `o`.
char line_letter(size_t curve, size_t curves);
char mark_letter(size_t curve, size_t curves);
std::string_view curve_color(size_t curve);  // an escape sequence

// Returns the plot with its axes: at most `columns` wide, rows + 2 lines. If no value can be drawn,
// returns one line with a message. A column of many steps shows the range from their smallest to
// their largest value.
std::string draw_curves(const std::vector<Curve>& curves, const CurveOptions& options);

}  // namespace mtrain::observe
