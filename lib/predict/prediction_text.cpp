#include "predict/prediction_text.h"

#include <algorithm>

#include "base/strings.h"
#include "base/terminal.h"
#include "base/text_table.h"
#include "predict/ranking_text.h"

namespace mtrain::predict {

namespace {

constexpr auto kLeft = TableColumn::Align::left;
using Rows = std::vector<std::vector<std::string>>;

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string layout_text(const plan::Layout& l) {
  std::string text = fmt::format("{} ranks: dp {}", l.world, l.dp);
  for (const auto& [name, size] : {std::pair{"tp", l.tp}, {"cp", l.cp}, {"pp", l.pp}, {"ep", l.ep}})
    if (size > 1) text += fmt::format(", {} {}", name, size);
  if (l.stages_per_rank > 1) text += fmt::format(" x {} stages", l.stages_per_rank);
  return text + fmt::format("; {} micro-batches of {}", l.step_micro_batches(), l.micro_batch);
}

std::string time_table(const Prediction& p, int width) {
  Rows rows;
  for (const NamedTime& part : p.parts())
    rows.push_back({part.name, duration_text(part.seconds), percent(part.seconds / p.step_s)});
  rows.push_back({"step", duration_text(p.step_s), percent(1)});
  return text_table({{"where the time goes", 24, kLeft}, {"time", 10}, {"share", 10}}, rows, width);
}

std::string overlap_table(const Prediction& p, int width) {
  Rows rows;
  for (const char* axis : {"tp", "cp", "ep", "dp", "pp"}) {
    const double busy = p.busy(axis), exposed = p.exposed(axis);
    if (busy <= 0) continue;
    rows.push_back({axis, duration_text(busy), duration_text(exposed),
                    percent(std::clamp(1 - exposed / busy, 0.0, 1.0))});
  }
  if (rows.empty()) return "";
  return "\n" +
         text_table(
             {{"communication", 24, kLeft}, {"at work", 10}, {"exposed", 10}, {"hidden", 10}}, rows,
             width);
}

// A line per pipeline rank; of more than 8, the first, the fullest and the last.
std::string memory_table(const Prediction& p, const plan::Cluster& c, int width) {
  Rows rows;
  const auto fullest = std::ranges::max_element(p.memory);
  for (auto m = p.memory.begin(); m != p.memory.end(); ++m) {
    const bool shown =
        p.memory.size() <= 8 || m == p.memory.begin() || m == fullest || m + 1 == p.memory.end();
    if (!shown) continue;
    rows.push_back({std::to_string(m - p.memory.begin()), human_bytes(*m),
                    human_bytes(c.usable_bytes()),
                    *m <= c.usable_bytes() ? percent(*m / c.usable_bytes()) : "does not fit"});
  }
  return text_table(
      {{"memory of pp rank", 24, kLeft}, {"planned", 10}, {"usable", 10}, {"share", 14}}, rows,
      width);
}

}  // namespace

std::string prediction_text(const Prediction& p, const RunPlan& plan, const plan::Cluster& c,
                            int width) {
  const double low = p.step_s * (1 - p.band.share), high = p.step_s * (1 + p.band.share);
  const std::string out = fmt::format(
      "{}\ncluster   {}\nstep      {}, expected from {} to {}\n"
      "tokens/s  {} ({} for each rank)\n"
      "MFU       {} of {:.4g} TFLOP/s (6 FLOPs per parameter and token, full attention)\n"
      "band      {:.0f} %: {}\n",
      layout_text(plan.layout), c.source, duration_text(p.step_s), duration_text(low),
      duration_text(high), human_count(p.tokens_per_s),
      human_count(p.tokens_per_s / double(plan.layout.world)), percent(p.mfu),
      peak_flops(plan, c) * 1e-12, 100 * p.band.share, p.band.reason);
  return wrap_words(out, width) + "\n" + time_table(p, width) + overlap_table(p, width) + "\n" +
         memory_table(p, c, width);
}

}  // namespace mtrain::predict
