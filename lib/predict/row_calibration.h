// Fits the constants of a training program to its published speeds, and judges the fit by
// configurations that it has not seen.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "plan/published_rows.h"
#include "predict/sheet_costs.h"

namespace mtrain::predict {

using plan::PublishedRow;
using plan::PublishedRows;

// Rows that differ in their release alone. Times are seconds of a step.
struct FittedConfiguration {
  std::vector<const PublishedRow*> rows;
  bool experts = false;
  double measured = 0;    // median of the rows
  double fitted = 0;      // with the constants of all configurations
  double left_out = 0;    // with constants that are fitted to all others
  double single_mfu = 0;  // by the median FLOP/s of the others with this precision
  double defaults = 0;    // with the default constants, as without a stack
};

struct RowCalibration {
  StackConstants constants;
  std::vector<FittedConfiguration> configurations;
  std::map<std::string, std::vector<const PublishedRow*>>
      obstacles;  // rows by why they are left out
};

struct RowChoice {
  Gpu gpu = Gpu::h100;
  std::string stack;
  enum class Models { all, dense, experts } models = Models::all;
};

// `progress` gets one line for each configuration. Throws UserError if no row can be used.
RowCalibration calibrate_rows(const PublishedRows& rows, const RowChoice& choice,
                              const recipe::ModelSource& models,
                              const std::function<void(const std::string&)>& progress);

// Returns a table of all configurations in Markdown: predicted / measured with the constants of all
// configurations, with those of the others, by a single MFU of the others, and with the default
// constants. A summary and the rows that are left out follow.
std::string rows_text(const RowCalibration& calibration, const RowChoice& choice);
// Returns a stack file (plan/stack_file.h) that says where its constants come from.
std::string stack_text(const RowCalibration& calibration, const RowChoice& choice);

}  // namespace mtrain::predict
