// What the token dispatchers of a rank share: the groups of the ranks that have a layer's experts,
// and the stream of their communication.
#pragma once
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "device/stream.h"
#include "model/experts/token_dispatcher.h"
#include "model/tensor_parallel.h"

namespace mtrain::parallel {

// The ranks of tp that divide each expert between them and have other tokens each. A rank's rows
// are gathered over `tp` for all parts of the expert, whose outputs are reduce-scattered.
struct ExpertParts {
  Group tp;
  Group all;  // the ranks of ep and tp, with tp's as neighbours
};

// Brings numbers of rows to the ranks of ExpertComm::all() while rows travel, so that a host which
// needs them does not wait for those rows.
struct CountsGroup {
  Group all;
  Stream* stream;
};

// How many rows a rank sends to each rank of ep, and how many it gets from each.
struct RowCounts {
  std::vector<int64_t> sends, receives;
  // Where experts are divided: how many rows arrive from each rank of tp, as many as the most of
  // them have for these experts. What lies behind a rank's own rows is never read, except by sums
  // that are not read either.
  int64_t each = 0;
  int64_t leaving() const;  // rows that this rank sends
};

class ExpertComm {
 public:
  // `experts` counts those of all ranks; each rank has as many. `parts` is empty where a rank's
  // tokens meet whole experts, or the ranks that divide an expert have the same tokens. Without
  // `counts` numbers of rows travel behind the rows under way.
  ExpertComm(Group group, Stream& stream, int64_t experts, ExpertParts parts = {},
             std::optional<CountsGroup> counts = {});

  int ranks() const { return group_.size(); }
  int rank() const { return group_.rank(); }
  // The ranks whose tokens meet in one expert, and this rank's number among them: rank() * tp() +
  // tp_rank().
  const Group& all() const { return parts_.all ? parts_.all : group_; }
  int tp() const { return parts_.tp ? parts_.tp.size() : 1; }
  int tp_rank() const { return parts_.tp ? parts_.tp.rank() : 0; }
  int64_t experts() const { return experts_; }
  int64_t experts_here() const { return experts_ / ranks(); }
  int64_t first_expert() const { return rank() * experts_here(); }
  Stream& stream() const { return stream_; }

  // Calls `communicate(group, stream)`, whose work runs after `rows_ready`. Returns the event of
  // its end. Unless everything that compute has been given comes before `rows_ready`, the memory
  // that it writes is to be allocated on stream().
  template <class F>
  Event enqueue(const Event& rows_ready, const F& communicate) const {
    stream_.wait(rows_ready);  // edge: rows -> their way
    communicate(group_, stream_);
    return stream_.record();
  }

  // Returns count_N of each rank of all(), (ranks, N) of int32, for read_counts().
  Tensor gather_counts(Stream& compute, const Tensor& count_N) const;
  // Waits for the result of gather_counts().
  std::vector<int32_t> read_counts(model::Step& step, const Tensor& gathered) const;

  // Brings rows, which lie in the order of the ranks to which they go, to these ranks. Each of the
  // tensors has a part of every row, and all parts travel together. Returns the rows that come, in
  // the order of the ranks from which they come, and the event of their arrival. Tensors may have
  // more rows than go, and one of one dim has rows of one element. The rows leave at `ready`, and
  // those that have come over ep are then gathered over tp where experts are divided.
  std::pair<std::vector<Tensor>, Event> exchange(const Event& ready,
                                                 const std::vector<Tensor>& rows,
                                                 const RowCounts& counts) const;
  // Brings rows back at `ready`, into the memory of `into`; `counts` are those of exchange(). Where
  // experts are divided, the parts are first summed over tp, in the memory of `rows`.
  Event exchange_back(const Event& ready, const std::vector<Tensor>& rows, const RowCounts& counts,
                      const std::vector<Tensor>& into) const;
  // The same for rows with their weights, if they have some. They leave at rows.there; without it,
  // after all that compute has been given.
  model::ExpertRows exchange(Stream& compute, const model::ExpertRows& rows,
                             const RowCounts& counts) const;
  model::ExpertRows exchange_back(Stream& compute, const model::ExpertRows& rows,
                                  const RowCounts& counts) const;
  int64_t arriving(const RowCounts& counts) const;  // how many rows exchange() returns

 private:
  // Return, of the rows that arrive, this rank's part among those of tp, and what comes over ep.
  Tensor part_of_tp(const Tensor& rows, const RowCounts& counts) const;
  Tensor over_ep(const Tensor& rows, const RowCounts& counts) const;

  const Group group_;
  const ExpertParts parts_;
  const CountsGroup counts_;
  Stream& stream_;
  const int64_t experts_;
};

// Whether an earlier forward has read the numbers that read_counts() is to return.
bool knows_counts(const model::Step& step);
// Returns int32 numbers of the device, and adds the time for which the host waits to the step's. A
// recomputation finds those of the earlier forward, and needs no `counts`. `stream` wrote them.
std::vector<int32_t> read_counts(model::Step& step, const Tensor& counts, Stream& stream);

// With `pad` an expert gets as many rows from every rank as its capacity is, the last ones without
// a choice, so that all numbers are known and the host waits for none. All ranks must have the same
// number of tokens then. It has no effect while there is no capacity, as in evaluation.

// Counts travel first, and then the rows of a choice with its weight (Lepikhin et al. 2020,
// "GShard"). In between the host waits for the counts, once in each forward.
// An expert's rows keep the order of the ranks, and of each rank's tokens. Where the ranks of tp
// divide experts, rows travel over ep, are filled up to the largest number of rows of these ranks,
// and are then gathered over tp. They may travel in so many `chunks`, at most a rank's experts.
std::unique_ptr<model::TokenDispatcher> all_to_all_dispatcher(std::shared_ptr<ExpertComm> comm,
                                                              bool pad, int64_t chunks);

// Every rank gets the tokens of all, and computes the rows of its own experts. A token's rows are
// added on each rank in the order of k, and these sums while they are reduce-scattered. The host
// waits for the number of rows, unless the rank has (its part of) all experts.
std::unique_ptr<model::TokenDispatcher> all_gather_dispatcher(std::shared_ptr<ExpertComm> comm,
                                                              bool pad);

// A token travels once to each rank that has some of its experts, with these and their weights, and
// comes back as one row (DeepSeek's DeepEP). That rank adds the rows of the token's experts in
// fp32, in the order of k, and rounds the sum to the rows' type; the token's rank adds these sums
// in fp32, in the order of the ranks, and rounds once more. Gradients travel likewise. The host
// waits for counts as with all_to_all.
std::unique_ptr<model::TokenDispatcher> flex_dispatcher(std::shared_ptr<ExpertComm> comm);

// Lets `own` bring the tokens to their experts, where the ranks of `tensor` divide each expert and
// have the same tokens. Sums over these ranks what comes back: the tokens' sums, and the weights'
// gradients.
std::unique_ptr<model::TokenDispatcher> reduced_dispatcher(
    std::unique_ptr<model::TokenDispatcher> own, std::shared_ptr<model::TensorParallel> tensor);

}  // namespace mtrain::parallel
