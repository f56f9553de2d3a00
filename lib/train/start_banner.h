// What a run says of itself before the first step.
#pragma once
#include <string>
#include <vector>

#include "train/trainer.h"

namespace mtrain {

struct BannerRow {
  std::string label, text;
};
std::vector<BannerRow> banner_rows(Trainer& trainer, const Recipe& recipe, double peak_flops);

}  // namespace mtrain
