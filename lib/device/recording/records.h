// A list of what is enqueued on a device's streams. Predictions read the list that a recording
// device leaves (device/device.h); a device that runs its work can keep one, too.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/allocator.h"
#include "device/stream.h"

namespace mtrain::device {

// Bytes of device memory, by the category of the buffer that holds them.
using BytesByCategory = std::array<int64_t, kMemoryCategories>;

// An item of a stream: a launch, a copy between host and device, or a wait for another stream.
struct LaunchRecord {
  const char* name = "";  // as in LaunchInfo; "upload", "download" or "wait"
  StreamId stream = StreamKind::compute;
  uint64_t number = 0;      // its place among the recorded items of its stream, from 1
  int64_t flops = 0;        // as in LaunchInfo
  DType dtype = DType::u8;  // of the first range that it reads: of a GEMM, its first operand
  BytesByCategory read{}, written{};
  int64_t wire_bytes = 0;  // as in LaunchInfo
  int group = -1;          // of a communication: its place in Records::groups()
  // A wait ends after the first `waits_number` recorded items of this stream; 0: after earlier
  // ones.
  std::optional<StreamId> waits_for{};
  uint64_t waits_number = 0;
  bool paired = false;                         // enqueued under a Device::PairScope
  std::shared_ptr<const std::string> scope{};  // Device::scope(); null: none

  int64_t bytes() const;  // read and written
};

// Ranks that communicate, as in comm::Group.
struct GroupRecord {
  std::string name;
  std::vector<int> ranks;  // of the world
};

class Records {
 public:
  // In the order in which the host has enqueued them.
  const std::vector<LaunchRecord>& items() const { return items_; }
  const std::vector<GroupRecord>& groups() const { return groups_; }
  void clear();

  // Streams call these for each item, once stream.enqueued() counts it.
  void add_launch(const Stream& stream, const LaunchInfo& info);
  void add_wait(const Stream& stream, StreamId waits_for, uint64_t waits_number);
  // Reports that the last launch communicates between these ranks. The vector is that of the group,
  // so the same address means the same group.
  void set_group(const std::string& name, const std::vector<int>& ranks);

 private:
  LaunchRecord& add(const Stream& stream, const char* name);

  std::vector<LaunchRecord> items_;
  std::vector<GroupRecord> groups_;
  std::map<const std::vector<int>*, int> group_numbers_;
  std::map<StreamId, uint64_t> earlier_;  // how many items a stream had before its first record
};

}  // namespace mtrain::device
