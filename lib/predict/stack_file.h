// Files with the fitted constants of a training program on a kind of GPU:
// recipes/clusters/stacks/NAME_GPU.yaml, which `stack: NAME` of a cluster file names.
#pragma once
#include <string>
#include <vector>

#include "plan/cluster.h"
#include "predict/sheet_costs.h"

namespace mtrain::predict {

struct StackFile {
  std::optional<recipe::ClusterKind> kind;  // of GPUs, for which the constants were fitted
  StackConstants constants;

  static constexpr auto fields =
      std::tuple{recipe::Field{"gpu", &StackFile::kind, "kind of the GPUs that the program ran on"},
                 recipe::Field{"constants", &StackFile::constants, "how the program uses them"}};
};

// Returns the text of a stack file. `comment` is what it says about its origin, line by line.
std::string print_stack(const StackFile& stack, const std::string& comment);

// Reads a stack file. Reports all mistakes with their lines; the constants can be used only if
// there are none.
StackFile read_stack_text(const std::string& text, const std::string& source,
                          Diagnostics& diagnostics);

// Reads the constants that a cluster file names: NAME_GPU.yaml in the folder `stacks` beside the
// cluster file. Reports a name without a file.
StackConstants stack_of(const plan::Cluster& cluster, Diagnostics& diagnostics);

}  // namespace mtrain::predict
