#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/core.h>

#include "schedule/render.h"

namespace mtrain::schedule {

namespace {

// Pixels. A rank's row has its boxes, and the exchanges below them.
constexpr double kBox = 26, kExchanges = 8, kGap = 3, kLeft = 52, kRight = 8;
constexpr double kTitle = 26, kLegendLine = 18, kAxis = 20, kBetweenParts = 10;
constexpr double kLetter = 6, kUsualUnit = 30, kTick = 70;
constexpr double kMaxParts = 24, kWidestRow = 16000;
constexpr double kMinTime = 1e-300;  // replaces times of 0 in divisions

struct Color {
  int red, green, blue;
};

struct KindOfBox {
  ActionKind kind;
  Color color;
  const char* meaning;
};

constexpr std::array kKinds{
    KindOfBox{ActionKind::F, {96, 150, 220}, "F forward"},
    KindOfBox{ActionKind::B, {110, 180, 120}, "B backward: input and weight gradients"},
    KindOfBox{ActionKind::I, {80, 190, 180}, "I input gradients"},
    KindOfBox{ActionKind::W, {235, 180, 80}, "W weight gradients"}};

struct KindOfLane {
  Lane lane;
  Color color;
  const char* name;
};

constexpr std::array kLaneKinds{KindOfLane{Lane::tp, {200, 90, 90}, "tp"},
                                KindOfLane{Lane::cp, {200, 120, 190}, "cp"},
                                KindOfLane{Lane::ep, {150, 110, 200}, "ep"},
                                KindOfLane{Lane::dp, {120, 120, 120}, "dp"},
                                KindOfLane{Lane::pp_send, {70, 110, 160}, "pp send"},
                                KindOfLane{Lane::pp_receive, {120, 170, 200}, "pp receive"}};

Color color_of(ActionKind kind) { return std::ranges::find(kKinds, kind, &KindOfBox::kind)->color; }

// A rank's later stages are drawn lighter.
std::string shade(Color c, int64_t chunk, int64_t chunks) {
  const double light = chunks > 1 ? 0.55 * double(chunk) / double(chunks - 1) : 0;
  const auto mix = [&](int value) { return int(value + (255 - value) * light); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(c.red), mix(c.green), mix(c.blue));
}

// Returns 1, 2 or 5 times a power of ten, at least `least`.
double round_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double times : {1.0, 2.0, 5.0})
    if (times * power >= least * (1 - 1e-9)) return times * power;
  return 10 * power;
}

class Picture {
 public:
  // `width` 0: rows do not wrap.
  Picture(const Schedule& s, const Timeline& t, double width)
      : s_(s), t_(t), chunk_of_(size_t(s.stages)), chunks_(size_t(s.pp)) {
    for (int64_t stage = 0; stage < s.stages; ++stage)
      chunk_of_[size_t(stage)] = chunks_[size_t(s.rank_of(stage))]++;
    for (const KindOfLane& kind : kLaneKinds)
      if (std::ranges::any_of(t.lanes, [&](const std::vector<LaneTime>& lanes) {
            return std::ranges::find(lanes, kind.lane, &LaneTime::lane) != lanes.end();
          }))
        lanes_.push_back(&kind);
    row_ = kBox + kGap + kExchanges * double(lanes_.size() + (has_exchanges(t) ? 1 : 0));
    set_scale(width);
  }

