// One rank's end of a group: the interface that each backend of communication implements. Only
// lib/comm includes this header; all other folders use Group.
//
// To add a collective, add a function here, one in each backend (shm_communicator.cpp, gloo/,
// nccl/) and one in Group.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/span.h"
#include "device/backend.h"

namespace mtrain::comm {

enum class Reduce { sum, average, max };

// One message of a batch. Messages between the same two ranks arrive in the order of the batch.
struct Transfer {
  enum class Kind { send, receive } kind;
  Span data;  // a send only reads it
  int peer;   // rank in the group
};

// A tensor of an all_to_all: `in` and `out` consist of one part for each rank, of sends[r] and
// receives[r] elements. sends[r] of this rank is receives[this rank] of rank r.
struct AllToAllSpans {
  ConstSpan in;
  std::vector<int64_t> sends;
  Span out;
  std::vector<int64_t> receives;
};
std::string all_to_all_name(
    const std::vector<AllToAllSpans>& tensors);  // "all_to_all of bf16, f32"

// Group makes these calls within launches of one stream, therefore in that stream's order. On the
// CPU a call blocks the stream's thread until this rank's part is done; on CUDA it enqueues its
// work on context.cuda. Every rank of the group makes the same calls with the same sizes. A call
// throws CommError when a peer is gone, when the timeout has passed, or when the group was aborted;
// afterwards the group cannot be used any more.
class Communicator {
 public:
  using Clock = std::chrono::steady_clock;
  virtual ~Communicator() = default;

  virtual void all_reduce(Span data, Reduce op, const device::LaunchContext& context) = 0;
  // `in` has size() times the elements of `out`; `out` may be this rank's part of `in`.
  virtual void reduce_scatter(ConstSpan in, Span out, Reduce op,
                              const device::LaunchContext& context) = 0;
  // `out` has size() times the elements of `in`; `in` may be this rank's part of `out`.
  virtual void all_gather(ConstSpan in, Span out, const device::LaunchContext& context) = 0;
  virtual void all_to_all(const std::vector<AllToAllSpans>& tensors,
                          const device::LaunchContext& context) = 0;
  virtual void broadcast(Span data, int root, const device::LaunchContext& context) = 0;
  // `begun` is when this rank became ready for the exchange.
  virtual void exchange(const std::vector<Transfer>& transfers, Clock::time_point begun,
                        const device::LaunchContext& context) = 0;
  virtual void barrier(const device::LaunchContext& context) = 0;

  // Returns memory on the device that the library has registered for this group. All ranks call it
  // with the same size; the host waits for them. With `symmetric`, a call has the memory at the
  // same offset on every rank. The memory stays registered until the communicator ends. Returns
  // null if the backend registers none.
  virtual std::shared_ptr<void> register_memory(int64_t /*bytes*/, bool /*symmetric*/) {
    return nullptr;
  }

  // Makes pending and later calls of all ranks throw CommError, with the reason of the first abort.
  // Any thread may call it at any time.
  virtual void abort(std::string_view reason) noexcept = 0;

  // Returns when the last call could really start: when all ranks had arrived at it, or the senders
  // of its messages were ready. A backend that does not know this returns the time at which the
  // call began, or at which it heard of other ranks.
  virtual Clock::time_point last_start() const = 0;
  // Whether last_start() is exact. Only ranks that share memory and a clock know when each of them
  // has begun.
  virtual bool knows_last_start() const { return false; }
};

}  // namespace mtrain::comm
