#include "run/rank_consistency.h"

#include <algorithm>

#include "base/error.h"

namespace mtrain {

void require_same_on_all_ranks(const Control& control, const std::string& what,
                               const std::string& own, const std::string& hint) {
  const auto all = control.texts(own);
  const auto other = std::ranges::find_if(all, [&](const auto& text) { return text != all[0]; });
  if (other == all.end()) return;
  throw UserError(fmt::format("rank {} has another {} than rank 0: {} instead of {}",
                              other - all.begin(), what, *other, all[0]),
                  hint);
}

std::string dataset_fingerprint(const Dataset& data) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const int64_t index : {int64_t(0), data.size() - 1}) {
    Sample sample;
    data.sample(index, sample);
    for (const int32_t id : sample.input) hash = (hash ^ uint64_t(id)) * 1099511628211u;
  }
  return fmt::format("{} samples (first and last hash to {:016x})", data.size(), hash);
}

}  // namespace mtrain
