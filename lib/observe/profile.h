// Sums the times of launches by name, for --profile.
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
  double share = 0;  // of the busy time of the compute stream; 0 on other streams
};

class Profile : public device::TimingSink {
 public:
  void record(const device::Timing& timing) override;

  std::vector<ProfileRow> rows() const;  // the rows with the longest total time first
  int64_t compute_busy_ns() const;
  void reset();  // forgets the launches so far, such as those of the first steps

  // Returns a table of the rows, and a line with the shares of groups. A group has all launches
  // whose names begin with the same word: matmul_fwd and matmul_dgrad are in the group "matmul". No
  // line is wider than `width`; 0 means no limit.
  std::string table(int width = 0) const;

 private:
  struct Sum {
    int64_t count = 0, total_ns = 0;
  };
  int64_t compute_busy_locked() const;

  mutable std::mutex mutex_;
  using ByName = std::map<std::string, Sum, std::less<>>;
  std::map<device::StreamId, ByName> streams_;
};

// Forwards every record to several sinks, which must outlive it.
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
