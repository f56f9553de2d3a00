#include "checkpoint/snapshot.h"

#include <cstring>

#include "base/math.h"

namespace mtrain::checkpoint {

using storage::TensorSet;

namespace {
constexpr int64_t kPieceAlignment = 64;  // bytes
int64_t aligned_bytes(const ShardPiece& p) { return round_up(p.bytes(), kPieceAlignment); }
}  // namespace

int64_t snapshot_bytes(const CheckpointParts& t) {
  int64_t bytes = 0;
  for (const TensorSet set : kShardSets)
    for (const LivePiece& p : live_pieces(t, set)) bytes += aligned_bytes(p);
  return bytes;
}

Snapshot::~Snapshot() {
  if (!staged_) return;
  try {
    // Tells the sanitizer, too, that the copies into this memory have ended.
    device_.stream(device::StreamKind::copy).synchronize(staged_);
  } catch (...) {  // a failure is reported to the code that reads the copy
  }
}

void Snapshot::reserve(int64_t bytes) {
  if (bytes <= capacity_) return;
  memory_.reset();  // never two copies at once
  capacity_ = 0;
  memory_ = device_.host_memory(bytes);
  std::memset(memory_.get(), 0, size_t(bytes));
  capacity_ = bytes;
}

Event Snapshot::stage(const CheckpointParts& t) {
  Stream& copy = device_.stream(device::StreamKind::copy);
  if (staged_) copy.synchronize(std::exchange(staged_, {}));
  pieces_.clear();
  bytes_ = 0;
  std::map<TensorSet, std::vector<LivePiece>> live;
  int64_t end = 0;
  for (const TensorSet set : kShardSets)
    for (const LivePiece& p : live[set] = live_pieces(t, set)) {
      bytes_ += p.bytes();
      end += aligned_bytes(p);
    }
  reserve(end);
  await_values(t);
  copy.wait(t.compute.record());  // edge: last update, and the gathers after it -> the copies
  auto* to = static_cast<char*>(memory_.get());
  for (const TensorSet set : kShardSets) {
    std::vector<HostPiece>& pieces = pieces_[set];
    for (const LivePiece& p : live[set]) {
      copy.download_later(to, p.values);
      pieces.push_back({p, {to, p.count(), p.dtype}});
      to += aligned_bytes(p);
    }
  }
  staged_ = copy.record();
  return staged_;
}

}  // namespace mtrain::checkpoint
