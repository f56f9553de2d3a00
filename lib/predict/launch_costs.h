// What a launch costs on the machines of a cluster. A prediction asks for each launch that a
// recorded step has (predict/step_table.h).
#pragma once
#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "device/stream_id.h"
#include "plan/cluster.h"
#include "plan/layout.h"

namespace mtrain::predict {

// A launch, as a recording device has kept it.
struct LaunchWork {
  std::string_view name;  // as in device::LaunchRecord
  device::StreamId stream = device::StreamKind::compute;
  DType dtype = DType::u8;       // as in device::LaunchRecord: that of a GEMM's first operand
  double flops = 0;              // of GEMMs and attention; 0: bound by memory
  double read = 0, written = 0;  // bytes of the device's memory
  // What this rank sends in a communication, and between how many ranks; 0 for other launches.
  double wire_bytes = 0;
  int64_t ranks = 0;
};

struct LaunchCost {
  double seconds = 0;
  // Whether the figure lies within what was measured or fitted; otherwise it is extrapolated.
  bool known = true;
  // For how long the launch keeps the one link of its rank busy, which carries the data of all
  // streams one after the other. 0: its stream has a link to itself.
  double link_s = 0;
  bool packet = false;  // so little that the link carries it between other data
  // A communication's own work, which computations beside it make longer. 0: other launches.
  double work_s = 0;
  // How long an emulated link carries the data. 0: there is none. A collective works while the link
  // carries its data. With `works_after`, a message works only after that.
  double carried_s = 0;
  bool works_after = false;
};

// What ranks that work together cost each other.
struct TogetherCosts {
  double longer = 0;  // by how much computations take longer than by a rank alone (0.1: by 10 %)
  double wake_s = 0;  // idle time of a stream after a wait for communication
};

class LaunchCosts {
 public:
  virtual ~LaunchCosts() = default;
  // Time for which the launch keeps its stream busy when nothing else runs. `link` is what the
  // ranks of a communication use; null for other launches.
  virtual LaunchCost cost(const LaunchWork& launch, const plan::GroupLink* link) const = 0;
  // Returns at most what computations of this launch's class and type take that have these FLOPs
  // together, whatever their names and sizes.
  virtual double least_seconds(const LaunchWork& launch) const {
    return cost(launch, nullptr).seconds;
  }
  // Idle time of a stream between two launches, and the time that the host needs to enqueue one.
  virtual double gap_seconds() const = 0;
  virtual double host_seconds() const = 0;
  // In addition to the costs of launches, which hold for ranks alone.
  virtual TogetherCosts together(const plan::Layout&) const { return {}; }
  // How long a rank that waits for such a stream waits for later ranks, as a share of its
  // computing.
  virtual double idle_share(device::StreamKind) const { return 0; }
  // By how much the work of such a communication takes longer beside computations of its rank
  // (1: twice).
  virtual double beside_compute(device::StreamKind) const { return 0; }
  // By how much a computation slows down while a communication of this kind runs (0.1: by 10 %).
  virtual double slowdown(device::StreamKind kind) const = 0;
};

}  // namespace mtrain::predict
