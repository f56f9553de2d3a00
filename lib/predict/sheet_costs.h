// What launches cost by the data sheets of a cluster's devices and links, and by how far a training
// program comes near them.
#pragma once
#include "plan/cluster.h"
#include "predict/launch_costs.h"

namespace mtrain::predict {

// How a training program uses a kind of devices, in ten numbers. Efficiencies are shares of the
// data sheet's rate. The defaults are round figures of well-tuned programs on GPUs; no machine was
// measured for them.
struct StackConstants {
  double gemm = 0.65;        // efficiency of GEMMs in 16 or 32 bits
  double gemm8 = 0.55;       // of 8-bit GEMMs
  double attention = 0.5;    // of attention, by the FLOPs that a causal mask leaves
  double memory = 0.75;      // of passes over memory
  double conversion = 0.75;  // of conversions to and from 8 bits
  double tp_link = 0.7;      // of the links for tensor, context and expert parallelism
  double dp_link = 0.7;      // for data parallelism
  double pp_link = 0.7;      // for messages between stages
  double launch_s = 2e-6;    // seconds between two launches of a stream
  double slowdown = 0.08;    // of computations while communication runs: 0.08 is 8 %
};

class SheetCosts : public LaunchCosts {
 public:
  SheetCosts(const plan::Cluster& cluster, const StackConstants& constants);

  // A launch takes the longer one of its arithmetic and its memory traffic. Communication takes its
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
