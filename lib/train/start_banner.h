// What a run says of itself before the first step.
#pragma once
#include <string>
#include <vector>

#include "observe/banner.h"
#include "train/trainer.h"

namespace mtrain {

std::vector<BannerRow> banner_rows(Trainer& trainer, const Recipe& recipe, double peak_flops);

}  // namespace mtrain
