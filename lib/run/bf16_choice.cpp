#include "run/bf16_choice.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "ops/tuning.h"

namespace mtrain::run {

namespace {

constexpr const char* kBf16Arithmetic = "bf16_arithmetic";  // a key in state.json
// A key of earlier versions. They timed several libraries for each shape and saved the choices.
constexpr const char* kTimedChoices = "matmul_choices";

// Returns the arithmetic that rank 0 offers (its `own`), or nothing if the CPU of a rank lacks it.
std::optional<Bf16Arithmetic> agreed(const comm::HostCollectives& control, Bf16Arithmetic own) {
  const auto offered =
      parse_bf16_arithmetic(control.texts(std::string(bf16_arithmetic_name(own)))[0]);
  MT_CHECK(offered, "rank 0 offers no arithmetic of this version");
  if (control.any(!ops::supports(*offered))) return std::nullopt;
  return offered;
}

// Returns whether the checkpoint is of an earlier version that chose its libraries or kernels by
// measuring them.
bool has_timed_choices(const storage::TrainState& state) {
  return state.contains(kTimedChoices) && !state.text(kTimedChoices).empty();
}

bool has_choice(const Device& device, const RunPlan& plan) {
  return device.bf16_arithmetic() && plan.compute_dtype == DType::bf16;
}

}  // namespace

void choose_bf16_arithmetic(Device& device, const comm::HostCollectives& control,
                            const RunPlan& plan) {
  if (!has_choice(device, plan)) return;
  const bool measures = control.rank() == 0 && !plan.device.deterministic;
  const auto own = measures ? ops::fastest_bf16_arithmetic() : Bf16Arithmetic::widened;
  device.set_bf16_arithmetic(agreed(control, own).value_or(Bf16Arithmetic::widened));
}

void restore_bf16_arithmetic(Device& device, const comm::HostCollectives& control,
                             const RunPlan& plan, const storage::TrainState& state) {
  constexpr const char* kDiffers =
      "the resumed run may differ in the last bits from an uninterrupted one";
  const auto warn = [&](const std::string& why) {
    if (control.rank() == 0) log::warn(fmt::format("{}: {}", why, kDiffers));
  };
  if (has_timed_choices(state))
    warn(
        "the run of the checkpoint chose its matrix multiplications by timing them, and this "
        "version does not");
  if (!has_choice(device, plan)) return;
  if (!state.contains(kBf16Arithmetic)) return choose_bf16_arithmetic(device, control, plan);
  const auto saved = parse_bf16_arithmetic(state.text(kBf16Arithmetic));
  if (plan.device.deterministic && saved != Bf16Arithmetic::widened) {
    warn(
        fmt::format("the run of the checkpoint multiplied bf16 with {}, and debug.deterministic "
                    "multiplies it as fp32",
                    state.text(kBf16Arithmetic)));
    return choose_bf16_arithmetic(device, control, plan);
  }
  if (saved && agreed(control, *saved) == saved) return device.set_bf16_arithmetic(*saved);
  choose_bf16_arithmetic(device, control, plan);
  warn(
      fmt::format("the run of the checkpoint multiplied bf16 with {}, which the CPU of a rank does "
                  "not support; this run uses {}",
                  state.text(kBf16Arithmetic), bf16_arithmetic_name(*device.bf16_arithmetic())));
}

void save_bf16_arithmetic(const Device& device, const RunPlan& plan, storage::TrainState& state) {
  state.set(kTimedChoices, "");  // earlier versions need this key to load the checkpoint
  if (has_choice(device, plan))
    state.set(kBf16Arithmetic, std::string(bf16_arithmetic_name(*device.bf16_arithmetic())));
}

}  // namespace mtrain::run
