#include "predict/row_ranking.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/core.h>

#include "base/error.h"
#include "predict/ranking_text.h"
#include "predict/sheet_costs.h"
#include "predict/step_model.h"

namespace mtrain::predict {

namespace {

// A published layout counts as good if it takes at most this multiple of the best's time.
constexpr double kNearBest = 1.05;
constexpr size_t kFirst = 3;
constexpr size_t kRanked = 5, kMostPlays = 100;

auto sizes_of(const LayoutChoice& c) { return std::tuple{c.tp, c.pp, c.cp, c.ep}; }

LayoutSearch search_for(const char* schedule) {
  LayoutSearch search{.top = kRanked, .most_plays = kMostPlays};
  search.fields.free = {LayoutField::tp, LayoutField::pp,          LayoutField::stages,
                        LayoutField::cp, LayoutField::micro_batch, LayoutField::recompute};
  search.fields.fixed[size_t(LayoutField::schedule)] = schedule;
  return search;
}

// Keeps the fastest layout of each combination of sizes, the fastest first.
void keep_fastest(std::vector<RankedLayout>& layouts) {
  std::ranges::stable_sort(layouts, {}, &RankedLayout::step_s);
  std::set<std::tuple<int64_t, int64_t, int64_t, int64_t>> seen;
  std::erase_if(layouts,
                [&](const RankedLayout& l) { return !seen.insert(sizes_of(l.choice)).second; });
}

JudgedLayout judge(const PublishedRow& row, const plan::RecipeSource& source, int64_t vocabulary,
                   const StackConstants& constants) {
  const auto own = plan::plan_trial(source, {}, vocabulary);
  MT_CHECK(own, "row {} has been planned before", row.number);
  plan::Cluster cluster = plan::cluster_of(row);
  const SheetCosts costs(cluster, constants);
  const double needed = own->plan.fullest().total();
  JudgedLayout judged{.row = &row,
                      .published_s = StepModel(own->plan, cluster).price(costs).step_s,
                      .fits = needed <= cluster.usable_bytes()};
  // The program has trained with it, so other layouts may need as much.
  if (!judged.fits) cluster.memory_bytes = needed / cluster.usable * (1 + 1e-9);
  for (const char* schedule : {"1f1b", "interleaved_1f1b"}) {
    const LayoutRanking ranking =
        search_layouts(source, own->recipe, own->plan, cluster, costs, search_for(schedule));
    judged.ranked.insert(judged.ranked.end(), ranking.ranked.begin(), ranking.ranked.end());
    judged.legal += ranking.legal;
    if (ranking.left > 0) judged.lowest_left = std::min(judged.lowest_left, ranking.lowest_left);
  }
  keep_fastest(judged.ranked);
  return judged;
}

}  // namespace

double JudgedLayout::over_best() const {
  return ranked.empty() ? 1 : std::max(1.0, published_s / ranked[0].step_s);
}

size_t JudgedLayout::place() const {
  const auto own = std::tuple{row->tp.value_or(1), row->pp.value_or(1), row->cp.value_or(1),
                              row->ep.value_or(1)};
  return 1 + size_t(std::ranges::count_if(ranked, [&](const RankedLayout& l) {
           return l.step_s < published_s && sizes_of(l.choice) != own;
         }));
}

std::vector<JudgedLayout> judge_layouts(const PublishedRows& rows,
                                        const RowCalibration& calibration,
                                        const recipe::ModelSource& models,
                                        const std::function<void(const std::string&)>& progress) {
  std::vector<JudgedLayout> judged;
  std::set<std::pair<int64_t, std::vector<std::string>>> known;
  for (const FittedConfiguration& c : calibration.configurations) {
    const PublishedRow& row = *c.rows.front();
    const plan::PublishedModel& model = *rows.model_of(row);
    if (c.experts || row.gpus < kLeastGpus) continue;
    const plan::RecipeSource source = plan::source_of(row, model, models);
    if (!known.emplace(row.gpus, source.settings).second) continue;
    judged.push_back(judge(row, source, model.vocab, calibration.constants));
    progress(plan::row_text(row));
  }
  return judged;
}

std::string judged_text(const std::vector<JudgedLayout>& judged) {
  std::string text =
      "| configuration | fits | predicted s | over best | place | predicted best | its s | legal | "
      "bound of others |\n|---|---|---|---|---|---|---|---|---|\n";
  size_t near = 0, first = 0;
  for (const JudgedLayout& j : judged) {
    near += j.over_best() <= kNearBest ? 1 : 0;
    first += j.place() <= kFirst ? 1 : 0;
    const double best = j.ranked.empty() ? j.published_s : j.ranked[0].step_s;
    text +=
        fmt::format("| {} | {} | {:.3f} | {:.3f} | {} | {} | {:.3f} | {} | {} |\n",
                    plan::row_text(*j.row), j.fits ? "yes" : "no", j.published_s, j.over_best(),
                    j.place(), j.ranked.empty() ? "none" : layout_words(j.ranked[0]), best, j.legal,
                    j.lowest_left < best ? fmt::format("{:.3f}", j.lowest_left / best) : "");
  }
  return text + fmt::format(
                    "\n{} of {} published layouts take at most {} of the predicted best's time; "
                    "{} are among the first {}\n",
                    near, judged.size(), kNearBest, first, kFirst);
}

}  // namespace mtrain::predict
