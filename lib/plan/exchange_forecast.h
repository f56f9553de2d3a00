// Predicts, from FLOPs, bytes and hardware, how much of the exchanges of experts' rows a step waits
// for.
#pragma once
#include <optional>

#include "schedule/simulator.h"

namespace mtrain::plan {

struct RunPlan;

// Seconds. Messages between stages, gradients and the optimizer take no time here.
struct ExchangeForecast {
  double step = 0;                      // the passes of all micro-batches, on the last rank to end
  double without = 0;                   // the same if exchanges took no time
  schedule::Exposure paired, unpaired;  // sums over pipeline ranks
};
// Absent for a model without exchanges.
std::optional<ExchangeForecast> exchange_forecast(const RunPlan& plan);

}  // namespace mtrain::plan
