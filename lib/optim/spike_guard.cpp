#include "optim/spike_guard.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"

namespace mtrain::optim {

void SpikeGuard::accepted(float norm) {
  in_row_ = 0;
  if (options_.factor == 0 || !std::isfinite(norm)) return;
  norms_.push_back(norm);
  if (norms_.size() > kWindow) norms_.pop_front();
  set_limit();
}

void SpikeGuard::set_limit() {
  median_ = 0, limit_ = kNone;
  if (options_.factor == 0 || norms_.size() < kLeast) return;
  std::vector<float> sorted(norms_.begin(), norms_.end());
  const auto middle = sorted.begin() + std::ptrdiff_t(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  median_ = *middle;
  if (median_ > 0) limit_ = options_.factor * median_;
}

std::string SpikeGuard::save() const {
  if (!options_.on()) return "";
  std::string text = std::to_string(in_row_);
  for (const float norm : norms_) text += fmt::format(" {}", norm);
  return text;
}

void SpikeGuard::load(const std::string& text) {
  std::istringstream in(text);
  int64_t in_row = 0;
  std::deque<float> norms;
  bool good = bool(in >> in_row) && in_row >= 0 && in_row <= kMostInRow;
  for (std::string word; in >> word;) {
    char* end = nullptr;
    norms.push_back(std::strtof(word.c_str(), &end));
    good = good && *end == 0 && std::isfinite(norms.back()) && norms.back() >= 0;
  }
  if (!good || norms.size() > kWindow)
    throw UserError(fmt::format("`{}` is not a list of gradient norms", text),
                    "the checkpoint is damaged: load another");
  in_row_ = in_row;
  norms_ = std::move(norms);
  set_limit();
}

}  // namespace mtrain::optim