  std::string svg() {
    const double legend_width = std::max(width_, 480.0);
    const std::string legend = this->legend(legend_width);
    const double part = kAxis + row_ * double(s_.pp) + kBetweenParts;
    const double top = kTitle + kLegendLine * double(legend_lines_) + 6;
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"10\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        "<text x=\"8\" y=\"18\" font-size=\"13\">{2}: {3} stages on {4} ranks, {5} micro-batches; "
        "step {6:g}, idle {7:.1f} %</text>\n{8}",
        std::max(legend_width, width_), top + part * double(parts_), s_.name, s_.stages, s_.pp,
        s_.micro_batches, t_.step, 100 * t_.bubble(), legend);
    for (int64_t i = 0; i < parts_; ++i) {
      out += fmt::format("<g transform=\"translate({:.0f} {:.0f})\">\n", kLeft,
                         top + part * double(i));
      out += part_of(double(i) * time_, std::min(t_.step, double(i + 1) * time_)) + "</g>\n";
    }
    return out + "</svg>\n";
  }

 private:
  // Boxes are as wide as their labels if that needs few parts. If all boxes have the usual length,
  // a part ends at the end of a box.
  void set_scale(double width) {
    const size_t digits = std::max(std::to_string(s_.micro_batches - 1).size(),
                                   1 + std::to_string(s_.stages - 1).size());
    const double unit = std::max(usual_action(), kMinTime), step = std::max(t_.step, kMinTime);
    const double label = (kLetter * double(digits) + 4) / unit;
    const double room = width > 0 ? width - kLeft - kRight : kWidestRow;
    const double most = width > 0 ? kMaxParts : 1;
    const double parts = std::clamp(std::ceil(step * label / room), 1.0, most);
    time_ = parts > 1 ? std::ceil(step / parts / unit) * unit : step;
    parts_ = int64_t(std::ceil(step / time_ * (1 - 1e-9)));
    scale_ = std::min(room / time_, kUsualUnit / unit);
    width_ = kLeft + time_ * scale_ + kRight;
  }

  // Returns the time of the shortest action, but at least a quarter of the median: an action that
  // runs together with another one may be arbitrarily short.
  double usual_action() const {
    std::vector<double> all;
    for (size_t rank = 0; rank < s_.ranks.size(); ++rank)
      for (size_t i = 0; i < s_.ranks[rank].size(); ++i)
        if (is_compute(s_.ranks[rank][i].kind))
          all.push_back(t_.times[rank][i].end - t_.times[rank][i].begin);
    if (all.empty()) return 0;
    const auto middle = all.begin() + std::ptrdiff_t(all.size() / 2);
    std::ranges::nth_element(all, middle);
    return std::max(shortest_action(t_), *middle / 4);
  }

  // Returns the legend, in lines of at most `width` pixels.
  std::string legend(double width) {
    std::string out;
    double x = 8, y = kTitle + 10;
    legend_lines_ = 1;
    const auto entry = [&](const std::string& fill, double height, const std::string& text) {
      const double swatch = fill.empty() ? 0 : 16,
                   all = swatch + kLetter * double(text.size()) + 14;
      if (x > 8 && x + all > width) x = 8, y += kLegendLine, ++legend_lines_;
      if (!fill.empty())
        out += fmt::format(
            "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"12\" height=\"{:.0f}\" fill=\"{}\"/>\n", x,
            y - height + 1, height, fill);
      out += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n", x + swatch, y, text);
      x += all;
    };
    for (const KindOfBox& k : kKinds)
      if (occurs(k.kind)) entry(shade(k.color, 0, 1), 10, k.meaning);
    if (has_exchanges(t_)) {
      entry(shade(color_of(ActionKind::F), 0, 1), 5, "experts' exchange in a forward");
      const ActionKind back = occurs(ActionKind::B) ? ActionKind::B : ActionKind::I;
      entry(shade(color_of(back), 0, 1), 5, "in a backward");
    }
    for (const KindOfLane* kind : lanes_)
      entry(shade(kind->color, 0, 1), 5, fmt::format("{} communication", kind->name));
    if (*std::ranges::max_element(chunks_) > 1) entry("", 0, "lighter: a rank's later stage");
    entry("", 0, "in a box: the micro-batch, and below it s and the stage");
    return out;
  }

  bool occurs(ActionKind kind) const {
    return std::ranges::any_of(s_.ranks, [&](const ActionList& list) {
      return std::ranges::find(list, kind, &Action::kind) != list.end();
    });
  }

  // Draws what all ranks do from one time to another.
  std::string part_of(double from, double to) const {
    std::string out = axis(from, to);
    for (size_t rank = 0; rank < s_.ranks.size(); ++rank) {
      out += fmt::format(
          "<g transform=\"translate(0 {:.0f})\"><text x=\"{:.0f}\" y=\"17\">rank {}</text>\n",
          kAxis + row_ * double(rank), 8 - kLeft, rank);
      for (size_t i = 0; i < s_.ranks[rank].size(); ++i) {
        const Action& a = s_.ranks[rank][i];
        if (is_compute(a.kind)) out += box(a, t_.times[rank][i], from, to);
      }
      const ActionList& list = s_.ranks[rank];
      for (const ExchangeTime& e : t_.exchanges[rank])
        out += strip("exchange of " + to_string(list[e.action]), {e.begin, e.end}, kBox,
                     fill_of(list[e.action]), from, to);
      for (const LaneTime& l : t_.lanes[rank]) {
        const auto kind = std::ranges::find(lanes_, l.lane, &KindOfLane::lane);
        const auto above = size_t(kind - lanes_.begin()) + (has_exchanges(t_) ? 1 : 0);
        out += strip(fmt::format("{} of {}", (*kind)->name, to_string(list[l.action])),
                     {l.begin, l.end}, kBox + kExchanges * double(above),
                     shade((*kind)->color, 0, 1), from, to);
      }
      out += "</g>\n";
    }
    return out;
  }

  // Draws the part of a communication that is between two times, `top` below its row's top.
  std::string strip(const std::string& title, ActionTime t, double top, const std::string& fill,
                    double from, double to) const {
    if (t.begin >= to || t.end <= from) return "";
    const double begin = std::max(t.begin, from), end = std::min(t.end, to);
    return fmt::format(
        "<g><title>{} {:g} to {:g}</title><rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" "
        "height=\"{:.0f}\" fill=\"{}\"/></g>\n",
        title, t.begin, t.end, (begin - from) * scale_, top + 1, (end - begin) * scale_,
        kExchanges - 2, fill);
  }

  std::string fill_of(const Action& a) const {
    return shade(color_of(a.kind), chunk_of_[size_t(a.stage)],
                 chunks_[size_t(s_.rank_of(a.stage))]);
  }

  // An action that continues in the next part is drawn in both.
  std::string box(const Action& a, const ActionTime& t, double from, double to) const {
    if (t.begin >= to || t.end <= from) return "";
    const double begin = std::max(t.begin, from), end = std::min(t.end, to);
    const double x = (begin - from) * scale_, w = (end - begin) * scale_;
    if (w < 0.005 && t.end > t.begin) return "";  // a rounding error beyond a part's end
    std::string out = fmt::format(
        "<g><title>{} {:g} to {:g}</title><rect x=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.0f}\" "
        "fill=\"{}\" stroke=\"#555\" stroke-width=\"0.5\"/>",
        to_string(a), t.begin, t.end, x, w, kBox, fill_of(a));
    const std::string micro = std::to_string(a.micro_batch), stage = "s" + std::to_string(a.stage);
    if (w >= kLetter * double(std::max(micro.size(), stage.size())))
      out += fmt::format(
          "<text x=\"{0:.1f}\" y=\"11\" text-anchor=\"middle\">{1}<tspan x=\"{0:.1f}\" y=\"22\" "
          "fill=\"#333\" font-size=\"9\">{2}</tspan></text>",
          x + w / 2, micro, stage);
    return out + "</g>\n";
  }

  std::string axis(double from, double to) const {
    const double tick = round_step(kTick / std::max(scale_, kMinTime));
    const double bottom = kAxis + row_ * double(s_.pp) - kGap;
    std::string out = fmt::format(
        "<text x=\"{:.0f}\" y=\"12\">time</text><line x2=\"{:.2f}\" y1=\"15\" y2=\"15\" "
        "stroke=\"#555\"/>\n",
        8 - kLeft, (to - from) * scale_);
    for (double i = std::ceil(from / tick - 1e-9); i * tick <= to * (1 + 1e-9); ++i) {
      const double x = (i * tick - from) * scale_;
      out += fmt::format(
          "<line x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"15\" y2=\"{1:.0f}\" stroke=\"#ccc\" "
          "stroke-width=\"0.5\"/><text x=\"{0:.2f}\" y=\"11\">{2:g}</text>\n",
          x, bottom, i * tick + 0.0);  // not -0
    }
    return out;
  }

  const Schedule& s_;
  const Timeline& t_;
  std::vector<int64_t> chunk_of_, chunks_;  // of a stage among those of its rank; stages of a rank
  std::vector<const KindOfLane*> lanes_;    // that the timeline has
  double row_ = 0, scale_ = 0, time_ = 0, width_ = 0;  // `time_` is that of a part
  int64_t parts_ = 1, legend_lines_ = 1;
};

