#include <algorithm>

#include <fmt/core.h>

#include "schedule/render.h"

namespace mtrain::schedule {

namespace {

constexpr double kRow = 24, kExchanges = 10, kLeft = 56, kTop = 40;  // pixels
constexpr double kWidest = 16000;

struct Color {
  int red, green, blue;
};

Color color_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::F: return {96, 150, 220};
    case ActionKind::B: return {110, 180, 120};
    case ActionKind::I: return {80, 190, 180};
    default: return {235, 180, 80};  // W
  }
}

// A rank's later stages are drawn lighter.
std::string shade(Color c, int64_t chunk, int64_t chunks) {
  const double light = chunks > 1 ? 0.55 * double(chunk) / double(chunks - 1) : 0;
  const auto mix = [&](int value) { return int(value + (255 - value) * light); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(c.red), mix(c.green), mix(c.blue));
}

}  // namespace

std::string schedule_svg(const Schedule& s, const Timeline& timeline) {
  const double unit = shortest_action(timeline);
  const double scale = timeline.step > 0 ? std::min(30 / unit, kWidest / timeline.step) : 0;
  const double width = kLeft + timeline.step * scale + 8;
  const double row = kRow + (has_exchanges(timeline) ? kExchanges : 0);
  const double height = kTop + row * double(s.pp) + 8;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 "
      "0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"10\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"8\" y=\"20\" font-size=\"13\">{2}: {3} stages on {4} ranks, {5} micro-batches; "
      "step {6:g}, idle {7:.1f} %</text>\n",
      width, height, s.name, s.stages, s.pp, s.micro_batches, timeline.step,
      100 * timeline.bubble());
  std::vector<int64_t> chunk_of(size_t(s.stages)), chunks(size_t(s.pp));
  for (int64_t stage = 0; stage < s.stages; ++stage)
    chunk_of[size_t(stage)] = chunks[size_t(s.rank_of(stage))]++;
  for (size_t rank = 0; rank < s.ranks.size(); ++rank) {
    const double y = kTop + row * double(rank);
    out += fmt::format("<text x=\"8\" y=\"{:.1f}\">rank {}</text>\n", y + 15, rank);
    for (size_t i = 0; i < s.ranks[rank].size(); ++i) {
      const Action& a = s.ranks[rank][i];
      const ActionTime& t = timeline.times[rank][i];
      if (!is_compute(a.kind)) continue;
      const double x = kLeft + t.begin * scale, w = (t.end - t.begin) * scale;
      out += fmt::format(
          "<g><title>{} {:g} to {:g}</title><rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
          "height=\"{:.0f}\" fill=\"{}\" stroke=\"#555\" stroke-width=\"0.5\"/>",
          to_string(a), t.begin, t.end, x, y, w, kRow - 2,
          shade(color_of(a.kind), chunk_of[size_t(a.stage)], chunks[rank]));
      if (w >= 14)
        out += fmt::format("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
                           x + w / 2, y + 15, a.micro_batch);
      out += "</g>\n";
    }
    for (const ExchangeTime& e : timeline.exchanges[rank]) {
      const Action& a = s.ranks[rank][e.action];
      out += fmt::format(
          "<g><title>exchange of {} {:g} to {:g}</title><rect x=\"{:.2f}\" y=\"{:.1f}\" "
          "width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\"/></g>\n",
          to_string(a), e.begin, e.end, kLeft + e.begin * scale, y + kRow - 1,
          (e.end - e.begin) * scale, kExchanges - 3,
          shade(color_of(a.kind), chunk_of[size_t(a.stage)], chunks[rank]));
    }
  }
  return out + "</svg>\n";
}

}  // namespace mtrain::schedule
