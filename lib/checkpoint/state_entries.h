// The entries of state.json that belong to a training itself.
#pragma once

namespace mtrain::checkpoint {

inline constexpr const char *kState = "state.json", *kStep = "step", *kFloat8Scales = "fp8_scales",
                            *kUpdates = "updates", *kLossScale = "loss_scale", *kRanks = "ranks",
                            *kSpikes = "grad_norms",
                            // Absent in checkpoints of earlier versions.
                                *kSamples = "samples",
                            // Absent if no update was skipped.
                                    *kUpdatedSamples = "updated_samples";

}  // namespace mtrain::checkpoint
