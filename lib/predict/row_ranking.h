// Judges a search by published layouts: people who tuned a program have chosen them among those
// that a search ranks.
#pragma once
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "predict/layout_search.h"
#include "predict/row_calibration.h"

namespace mtrain::predict {

// A published layout beside the layouts that the search finds for its model, batch, sequence,
// precision and machines.
struct JudgedLayout {
  const PublishedRow* row = nullptr;
  double published_s = 0;  // predicted step of the published layout
  // By mtrain's own count of memory. If not, layouts may need as much as this one does.
  bool fits = false;
  // Layouts differ in tp, pp, cp or ep. Each has its fastest pipeline, micro-batch and
  // recomputation.
  std::vector<RankedLayout> ranked;
  size_t legal = 0;  // layouts that divide and that no rule refuses
  // No layout that was not predicted in full can be faster than this. Seconds.
  double lowest_left = std::numeric_limits<double>::infinity();

  // The step over that of the predicted best, which may be the published layout itself.
  double over_best() const;
  // 1 + the number of other sizes whose best layout is faster than the published layout. Of each
  // schedule five sizes count, so a late place is the least that it can be.
  size_t place() const;
};

// Ranks the layouts of all dense configurations of the calibration with at least kLeastGpus GPUs,
// by its constants. The search frees what these programs let users choose: tp, pp, stages, 1F1B or
// interleaved 1F1B, cp, micro-batches and recomputation; the strategy of data parallelism stays.
// Configurations with equal recipes are judged once. `progress` gets one line for each.
constexpr int64_t kLeastGpus = 16;
std::vector<JudgedLayout> judge_layouts(const PublishedRows& rows,
                                        const RowCalibration& calibration,
                                        const recipe::ModelSource& models,
                                        const std::function<void(const std::string&)>& progress);

// Returns a table in Markdown, and how many published layouts are near the best.
std::string judged_text(const std::vector<JudgedLayout>& judged);

}  // namespace mtrain::predict
