// Chooses the cases that are tried with every change, of tables that vary two things.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

// MTRAIN_ALL_CASES=1 is set by `scripts/test.sh --nightly`.
inline bool all_cases() {
  static const bool all = std::getenv("MTRAIN_ALL_CASES") != nullptr;
  return all;
}

// At night every case meets every variant. Else each case meets one of them, turn by turn, so that
// all cases and all variants are seen.
inline bool in_turn(size_t case_number, size_t variant, size_t variants) {
  return all_cases() || case_number % variants == variant;
}

// Returns how many of the steps of a training are compared with every change; all of them at night.
inline int64_t compared_steps(int64_t steps) {
  return all_cases() ? steps : std::min<int64_t>(steps, 8);
}

// Returns the numbers of the rows to try, each of which lists settings. At night these are all
// rows. Else they are the first row and few others that together have every setting of the table:
// as long as one is missing, the first row with most missing ones is added.
inline std::vector<size_t> rows_to_try(const std::vector<std::vector<std::string>>& rows) {
  std::set<std::string> missing;
  for (const auto& row : rows) missing.insert(row.begin(), row.end());
  std::vector<size_t> chosen;
  if (all_cases()) {
    for (size_t i = 0; i < rows.size(); ++i) chosen.push_back(i);
    return chosen;
  }
  chosen.push_back(0);
  for (const std::string& setting : rows[0]) missing.erase(setting);
  while (!missing.empty()) {
    const auto gain = [&](const std::vector<std::string>& row) {
      return std::ranges::count_if(row, [&](const auto& s) { return missing.contains(s); });
    };
    const auto best = std::ranges::max_element(rows, {}, gain);
    for (const std::string& setting : *best) missing.erase(setting);
    chosen.push_back(size_t(best - rows.begin()));
  }
  return chosen;
}
