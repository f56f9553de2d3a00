#include "device/recording/records.h"

#include <numeric>

#include "base/error.h"
#include "device/device.h"

namespace mtrain::device {

namespace {

void add_bytes(BytesByCategory& sums, const std::vector<Access>& accesses) {
  for (const Access& a : accesses)
    if (a.storage) sums[size_t(a.storage->category)] += a.bytes;
}

}  // namespace

int64_t LaunchRecord::bytes() const {
  return std::accumulate(read.begin(), read.end(),
                         std::accumulate(written.begin(), written.end(), int64_t{0}));
}

void Records::clear() {
  items_.clear();
  groups_.clear();
  group_numbers_.clear();
  earlier_.clear();
}

LaunchRecord& Records::add(const Stream& stream, const char* name) {
  LaunchRecord& r = items_.emplace_back();
  r.name = name;
  r.stream = stream.id();
  r.number = stream.enqueued() - earlier_.emplace(r.stream, stream.enqueued() - 1).first->second;
  r.paired = stream.device().pairs();
  r.scope = stream.device().shared_scope();
  return r;
}

void Records::add_launch(const Stream& stream, const LaunchInfo& info) {
  LaunchRecord& r = add(stream, info.name);
  r.flops = info.flops;
  if (!info.reads.empty()) r.dtype = info.reads[0].dtype;
  r.wire_bytes = info.wire_bytes;
  add_bytes(r.read, info.reads);
  add_bytes(r.written, info.writes);
}

void Records::add_wait(const Stream& stream, StreamId waits_for, uint64_t waits_number) {
  LaunchRecord& r = add(stream, "wait");
  r.waits_for = waits_for;
  const auto earlier = earlier_.find(waits_for);
  if (earlier != earlier_.end() && waits_number > earlier->second)
    r.waits_number = waits_number - earlier->second;
}

void Records::set_group(const std::string& name, const std::vector<int>& ranks) {
  MT_CHECK(!items_.empty(), "group {} without a launch", name);
  const auto [known, added] = group_numbers_.emplace(&ranks, int(groups_.size()));
  if (added) groups_.push_back({name, ranks});
  items_.back().group = known->second;
}

}  // namespace mtrain::device
