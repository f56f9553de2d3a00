// What the token dispatchers of a rank share: the group of the ranks that have a layer's experts,
// and the stream of their communication.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "device/stream.h"
#include "model/experts/token_dispatcher.h"

namespace mtrain::parallel {

// How many rows a rank sends to each rank of ep, and how many it gets from each.
struct RowCounts {
  std::vector<int64_t> sends, receives;
  RowCounts back() const { return {receives, sends}; }
};

class ExpertComm {
 public:
  // `experts` counts those of all ranks; each rank has as many.
  ExpertComm(Group group, Stream& stream, int64_t experts);

  int ranks() const { return group_.size(); }
  int rank() const { return group_.rank(); }
  int64_t experts() const { return experts_; }
  int64_t experts_here() const { return experts_ / ranks(); }
  int64_t first_expert() const { return rank() * experts_here(); }
  Stream& stream() const { return stream_; }
  const Group& group() const { return group_; }

  // Calls `communicate(group, stream)`, whose work runs after everything that `compute` has been
  // given so far. Returns the event of its end. The memory that it writes is to be allocated on
  // compute before, so that its last use is over.
  template <class F>
  Event enqueue(Stream& compute, const F& communicate) const {
    stream_.wait(compute.record());  // edge: rows, and the last use of the memory -> their way
    communicate(group_, stream_);
    return stream_.record();
  }

  // Brings the rows of x_RN, which lie in the order of the ranks to which they go, to these ranks.
  // Returns the rows that come, in the order of the ranks from which they come, and the event of
  // their arrival. x may have more rows than go, and a tensor of one dim has rows of one element.
  std::pair<Tensor, Event> exchange(Stream& compute, const Tensor& x_RN,
                                    const RowCounts& counts) const;
  // The same for rows with their weights, if they have some.
  model::ExpertRows exchange(Stream& compute, const model::ExpertRows& rows,
                             const RowCounts& counts) const;

 private:
  const Group group_;
  Stream& stream_;
  const int64_t experts_;
};

// Whether an earlier forward has read the numbers that read_counts() is to return.
bool knows_counts(const model::Step& step);
// Returns int32 numbers of the device, and adds the time for which the host waits to the step's. A
// recomputation finds those of the earlier forward, and needs no `counts`.
std::vector<int32_t> read_counts(model::Step& step, const Tensor& counts, Stream& stream);

// With `pad` an expert gets as many rows from every rank as its capacity is, the last ones without
// a choice, so that all numbers are known and the host waits for none. All ranks must have the same
// number of tokens then. It has no effect while there is no capacity, as in evaluation.

// Counts travel first, and then the rows of a choice with its weight (Lepikhin et al. 2020,
// "GShard"). In between the host waits for the counts, once in each forward. An expert's rows keep
// the order of the ranks, and of each rank's tokens.
std::unique_ptr<model::TokenDispatcher> all_to_all_dispatcher(std::shared_ptr<ExpertComm> comm,
                                                              bool pad);

// Every rank gets the tokens of all, and computes the rows of its own experts. A token's rows are
// added on each rank in the order of k, and these sums while they are reduce-scattered.
std::unique_ptr<model::TokenDispatcher> all_gather_dispatcher(std::shared_ptr<ExpertComm> comm,
                                                              bool pad);

// A token travels once to each rank that has some of its experts, with these and their weights, and
// comes back as one row (DeepSeek's DeepEP). That rank adds the rows of the token's experts in
// fp32, in the order of k, and rounds the sum to the rows' type; the token's rank adds these sums
// in fp32, in the order of the ranks, and rounds once more. Gradients travel likewise. The host
// waits for counts as with all_to_all.
std::unique_ptr<model::TokenDispatcher> flex_dispatcher(std::shared_ptr<ExpertComm> comm);

}  // namespace mtrain::parallel
