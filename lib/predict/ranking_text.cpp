#include "predict/ranking_text.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/strings.h"
#include "base/terminal.h"

namespace mtrain::predict {

std::string layout_words(const RankedLayout& r) {
  const LayoutChoice& c = r.choice;
  std::string text = fmt::format("dp {}", r.dp);
  for (const auto& [name, size] : {std::pair{"tp", c.tp}, {"cp", c.cp}, {"ep", c.ep}})
    if (size > 1)
      text += fmt::format(", {} {}", name, size) +
              (name == std::string_view("cp") ? fmt::format(" {}", enum_name(c.cp_kind)) : "");
  if (c.pp > 1)
    text += fmt::format(", pp {}{} {}", c.pp, c.stages > 1 ? fmt::format(" x {}", c.stages) : "",
                        enum_name(c.schedule));
  text += fmt::format(", {}", enum_name(c.strategy));
  if (c.strategy == recipe::Strategy::megatron_ddp || c.strategy == recipe::Strategy::megatron_fsdp)
    text += fmt::format(" zero {}", int(c.shards));
  if (c.replicas > 1) text += fmt::format(", {} replicas", c.replicas);
  text += fmt::format(", micro-batch {}", c.micro_batch);
  if (c.recompute != recipe::RecomputeGranularity::none)
    text += fmt::format(", recompute {}", enum_name(c.recompute));
  return text;
}

std::string duration_text(double seconds) {
  return seconds >= 1 ? fmt::format("{:.3g} s", seconds) : fmt::format("{:.3g} ms", 1e3 * seconds);
}

namespace {

// A line of figures for each layout, and below it the layout.
std::string layouts_text(const std::vector<RankedLayout>& layouts, bool marks, int width) {
  std::string out;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const RankedLayout& r = layouts[i];
    const bool tie = marks && i > 0 && r.step_s <= layouts[0].step_s * (1 + kNearTie);
    out += fmt::format("{:>3}{} {:>9}  {:>8} tokens/s  MFU {:4.1f} %  {:>9}\n", i + 1,
                       tie ? "~" : " ", duration_text(r.step_s), human_count(r.tokens_per_s),
                       100 * r.mfu, human_bytes(r.memory));
    out += wrap_words("     " + layout_words(r) + "\n", width);
  }
  return out;
}

std::string out_text(const LayoutRanking& r, int width) {
  std::string out;
  for (const LayoutsOut& reason : r.out)
    out += wrap_words(fmt::format("{:>8} {}; nearest: {}{}{}\n", reason.count, reason.reason,
                                  reason.nearest, reason.detail.empty() ? "" : ": ", reason.detail),
                      width);
  return out;
}

}  // namespace

void check_ranked(const LayoutRanking& r, const plan::Cluster& cluster, int width) {
  if (r.ranked.empty())
    throw UserError(fmt::format("none of {} layouts can train on {}:\n{}", r.candidates,
                                cluster.source, out_text(r, width)),
                    "free more fields, or use more devices");
}

std::string ranking_text(const LayoutRanking& r, const LayoutSearch& search,
                         const plan::Cluster& cluster, int width) {
  std::string out =
      wrap_words(fmt::format("{} layouts on {}: {} are legal, {} were predicted in full\n",
                             r.candidates, cluster.source, r.legal, r.played),
                 width);
  out += "\n" + layouts_text(r.ranked, search.objective == Objective::speed, width);
  if (r.own) out += "\nthe recipe's own layout\n" + layouts_text({*r.own}, false, width);
  out += wrap_words(fmt::format("\n~: within {:.0f} % of the first, which a prediction cannot tell "
                                "apart\nband {:.0f} %: {}\n",
                                100 * kNearTie, 100 * r.band.share, r.band.reason),
                    width);
  if (r.left > 0)
    out += wrap_words(
        fmt::format("{} more layouts may be as good: they take at least {}, and were not "
                    "predicted; --plays predicts more\n",
                    r.left,
                    search.objective == Objective::speed ? duration_text(r.lowest_left)
                                                         : human_bytes(r.lowest_left)),
        width);
  if (r.front.size() > 1)
    out += "\ntime against memory, of what was predicted\n" + layouts_text(r.front, false, width);
  return out + "\nthe others\n" + out_text(r, width);
}

}  // namespace mtrain::predict