// Zooms the picture by its buttons, or by the wheel with Ctrl around the position of the pointer.
constexpr const char* kZoom = R"(<script>
const picture = document.querySelector("svg"), frame = document.getElementById("frame");
const box = picture.viewBox.baseVal;
let zoom = 1;
function set(to, x = frame.clientWidth / 2, y = frame.clientHeight / 2) {
  to = Math.min(20, Math.max(0.02, to));
  const left = (frame.scrollLeft + x) / zoom * to - x, top = (frame.scrollTop + y) / zoom * to - y;
  zoom = to;
  picture.setAttribute("width", box.width * zoom);
  picture.setAttribute("height", box.height * zoom);
  frame.scrollLeft = left;
  frame.scrollTop = top;
  document.getElementById("zoom").textContent = Math.round(100 * zoom) + " %";
}
const fit = () => set(frame.clientWidth / box.width);
document.getElementById("in").onclick = () => set(zoom * 1.25);
document.getElementById("out").onclick = () => set(zoom / 1.25);
document.getElementById("fit").onclick = fit;
document.getElementById("one").onclick = () => set(1);
frame.addEventListener("wheel", event => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  const at = frame.getBoundingClientRect();
  set(zoom * Math.exp(-event.deltaY / 400), event.clientX - at.left, event.clientY - at.top);
}, {passive: false});
set(1);
</script>
)";

}  // namespace

std::string schedule_svg(const Schedule& s, const Timeline& timeline) {
  return Picture(s, timeline, kWidestPicture).svg();
}

std::string schedule_html(const Schedule& s, const Timeline& timeline) {
  return fmt::format(
             "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title>\n"
             "<style>body {{ margin: 0; font: 13px sans-serif; display: flex; flex-direction: "
             "column; height: 100vh }}\n#frame {{ overflow: auto; flex: 1 }}\nnav {{ padding: 6px "
             "8px; border-bottom: 1px solid #ccc }}</style></head><body>\n"
             "<nav>zoom <button id=\"out\">-</button> <button id=\"in\">+</button> <button "
             "id=\"one\">100 %</button> <button id=\"fit\">all</button> <span id=\"zoom\"></span>; "
             "or the wheel with Ctrl. A box's name and times appear below the pointer.</nav>\n"
             "<div id=\"frame\">\n",
             s.name) +
         Picture(s, timeline, 0).svg() + "</div>\n" + kZoom + "</body></html>\n";
}

}  // namespace mtrain::schedule
