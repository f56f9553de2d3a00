// One rank's end of a group: what a backend of communication implements. Only lib/comm includes
// this; everybody else holds a Group.
#pragma once
#include <chrono>
#include <string_view>
#include <vector>

#include "base/span.h"
#include "device/backend.h"

namespace mtrain {

enum class Reduce { sum, average, max };

// One message of a batch. Several between the same two ranks arrive in the order of the batch.
struct Transfer {
  enum class Kind { send, receive } kind;
  Span data;  // read by a send
  int peer;   // rank in the group
};

// Calls run in the order of the stream that they were enqueued on. On the CPU they block that
// stream's thread until this rank's part is done; on CUDA they enqueue on context.cuda. Every rank
// of the group makes the same calls with the same sizes. A call throws CommError when a peer is
// gone, the timeout has passed or the group was aborted; the group is of no use after that.
class Communicator {
 public:
  using Clock = std::chrono::steady_clock;
  virtual ~Communicator() = default;

  virtual void all_reduce(Span data, Reduce op, const LaunchContext& context) = 0;
  // in: size() times out; `out` may be this rank's part of `in`
  virtual void reduce_scatter(ConstSpan in, Span out, Reduce op, const LaunchContext& context) = 0;
  // out: size() times in; `in` may be its own part of `out`
  virtual void all_gather(ConstSpan in, Span out, const LaunchContext& context) = 0;
  // Both cut into parts of the given numbers of elements, one per rank. sends[r] of this rank is
  // receives[this] of rank r.
  virtual void all_to_all(ConstSpan in, const std::vector<int64_t>& sends, Span out,
                          const std::vector<int64_t>& receives, const LaunchContext& context) = 0;
  virtual void broadcast(Span data, int root, const LaunchContext& context) = 0;
  // `begun`: since when this rank has been ready for it.
  virtual void exchange(const std::vector<Transfer>& transfers, Clock::time_point begun,
                        const LaunchContext& context) = 0;
  virtual void barrier(const LaunchContext& context) = 0;

  // Any thread, at any time: pending and later calls of all ranks throw, with the reason of the
  // first abort.
  virtual void abort(std::string_view reason) noexcept = 0;

  // When all ranks had arrived at the last call, or those that sent messages were ready for it, as
  // far as the backend knows; else its beginning.
  virtual Clock::time_point last_start() const = 0;
};

}  // namespace mtrain
