#include "predict/guide_advice.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "base/strings.h"
#include "base/terminal.h"
#include "predict/ranking_text.h"

namespace mtrain::predict {

using plan::GuideRow;
using plan::SizeRange;

namespace {

struct GuidedRange {
  LayoutField field;
  SizeRange range;
  int64_t LayoutChoice::*size;
};

// The sizes that a row is about.
std::vector<GuidedRange> ranges_of(const GuideRow& row) {
  std::vector<GuidedRange> all{{LayoutField::tp, row.tp, &LayoutChoice::tp},
                               {LayoutField::pp, row.pp, &LayoutChoice::pp},
                               {LayoutField::cp, row.cp, &LayoutChoice::cp},
                               {LayoutField::ep, row.ep, &LayoutChoice::ep}};
  std::erase_if(all, [](const GuidedRange& r) { return !r.range.given(); });
  return all;
}

int64_t highest(const SizeRange& range, int64_t domain) {
  return range.high == plan::kNode ? domain : range.high;
}

std::string range_text(const GuideRow& row) {
  std::string text;
  for (const GuidedRange& r : ranges_of(row))
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", enum_name(r.field), r.range.text());
  return text;
}

class Adviser {
 public:
  Adviser(const plan::RecipeSource& source, const Recipe& recipe, const RunPlan& plan,
          const plan::Cluster& cluster, const LaunchCosts& costs, const LayoutSearch& search)
      : source_(source),
        recipe_(recipe),
        plan_(plan),
        cluster_(cluster),
        costs_(costs),
        search_(search) {
    search_.objective = Objective::speed;
    search_.top = 1;
  }

  GuideAdvice run() {
    const LayoutChoice recipe{
        .tp = plan_.layout.tp, .pp = plan_.layout.pp, .cp = plan_.layout.cp, .ep = plan_.layout.ep};
    for (const GuideRow& row : plan::sizing_guide()) {
      if (!applies(row, plan_)) {
        advice_.others.push_back(&row);
        continue;
      }
      advice_.rows.push_back({.row = &row,
                              .range = range_text(row),
                              .recipe_within = is_within(row, recipe, cluster_.domain_gpus),
                              .within = side(row, true),
                              .outside = side(row, false)});
    }
    if (advice_.own) found_.push_back(*advice_.own);
    for (const RankedLayout& layout : found_) {
      if (layout.choice.tp <= cluster_.domain_gpus) keep_faster(advice_.best, layout);
      // A search that ends early may miss what the search of another row has found.
      for (RowAdvice& r : advice_.rows) {
        if (layout.choice.tp > cluster_.domain_gpus && !about_domains(*r.row)) continue;
        const bool within = is_within(*r.row, layout.choice, cluster_.domain_gpus);
        keep_faster((within ? r.within : r.outside).best, layout);
      }
    }
    std::ranges::for_each(advice_.rows, judge);
    return std::move(advice_);
  }

 private:
  GuideSide side(const GuideRow& row, bool within) {
    LayoutSearch search = search_;
    search.fields.only = [&](const LayoutChoice& c) {
      return is_within(row, c, cluster_.domain_gpus) == within;
    };
    LayoutRanking ranking = ranking_of(search);
    // The search has sizes that are usual. Outside of the row there may be none of them.
    if (!within && ranking.candidates == 0) {
      for (const GuidedRange& r : ranges_of(row)) {
        const int64_t high = highest(r.range, cluster_.domain_gpus);
        auto& fixed = search.fields.fixed[size_t(r.field)];
        if (fixed || !search.fields.free.contains(r.field) || high == plan::kAnySize) continue;
        fixed = std::to_string(2 * high);
        ranking = ranking_of(search);
        break;
      }
    }
    GuideSide side{
        .out = std::move(ranking.out), .left = ranking.left, .lowest_left = ranking.lowest_left};
    if (!ranking.ranked.empty()) found_.push_back(ranking.ranked[0]);
    return side;
  }

  static void keep_faster(std::optional<RankedLayout>& best, const RankedLayout& layout) {
    if (!best || layout.step_s < best->step_s) best = layout;
  }

  LayoutRanking ranking_of(const LayoutSearch& search) {
    LayoutRanking ranking = search_layouts(source_, recipe_, plan_, cluster_, costs_, search);
    if (ranking.own) advice_.own = ranking.own;
    if (!ranking.ranked.empty() || ranking.own) advice_.band = ranking.band;
    return ranking;
  }

