// Compares the metrics of two runs step by step.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mtrain::observe {

// The values of a key in the steps that both runs have.
struct KeyComparison {
  struct At {
    int64_t step = 0;
    double a = 0, b = 0;
    // |a - b| over the larger of |a| and |b|; NaN if a value is not finite.
    double difference = 0;
  };
  std::string key;
  int64_t in_a = 0, in_b = 0, compared = 0;  // steps
  std::optional<At> first;                   // the first one beyond the tolerance
  std::optional<At> largest;                 // of the finite differences
};

// What a run needs, as a single number.
struct FigureComparison {
  std::string name, key, unit;
  double a = 0, b = 0;  // NaN if a run does not have it
  double ratio() const { return b / a; }
};

struct RunComparison {
  int64_t common_steps = 0, first_step = 0, last_step = 0;
  double tolerance = 0;
  std::vector<KeyComparison> keys;
  std::vector<FigureComparison> figures;  // medians over the common steps, and peaks of memory

  bool within() const;  // no key differs by more than the tolerance
};

// Values agree if they differ by at most `tolerance` times the larger one. A value that is not
// finite agrees with none. Without `keys`, losses are compared, and validation losses if there are
// any. Throws UserError if a file has no record, if the runs have no step in common, or if no run
// has one of the keys.
RunComparison compare_runs(const std::filesystem::path& a, const std::filesystem::path& b,
                           std::vector<std::string> keys, double tolerance);

}  // namespace mtrain::observe
