// What the token dispatchers of a rank share: the groups of the ranks that have a layer's experts,
// and the stream of their communication.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "device/stream.h"
#include "model/experts/token_dispatcher.h"
#include "model/tensor_parallel.h"

namespace mtrain::parallel {

// The ranks of tp that divide each expert between them and have different tokens. The rows are
// gathered over `tp`, since each part of an expert needs all of them. The outputs of the parts are
// reduce-scattered.
struct ExpertParts {
  Group tp;
  Group all;  // the ranks of ep and tp, with tp's as neighbours
};

// Exchanges numbers of rows between the ranks of ExpertComm::all() while rows travel. A host that
// needs the numbers then does not wait for those rows.
struct CountsGroup {
  Group all;
  Stream* stream;
};

// How many rows a rank sends to each rank of ep, and how many it gets from each.
struct RowCounts {
  std::vector<int64_t> sends, receives;
  // If experts are divided: the number of rows that arrive from each rank of tp, which is the
  // largest of these ranks' numbers. The padding after a rank's own rows is never read, except by
  // sums that are not read either.
  int64_t each = 0;
  int64_t leaving() const;  // rows that this rank sends
};

// Returns the counts of a rank whose tokens go evenly to all experts.
using EvenCounts = std::function<std::vector<int32_t>()>;
// Divides `total` into `parts` numbers that differ by at most one; none is above `most`, if that is
// not 0.
std::vector<int32_t> even_parts(int64_t total, int64_t parts, int64_t most = 0);

class ExpertComm {
 public:
  // `experts` counts those of all ranks; all ranks have the same number. `parts` is empty if
  // experts are not divided, or if the ranks that divide an expert have the same tokens. Without
  // `counts`, numbers of rows wait for earlier rows on `stream`.
  ExpertComm(Group group, Stream& stream, int64_t experts, ExpertParts parts = {},
             std::optional<CountsGroup> counts = {});

  int ranks() const { return group_.size(); }
  int rank() const { return group_.rank(); }
  // The ranks whose tokens an expert gets. This rank's number among them is rank() * tp() +
  // tp_rank().
  const Group& all() const { return parts_.all ? parts_.all : group_; }
  int tp() const { return parts_.tp ? parts_.tp.size() : 1; }
  int tp_rank() const { return parts_.tp ? parts_.tp.rank() : 0; }
  int64_t experts() const { return experts_; }
  int64_t experts_here() const { return experts_ / ranks(); }
  int64_t first_expert() const { return rank() * experts_here(); }
  Stream& stream() const { return stream_; }

  // Calls `communicate(group, stream)`, whose work runs after `rows_ready`. Returns the event of
  // its end. The memory that it writes must be allocated on stream(), unless `rows_ready` is after
  // everything that is enqueued on compute.
  template <class F>
  Event enqueue(const Event& rows_ready, const F& communicate) const {
    stream_.wait(rows_ready);  // edge: rows -> their transfer
    communicate(group_, stream_);
    return stream_.record();
  }

  // Returns count_N of each rank of all(), (ranks, N) of int32, for read_counts().
  Tensor gather_counts(Stream& compute, const Tensor& count_N) const;
  // Waits for the result of gather_counts(); `even` is one rank's part of it on a recording device.
  std::vector<int32_t> read_counts(model::Step& step, const Tensor& gathered,
                                   const EvenCounts& even) const;