  // Other rows do not compare with tp across domains.
  static bool about_domains(const GuideRow& row) { return row.tp.high == plan::kNode; }

  static void judge(RowAdvice& r) {
    constexpr double kMore = 1 + kNearTie;
    const auto may_beat = [](const GuideSide& side, double seconds) {
      return side.left > 0 && side.lowest_left < seconds;
    };
    if (!r.within.best && !r.outside.best) return;
    const bool agrees = r.within.best && (!r.outside.best ||
                                          r.within.best->step_s <= r.outside.best->step_s * kMore);
    r.verdict = agrees ? GuideVerdict::agrees : GuideVerdict::disagrees;
    r.proven = agrees ? !may_beat(r.outside, r.within.best->step_s / kMore)
                      : !may_beat(r.within, r.outside.best->step_s * kMore);
  }

  const plan::RecipeSource& source_;
  const Recipe& recipe_;
  const RunPlan& plan_;
  const plan::Cluster& cluster_;
  const LaunchCosts& costs_;
  LayoutSearch search_;
  GuideAdvice advice_;
  std::vector<RankedLayout> found_;  // the best one of each search
};

std::string side_text(const char* name, const GuideSide& side) {
  std::string text = fmt::format("  {:<7}  ", name);
  if (side.best)
    return text + fmt::format("{}, {}: {}\n", duration_text(side.best->step_s),
                              human_bytes(side.best->memory), layout_words(*side.best));
  if (side.out.empty()) return text + "no layout has such sizes\n";
  // What does not fit the memory has passed all other checks.
  auto most = std::ranges::find_if(side.out, [](const LayoutsOut& out) {
    return out.reason.find("memory") != std::string::npos;
  });
  if (most == side.out.end()) most = side.out.begin();
  return text + fmt::format("no layout, {} candidates: {}; nearest: {}{}{}\n", most->count,
                            most->reason, most->nearest, most->detail.empty() ? "" : ": ",
                            most->detail);
}

}  // namespace

bool is_within(const GuideRow& row, const LayoutChoice& choice, int64_t domain) {
  return std::ranges::all_of(ranges_of(row), [&](const GuidedRange& r) {
    const int64_t size = choice.*r.size;
    return size >= r.range.low && size <= highest(r.range, domain);
  });
}

GuideAdvice guide_advice(const plan::RecipeSource& source, const Recipe& recipe,
                         const RunPlan& plan, const plan::Cluster& cluster,
                         const LaunchCosts& costs, const LayoutSearch& search) {
  return Adviser(source, recipe, plan, cluster, costs, search).run();
}

std::string guide_advice_text(const GuideAdvice& advice, const RunPlan& plan,
                              const plan::Cluster& cluster, int width) {
  std::string out =
      fmt::format("the sizing guide on {}, {} ranks\n", cluster.source, plan.layout.world);
  out += advice.own ? fmt::format("recipe   {}, {}: {}\n", duration_text(advice.own->step_s),
                                  human_bytes(advice.own->memory), layout_words(*advice.own))
                    : std::string("recipe   does not fit the memory, or cannot be predicted\n");
  for (const RowAdvice& r : advice.rows) {
    out += fmt::format("\n{}: {}: {}\n", enum_name(r.verdict), r.row->condition, r.range);
    out += side_text("within", r.within) + side_text("outside", r.outside);
    out += fmt::format("  {:<7}  {} of this range\n", "recipe",
                       r.recipe_within ? "within" : "outside");
    if (!r.proven) {
      const GuideSide& side = r.verdict == GuideVerdict::agrees ? r.outside : r.within;
      out += fmt::format(
          "  {:<7}  {} more layouts {} may be faster, from {} on; --plays predicts more\n",
          "unsure", side.left, r.verdict == GuideVerdict::agrees ? "outside" : "within",
          duration_text(side.lowest_left));
    }
  }
  if (advice.best)
    out += fmt::format("\nfastest  {}: {}\n", duration_text(advice.best->step_s),
                       layout_words(*advice.best));
  out += fmt::format(
      "\na row agrees if its best layout within is at most {:.0f} % slower than outside\nband "
      "{:.0f} %: "
      "{}\n",
      100 * kNearTie, 100 * advice.band.share, advice.band.reason);
  out += "rows for other models and lengths: ";
  for (const GuideRow* row : advice.others)
    out += fmt::format("{}{}", row == advice.others.front() ? "" : "; ", row->condition);
  return wrap_words(out + "\n", width);
}

}  // namespace mtrain::predict
