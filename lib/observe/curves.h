// Draws curves over steps as text: lines of braille dots, or of letters where there are none.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "observe/metrics_reader.h"

namespace mtrain::observe {

// What is drawn of one run. Either may be null.
struct Curve {
  const Series* line = nullptr;   // values whose neighbours are joined; NaN is a gap
  const Series* marks = nullptr;  // single points, such as those of evaluations
};

struct CurveOptions {
  int columns = 60, rows = 15;  // of the whole text, and of the plot alone
  bool braille = true, color = false;
  bool log = false;  // a logarithmic axis of values; leaves out those up to 0
  std::optional<int64_t> from = {}, last = {};  // steps from this one on; only the last so many
  int64_t smooth = 1;                           // draws means over so many values of the line
};

inline constexpr size_t kMostCurves = 6;

// The letter of a curve's line among several; its marks have the small letter. A single curve has
// `*`, or dots alone, and `o`.
char line_letter(size_t curve, size_t curves);
char mark_letter(size_t curve, size_t curves);
std::string_view curve_color(size_t curve);  // an escape sequence

// Returns the plot with its axes: at most `columns` wide, rows + 2 lines. Returns one line that
// says so if no value can be drawn. A column of many steps shows their smallest to their largest
// value.
std::string draw_curves(const std::vector<Curve>& curves, const CurveOptions& options);

}  // namespace mtrain::observe