  // Sends rows, which are in the order of their target ranks, to these ranks. Each of the tensors
  // has a part of every row, and all parts travel together. Returns the rows that arrive, in the
  // order of their source ranks, and the event of their arrival. Tensors may have more rows than
  // are sent; a tensor of one dim has rows of one element. The rows leave after `ready`. If experts
  // are divided, the rows that have arrived over ep are then gathered over tp.
  std::pair<std::vector<Tensor>, Event> exchange(const Event& ready,
                                                 const std::vector<Tensor>& rows,
                                                 const RowCounts& counts) const;
  // Sends rows back after `ready`, into the memory of `into`; `counts` are those of exchange(). If
  // experts are divided, the parts are first summed over tp, in the memory of `rows`.
  Event exchange_back(const Event& ready, const std::vector<Tensor>& rows, const RowCounts& counts,
                      const std::vector<Tensor>& into) const;
  // The same for rows and, if they have weights, their weights. The rows leave after the event
  // rows.ready or, if there is none, after everything that is enqueued on compute.
  model::ExpertRows exchange(Stream& compute, const model::ExpertRows& rows,
                             const RowCounts& counts) const;
  model::ExpertRows exchange_back(Stream& compute, const model::ExpertRows& rows,
                                  const RowCounts& counts) const;
  int64_t arriving(const RowCounts& counts) const;  // how many rows exchange() returns

 private:
  // Return parts of the rows that arrive: this rank's part among those of tp, and the rows that
  // arrive over ep.
  Tensor part_of_tp(const Tensor& rows, const RowCounts& counts) const;
  Tensor over_ep(const Tensor& rows, const RowCounts& counts) const;

  const Group group_;
  const ExpertParts parts_;
  const CountsGroup counts_;
  Stream& stream_;
  const int64_t experts_;
};

// Whether an earlier forward has already read the numbers that read_counts() will return.
bool knows_counts(const model::Step& step);
// Copies int32 numbers, which `stream` wrote, to the host. Adds the time for which the host waits
// to the step's. A recomputation returns the numbers of the earlier forward and needs no `counts`.
// On a recording device no router has chosen: returns `even()`.
std::vector<int32_t> read_counts(model::Step& step, const Tensor& counts, Stream& stream,
                                 const EvenCounts& even);

// The dispatchers below take `pad`: an expert then gets the same number of rows from every rank,
// its capacity. The last of these rows may belong to no token. All counts are then known, and the
// host waits for none. All ranks must have the same number of tokens. `pad` has no effect without a
// capacity, as in evaluation.

// Counts travel first, and then the rows of a choice with its weight (Lepikhin et al. 2020,
// "GShard"). In between the host waits for the counts, once in each forward.
// An expert's rows keep the order of the ranks, and of each rank's tokens. If the ranks of tp
// divide experts, rows travel over ep, are padded to the largest number of rows of these ranks, and
// are then gathered over tp. They may travel in up to `chunks` chunks, at most one for each of a
// rank's experts.
std::unique_ptr<model::TokenDispatcher> all_to_all_dispatcher(std::shared_ptr<ExpertComm> comm,
                                                              bool pad, int64_t chunks);

// Every rank gets the tokens of all ranks, and computes the rows of its own experts. Each rank adds
// a token's rows in the order of the token's choices; a reduce-scatter adds these sums. The host
// waits for the number of rows, unless the rank has all experts, or a part of each.
std::unique_ptr<model::TokenDispatcher> all_gather_dispatcher(std::shared_ptr<ExpertComm> comm,
                                                              bool pad);

// A token travels once to each rank that has some of its experts, with the numbers and weights of
// these experts, and returns as one row (DeepSeek's DeepEP). The expert's rank adds the rows of the
// token's experts in fp32, in the order of k, and rounds the sum to the rows' type. The token's
// rank adds these sums in fp32, in the order of the ranks, and rounds once more. Gradients travel
// likewise. The host waits for counts as with all_to_all.
std::unique_ptr<model::TokenDispatcher> flex_dispatcher(std::shared_ptr<ExpertComm> comm);

// For ranks of `tensor` that divide each expert and have the same tokens. `own` brings the tokens
// to their experts. The tokens' sums and the weights' gradients that return are then summed over
// these ranks.
std::unique_ptr<model::TokenDispatcher> reduced_dispatcher(
    std::unique_ptr<model::TokenDispatcher> own, std::shared_ptr<model::TensorParallel> tensor);

}  // namespace mtrain::parallel
