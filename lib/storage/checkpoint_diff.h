// Compares the tensors of two checkpoints.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mtrain::storage {

struct TensorDifference {
  std::string name;
  // The largest absolute difference of two elements; infinite where one of them is not a number.
  double largest = 0;
  double scale = 0;     // the largest absolute value in either tensor
  int64_t element = 0;  // the first element with that difference
  // Why the tensors cannot be compared: only one exists, or their shapes differ. Else empty.
  std::string reason = {};

  bool differs() const { return largest > 0 || !reason.empty(); }
};

// Returns a row for each tensor of model and optimizer, those that cannot be compared first, then
// by their largest difference. Throws RunError if a checkpoint is damaged, and UserError if a
// folder is not a checkpoint. Values are compared as fp32.
std::vector<TensorDifference> checkpoint_differences(
    const std::filesystem::path& a, const std::filesystem::path& b,
    const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace mtrain::storage
