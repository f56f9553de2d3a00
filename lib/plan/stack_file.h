// Files with the fitted constants of a training program on a kind of GPU:
// recipes/clusters/stacks/NAME_GPU.yaml, which `stack: NAME` of a cluster file names.
#pragma once
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "plan/cluster.h"
#include "recipe/schema/field.h"

namespace mtrain::plan {

// How a training program uses a kind of devices, in ten numbers. Efficiencies are shares of the
// data sheet's rate. The defaults are round figures of well-tuned programs on GPUs; no machine was
// measured for them.
struct StackConstants {
  double gemm = 0.65;
  double gemm8 = 0.55;
  double experts = 1;
  double traffic = 0;
  double attention = 0.5;
  double memory = 0.75;
  double conversion = 0.75;
  double tp_link = 0.7;
  double dp_link = 0.7;
  double launch_s = 2e-6;

  static constexpr auto fields = std::tuple{
      recipe::Field{"gemm",
                    &StackConstants::gemm,
                    "efficiency of the arithmetic of GEMMs in 16 or 32 bits",
                    {.min = 0, .above_min = true}},
      recipe::Field{"gemm8",
                    &StackConstants::gemm8,
                    "efficiency of the arithmetic of 8-bit GEMMs",
                    {.min = 0, .above_min = true}},
      recipe::Field{"experts",
                    &StackConstants::experts,
                    "efficiency of the GEMMs of experts, as a share of that of other GEMMs",
                    {.min = 0, .above_min = true}},
      recipe::Field{"traffic",
                    &StackConstants::traffic,
                    "share of a GEMM's memory traffic that its arithmetic does not hide",
                    {.min = 0}},
      recipe::Field{"attention",
                    &StackConstants::attention,
                    "efficiency of attention, by the FLOPs that a causal mask leaves",
                    {.min = 0, .above_min = true}},
      recipe::Field{"memory",
                    &StackConstants::memory,
                    "efficiency of passes over memory",
                    {.min = 0, .above_min = true}},
      recipe::Field{"conversion",
                    &StackConstants::conversion,
                    "efficiency of conversions to and from 8 bits",
                    {.min = 0, .above_min = true}},
      recipe::Field{"tp_link",
                    &StackConstants::tp_link,
                    "efficiency of the links for tensor, context and expert parallelism",
                    {.min = 0, .above_min = true}},
      recipe::Field{"dp_link",
                    &StackConstants::dp_link,
                    "efficiency of the links for data parallelism and between stages",
                    {.min = 0, .above_min = true}},
      recipe::Field{"launch_s",
                    &StackConstants::launch_s,
                    "seconds between two launches of a stream",
                    {.min = 0, .above_min = true}}};
};

// Calls take(field) for each constant, in the order of the fields.
template <class Take>
void for_each_constant(const Take& take) {
  std::apply([&](const auto&... field) { (take(field), ...); }, StackConstants::fields);
}

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
// cluster file, otherwise in `clusters/stacks` of a folder of ready recipes. Reports a name without
// a file.
StackConstants stack_of(const Cluster& cluster, const std::vector<std::string>& recipe_folders,
                        Diagnostics& diagnostics);

}  // namespace mtrain::plan
