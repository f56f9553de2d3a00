// Sums the time of launches by their names, for --profile.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/stream.h"

namespace mtrain::observe {

struct ProfileRow {
  std::string name;
  device::StreamId stream;
  int64_t count = 0, total_ns = 0;
  double share = 0;  // its part of the busy time of the compute stream; 0 on other streams
};

class Profile : public device::TimingSink {
 public:
  void record(const device::Timing& timing) override;

  std::vector<ProfileRow> rows() const;  // the longest first
  int64_t compute_busy_ns() const;
  void reset();  // forgets what was recorded, such as the first steps

  // Returns a table of the rows and the shares of groups: the group "matmul" has matmul_fwd,
  // matmul_dgrad and all others that begin with this word.
  std::string table() const;

 private:
  struct Sum {
    int64_t count = 0, total_ns = 0;
  };
  int64_t compute_busy_locked() const;

  mutable std::mutex mutex_;
  using ByName = std::map<std::string, Sum, std::less<>>;
  std::map<device::StreamId, ByName> streams_;
};

// Feeds several sinks, which must outlive it.
class TeeSink : public device::TimingSink {
 public:
  explicit TeeSink(std::vector<device::TimingSink*> sinks) : sinks_(std::move(sinks)) {}
  void record(const device::Timing& timing) override {
    for (device::TimingSink* sink : sinks_) sink->record(timing);
  }
  void waited(const device::Waiting& waiting) override {
    for (device::TimingSink* sink : sinks_) sink->waited(waiting);
  }

 private:
  std::vector<device::TimingSink*> sinks_;
};

}  // namespace mtrain::observe
