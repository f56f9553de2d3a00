// Chooses the cases that are tried with every change, of tables that vary two things.
#pragma once
#include <cstddef>
#include <cstdlib>

// With MTRAIN_ALL_CASES=1, as `scripts/test.sh --nightly` sets it, every case meets every variant.
// Else each case meets one of them, turn by turn, so that all cases and all variants are seen.
inline bool in_turn(size_t case_number, size_t variant, size_t variants) {
  static const bool all = std::getenv("MTRAIN_ALL_CASES") != nullptr;
  return all || case_number % variants == variant;
}
