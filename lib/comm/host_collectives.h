// Collectives on values in host memory: a few numbers or a text of each rank. The host waits for
// them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.h"
#include "device/device.h"

namespace mtrain::comm {

// All ranks make the same calls in the same order. The compute stream waits for each call; its time
// therefore counts as exposed communication.
class HostCollectives {
 public:
  HostCollectives(World& world, Device& device);

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool any(bool own) const;  // true if `own` is true on any rank
  // The same for several questions at once.
  std::vector<bool> any_of(const std::vector<bool>& own) const;
  int64_t least(int64_t own) const;  // the smallest of all ranks' values
  struct Largest {
    int64_t value = 0;
    int rank = 0;  // the first with this value
  };
  // The largest of all ranks' values, one by one. They must not be negative, and their product with
  // the number of ranks must fit into 63 bits.
  std::vector<Largest> largest(const std::vector<int64_t>& own) const;
  std::vector<std::string> texts(const std::string& own) const;  // every rank's text, by rank
  // The same on rank 0 alone; nothing on the others, which receive no text.
  std::vector<std::string> texts_on_first(const std::string& own) const;

 private:
  std::vector<int64_t> lengths(const std::string& own) const;  // of all ranks' texts

  int rank_, size_;
  Group world_group_;
  Stream *compute_, *stream_ = nullptr;  // stream_ is null in a job of one rank
};

}  // namespace mtrain::comm
