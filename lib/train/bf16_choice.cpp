#include "train/bf16_choice.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "ops/tuning.h"
#include "train/model_setup.h"

namespace mtrain {

namespace {

constexpr const char* kSaved = "bf16_arithmetic";  // of state.json
// Versions before timed several libraries for each shape and saved which one served it.
constexpr const char* kTimedLibraries = "matmul_choices";

// What rank 0 offers, if all ranks can do it.
std::optional<Bf16Arithmetic> agreed(const Control& control, Bf16Arithmetic own) {
  const auto offered =
      parse_bf16_arithmetic(control.texts(std::string(bf16_arithmetic_name(own)))[0]);
  MT_CHECK(offered, "rank 0 offers no arithmetic of this version");
  if (control.any(!ops::supports(*offered))) return std::nullopt;
  return offered;
}

bool names_libraries(const TrainState& state) {
  if (!state.contains(kTimedLibraries)) return false;
  const std::string& text = state.text(kTimedLibraries);
  return text.find("onednn") != std::string::npos || text.find("openblas") != std::string::npos;
}

bool has_choice(const Device& device, const Recipe& recipe) {
  return !device.is_cuda() && compute_dtype(recipe.mixed_precision) == DType::bf16;
}

}  // namespace

void choose_bf16_arithmetic(Device& device, const Control& control, const Recipe& recipe) {
  if (!has_choice(device, recipe)) return;
  const bool measures = control.rank() == 0 && !recipe.debug.deterministic;
  const auto own = measures ? ops::fastest_bf16_arithmetic() : Bf16Arithmetic::widened;
  device.set_bf16_arithmetic(agreed(control, own).value_or(Bf16Arithmetic::widened));
}

void restore_bf16_arithmetic(Device& device, const Control& control, const Recipe& recipe,
                             const TrainState& state) {
  constexpr const char* kDiffers =
      "the resumed run may differ in the last bits from one that went on";
  const auto warn = [&](const std::string& why) {
    if (control.rank() == 0) log::warn(fmt::format("{}: {}", why, kDiffers));
  };
  if (names_libraries(state))
    warn(
        "the checkpoint's run multiplied matrices by libraries that it chose by measuring, and "
        "this version has its own kernels for all");
  if (!has_choice(device, recipe)) return;
  if (!state.contains(kSaved)) return choose_bf16_arithmetic(device, control, recipe);
  const auto saved = parse_bf16_arithmetic(state.text(kSaved));
  if (saved && agreed(control, *saved) == saved) return device.set_bf16_arithmetic(*saved);
  choose_bf16_arithmetic(device, control, recipe);
  warn(
      fmt::format("the checkpoint's run multiplied bf16 by {}, which the CPU of a rank cannot, and "
                  "this run takes {}",
                  state.text(kSaved), bf16_arithmetic_name(device.bf16_arithmetic())));
}

void save_bf16_arithmetic(const Device& device, const Recipe& recipe, TrainState& state) {
  if (has_choice(device, recipe))
    state.set(kSaved, std::string(bf16_arithmetic_name(device.bf16_arithmetic())));
}

}  // namespace mtrain
