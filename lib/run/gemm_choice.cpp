#include "run/gemm_choice.h"

#include <set>
#include <sstream>

#include "base/error.h"
#include "base/log.h"

namespace mtrain::run {

namespace {

constexpr const char* kSaved = "gemm_choices";  // a key in state.json

// Returns the lines of all texts, each once.
std::string merged(const std::vector<std::string>& texts) {
  std::set<std::string> lines;
  for (const std::string& text : texts) {
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.insert(line);
  }
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

}  // namespace

std::unique_ptr<ops::GemmTuner> gemm_tuner(Device& device, const RunPlan& plan) {
  return plan.device.deterministic ? nullptr : ops::gemm_tuner(device);
}

void choose_gemms(ops::GemmTuner& tuner, const comm::HostCollectives& control) {
  const std::string gemms = merged(control.texts(tuner.unchosen()));
  if (gemms.empty()) return;  // on all ranks
  const std::string own = control.rank() == 0 ? tuner.time(gemms) : "";
  tuner.use(control.texts(own)[0]);
}

void restore_gemms(ops::GemmTuner& tuner, const storage::TrainState& state) {
  if (!state.contains(kSaved)) return;
  try {
    tuner.use(state.text(kSaved));
  } catch (const RunError& e) {
    log::warn(
        fmt::format("the checkpoint's choices of GEMM algorithms are of no use: {}; they are "
                    "made again, and the resumed run may differ in the last bits from one "
                    "that went on",
                    e.message()));
  }
}

void save_gemms(ops::GemmTuner& tuner, storage::TrainState& state) {
  state.set(kSaved, tuner.choices());
}

}  // namespace mtrain::run
