// A copy in host memory of what one rank saves of a training. The training continues while the copy
// is written to a disk.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "checkpoint/shard_pieces.h"
#include "device/device.h"

namespace mtrain::checkpoint {

// A piece whose values are in a snapshot's memory.
struct HostPiece : ShardPiece {
  ConstSpan values;
};

// Returns the bytes of memory that a copy of what this rank writes needs. They include the bytes
// that align each piece.
int64_t snapshot_bytes(const CheckpointParts& parts);

// The memory stays allocated, and each stage() uses it again. Only the rank's host thread makes,
// fills and destroys a snapshot; any thread may wait for it and read it.
class Snapshot {
 public:
  explicit Snapshot(Device& device) : device_(device) {}
  ~Snapshot();  // waits for copies that are still running
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Makes memory for this many bytes of tensors, and writes to all of it: the first stage() then
  // takes no longer than later ones.
  void reserve(int64_t bytes);

  // Enqueues copies of this rank's pieces on the device's copy stream, after everything that is
  // enqueued on `compute`. Nobody may still read the earlier copy. Returns the event of the end of
  // the copies: whatever changes weights, moments or the replicated tensors must wait for it.
  Event stage(const CheckpointParts& parts);

  Event copied() const { return staged_; }  // the event that the last stage() has returned

  // Blocks until the copies are complete, and rethrows failures of the device. Any thread may call
  // it.
  void wait() const { staged_.wait(); }
  // Returns the pieces of a file in their order. Their values are valid after wait().
  const std::vector<HostPiece>& pieces(storage::TensorSet set) const { return pieces_.at(set); }

  int64_t bytes() const { return bytes_; }         // of all pieces of the last stage()
  int64_t allocated() const { return capacity_; }  // bytes of the memory

 private:
  Device& device_;
  std::shared_ptr<void> memory_;
  int64_t capacity_ = 0, bytes_ = 0;
  std::map<storage::TensorSet, std::vector<HostPiece>> pieces_;
  Event staged_;
};

}  // namespace mtrain::checkpoint
