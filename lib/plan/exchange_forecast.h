// Predicts how long a step waits for the exchanges of experts' rows, from FLOPs, bytes and the
// hardware's rates.
#pragma once
#include <optional>

#include "schedule/simulator.h"

namespace mtrain::plan {

struct RunPlan;

// Times in seconds. Messages between stages, gradients and the optimizer count as 0.
struct ExchangeForecast {
  double step = 0;                      // all passes of a step, until the last rank ends
  double without = 0;                   // the same if exchanges took no time
  schedule::Exposure paired, unpaired;  // sums over pipeline ranks
};
// Returns nothing for a model whose experts exchange nothing.
std::optional<ExchangeForecast> exchange_forecast(const RunPlan& plan);

}  // namespace mtrain::plan
