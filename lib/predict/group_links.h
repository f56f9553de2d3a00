// The links that the groups of a plan's ranks use on a cluster.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "mesh/mesh.h"
#include "plan/cluster.h"
#include "plan/run_plan.h"

namespace mtrain::predict {

// All groups along the same axes of a mesh are taken for the slowest of them.
class GroupLinks {
 public:
  GroupLinks(const RunPlan& plan, const plan::Cluster& cluster);

  // Returns the link of a group of the plan's ranks.
  const plan::GroupLink& of(const std::vector<int>& ranks);
  // Returns the slowest link from one pipeline rank to another, over all pipelines of the plan.
  plan::GroupLink between(int64_t from, int64_t to) const;

 private:
  plan::GroupLink find(std::vector<int64_t> ranks) const;

  const plan::Cluster& cluster_;
  const int64_t world_;
  const mesh::Mesh device_, moe_;
  std::map<std::vector<int>, plan::GroupLink> known_;
};

}  // namespace mtrain::predict
