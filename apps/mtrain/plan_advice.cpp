#include "plan_advice.h"

#include <nlohmann/json.hpp>

#include "layout_json.h"

namespace mtrain {

namespace {

using Json = nlohmann::ordered_json;

Json optional_layout_json(const std::optional<predict::RankedLayout>& layout) {
  return layout ? layout_json(*layout) : Json();
}

Json advice_json(const predict::GuideAdvice& advice, const ClusterPlan& planned) {
  Json j;
  j["ranks"] = planned.plan.layout.world;
  j["cluster"] = planned.cluster.source;
  j["recipe"] = optional_layout_json(advice.own);
  j["fastest"] = optional_layout_json(advice.best);
  j["band"] = {{"share", advice.band.share}, {"reason", advice.band.reason}};
  j["rows"] = Json::array();
  for (const predict::RowAdvice& row : advice.rows)
    j["rows"].push_back({{"condition", row.row->condition},
                         {"range", row.range},
                         {"verdict", enum_name(row.verdict)},
                         {"proven", row.proven},
                         {"recipe_within", row.recipe_within},
                         {"within", optional_layout_json(row.within.best)},
                         {"outside", optional_layout_json(row.outside.best)}});
  j["other_rows"] = Json::array();
  for (const plan::GuideRow* row : advice.others) j["other_rows"].push_back(row->condition);
  return j;
}

}  // namespace

std::string plan_advice(const ClusterPlan& planned, const predict::LaunchCosts& costs,
                        const predict::LayoutSearch& search, bool json, int width) {
  const predict::GuideAdvice advice = predict::guide_advice(
      planned.source, planned.recipe, planned.plan, planned.cluster, costs, search);
  return json ? advice_json(advice, planned).dump(2) + "\n"
              : predict::guide_advice_text(advice, planned.plan, planned.cluster, width);
}

}  // namespace mtrain
