// Ranks as threads of the test, over every backend that this machine can run.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "device/device.h"

namespace mtrain {

// What a rank of a test has: its world, a device and a stream for communication.
struct TestRank {
  comm::World& world;
  Device& device;
  Stream& stream;
  int rank() const { return world.rank(); }
  int size() const { return world.size(); }

  // value(i) for i in [0, count), on this rank's device.
  Tensor filled(int64_t count, DType dtype, const std::function<double(int64_t)>& value) const;
  // The elements, as doubles; waits for the stream.
  std::vector<double> values(const Tensor& t) const;
};

std::vector<std::string> comm_backends();

struct TestRanksOptions {
  double timeout_s = 20;
  comm::Link link{};
  std::function<std::unique_ptr<Device>()> device = {};  // of each rank; a CPU unless given
};

// Runs `body` as every rank; a rank that throws unblocks its peers, and the first failure is thrown
// on. The stream sanitizer is on.
void run_ranks(int ranks, const std::string& backend, const std::function<void(TestRank&)>& body,
               const TestRanksOptions& options = {});

}  // namespace mtrain
