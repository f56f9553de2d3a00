#include "run/gemm_choice.h"

#include <set>
#include <sstream>

#include "base/error.h"
#include "base/log.h"

namespace mtrain::run {

namespace {

constexpr const char* kGemmChoices = "gemm_choices";  // a key in state.json

// Returns the lines of all texts without duplicates: the first lines of all texts, then the second
// lines, and so on; at most `most` lines.
std::string merged(const std::vector<std::string>& texts, size_t most) {
  std::vector<std::istringstream> in;
  for (const std::string& text : texts) in.emplace_back(text);
  std::set<std::string> seen;
  std::string all;
  for (bool more = true; more && seen.size() < most;) {
    more = false;
    for (std::istringstream& lines : in) {
      std::string line;
      if (seen.size() == most || !std::getline(lines, line)) continue;
      more = true;
      if (seen.insert(line).second) all += line + "\n";
    }
  }
  return all;
}

constexpr double kPartOfTimeout = 0.25;  // for the measurement; the last GEMM may exceed it

}  // namespace

std::unique_ptr<ops::GemmTuner> gemm_tuner(Device& device, const RunPlan& plan) {
  return plan.device.deterministic ? nullptr : ops::gemm_tuner(device);
}

void choose_gemms(ops::GemmTuner& tuner, const comm::HostCollectives& control, double timeout_s) {
  const std::string gemms = merged(control.texts(tuner.unchosen()), kMaxMeasured);
  if (gemms.empty()) return;  // on all ranks
  const std::string own = control.rank() == 0 ? tuner.time(gemms, kPartOfTimeout * timeout_s) : "";
  tuner.use(control.texts(own)[0]);
}

void restore_gemms(ops::GemmTuner& tuner, const storage::TrainState& state) {
  if (!state.contains(kGemmChoices)) return;
  try {
    tuner.use(state.text(kGemmChoices));
  } catch (const RunError& e) {
    log::warn(
        fmt::format("the checkpoint's choices of GEMM algorithms cannot be used: {}; this run "
                    "chooses again, and may differ in the last bits from an uninterrupted one",
                    e.message()));
  }
}

void save_gemms(ops::GemmTuner& tuner, storage::TrainState& state) {
  state.set(kGemmChoices, tuner.choices());
}

}  // namespace mtrain::run
