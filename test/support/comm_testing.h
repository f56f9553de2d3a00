// Runs ranks as threads of the test, over every backend that this machine supports.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "device/device.h"

namespace mtrain {

// A rank of a test: its world, its device, and a stream for communication.
struct TestRank {
  comm::World& world;
  Device& device;
  Stream& stream;
  int rank() const { return world.rank(); }
  int size() const { return world.size(); }

  // Returns a tensor of value(i) for i in [0, count) on this rank's device.
  Tensor filled(int64_t count, DType dtype, const std::function<double(int64_t)>& value) const;
  // Waits for the stream and returns the elements as doubles.
  std::vector<double> values(const Tensor& t) const;
};

std::vector<std::string> comm_backends();

struct TestRanksOptions {
  double timeout_s = 20;
  comm::Link link{};
  std::function<std::unique_ptr<Device>()> device =
      {};  // makes each rank's device; a CPU by default
};

// Runs `body` on every rank, with the stream sanitizer. A rank that throws unblocks its peers;
// run_ranks() then throws the first failure.
void run_ranks(int ranks, const std::string& backend, const std::function<void(TestRank&)>& body,
               const TestRanksOptions& options = {});

}  // namespace mtrain
