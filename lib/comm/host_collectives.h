// What all ranks of a job agree on: a few numbers or a text of each, for the host, which waits for
// them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.h"
#include "device/device.h"

namespace mtrain {

// All ranks make the same calls in the same order. `compute` stands still meanwhile, so that the
// wait counts as exposed communication.
class HostCollectives {
 public:
  HostCollectives(World& world, Device& device);

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool any(bool own) const;
  int64_t least(int64_t own) const;  // of all ranks'
  // By rank.
  std::vector<std::string> texts(const std::string& own) const;

 private:
  int rank_, size_;
  Group world_group_;
  Stream *compute_, *on_ = nullptr;  // no stream for one rank
};

}  // namespace mtrain
