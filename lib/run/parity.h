// Compares a shrunk training under a layout with the same training on a single rank (mtrain
// parity). A layout never changes results: what the numerics contract does not allow is a fault of
// mtrain.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "plan/plan_trial.h"

namespace mtrain::run {

// The first difference that the contract does not allow.
struct ParityDifference {
  int64_t step = 0;                    // 0: the training has failed
  std::string what;                    // "loss", "gradient", or how it has failed
  std::string parameter;               // the first one that differs there; may be empty
  double difference = 0, allowed = 0;  // relative
  int64_t parameters = 0;              // how many differ there
};

// A training that was compared with the one on a single rank.
struct ParityRow {
  std::string what;     // "the layout", "comm_overlap.cp_overlap=false"
  std::string skipped;  // why it was not run; empty: it was
  std::optional<ParityDifference> difference;
  double loss = 0, gradient = 0;  // the largest relative differences
  // Whether losses and gradients have the bits that the layout with all its overlap gives. Unset
  // for that training itself: a layout may change bits, and only the differences above tell it from
  // a single rank.
  std::optional<bool> same_bits;
};

struct ParityReport {
  std::string model, layout;  // for people
  int64_t world = 1, steps = 0;
  std::vector<ParityRow> rows;
  bool equal() const;
};

struct ParityOptions {
  int64_t steps = 5;
  // Called on each rank of the layout before it trains. Tests plant faults by it.
  std::function<void(int rank, Device& device)> on_rank = {};
  std::function<void(const std::string& what)> progress = {};  // before each training; may be empty
};

// The relative differences that the contract allows in fp32.
inline constexpr double kParityLoss = 1e-5, kParityGradient = 1e-5;
inline constexpr int64_t kParityRanks = 64;  // ranks are threads of this process

// `source` is a recipe that load_recipe() accepts, for source.world ranks. Ranks compute in fp32 on
// CPU threads and exchange in memory. Throws UserError if no shrunk form of the recipe is accepted,
// or if there are too many ranks.
ParityReport check_parity(const plan::RecipeSource& source, const ParityOptions& options);

}  // namespace mtrain::run
