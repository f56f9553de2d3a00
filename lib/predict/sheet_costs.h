// What launches cost by the data sheets of a cluster's devices and links, and by how far a training
// program comes near them.
#pragma once
#include "plan/cluster.h"
#include "plan/stack_file.h"
#include "predict/launch_costs.h"

namespace mtrain::predict {

using plan::StackConstants;

class SheetCosts : public LaunchCosts {
 public:
  // `threads` are those of a rank that computes on CPUs.
  SheetCosts(const plan::Cluster& cluster, const StackConstants& constants, int64_t threads = 1);

  // A GEMM takes its arithmetic and a share of its memory traffic, and at least all of the traffic.
  // Communication takes its link's latency for each doubling of the ranks, and its bytes at the
  // link's rate. Between domains, all ranks that a group has in a domain share their network cards
  // if it is a collective of equal parts; such a group is never faster than the links within the
  // domain.
  LaunchCost cost(const LaunchWork& launch, const plan::GroupLink* link) const override;
  double gap_seconds() const override { return constants_.launch_s; }
  double host_seconds() const override { return 0; }
  double slowdown(device::StreamKind kind) const override;

 private:
  double compute(const LaunchWork& launch) const;
  double communication(const LaunchWork& launch, const plan::GroupLink& link) const;

  const plan::Cluster cluster_;
  const StackConstants constants_;
  const int64_t threads_;
};

}  // namespace mtrain::predict
