// What launches cost by the data sheets of a cluster's devices and links, and by how far a training
// program comes near them.
#pragma once
#include <array>
#include <tuple>

#include "plan/cluster.h"
#include "predict/launch_costs.h"
#include "recipe/schema/field.h"

namespace mtrain::predict {

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

class SheetCosts : public LaunchCosts {
 public:
  SheetCosts(const plan::Cluster& cluster, const StackConstants& constants);

  // A GEMM takes its arithmetic and a share of its memory traffic, and at least all of the traffic.
  // Communication takes its
  // link's latency for each doubling of the ranks, and its bytes at the link's rate. Between
  // domains, all ranks that a group has in a domain share their network cards if it is a collective
  // of equal parts; such a group is never faster than the links within the domain.
  LaunchCost cost(const LaunchWork& launch, const plan::GroupLink* link) const override;
  double gap_seconds() const override { return constants_.launch_s; }
  double host_seconds() const override { return 0; }
  double slowdown(device::StreamKind kind) const override;

 private:
  double compute(const LaunchWork& launch) const;
  double communication(const LaunchWork& launch, const plan::GroupLink& link) const;

  const plan::Cluster cluster_;
  const StackConstants constants_;
};

}  // namespace mtrain::predict
