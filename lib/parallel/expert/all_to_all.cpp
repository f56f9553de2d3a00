#include <numeric>

#include "model/experts/permuted_rows.h"
#include "ops/blocks.h"
#include "ops/ops.h"
#include "parallel/expert/expert_comm.h"

namespace mtrain::parallel {

namespace {

using model::ExpertRows;
using model::Step;
using model::TokenRoute;

struct AllToAllRoute : TokenRoute {
  ops::ExpertRows order;
  Tensor counts;  // (ranks, E): how many rows each rank has for each expert
  // Known from the first send() on: how many rows travel, and the blocks that bring them from the
  // order of arrival (rank, expert, token) into that of the experts.
  bool known = false;
  RowCounts travelling;
  std::vector<ops::CopyBlock> to_experts;  // in rows; empty if the orders are the same
  Tensor first_E1;
};

class AllToAllDispatcher : public model::TokenDispatcher {
 public:
  AllToAllDispatcher(std::shared_ptr<ExpertComm> comm, bool pad)
      : comm_(std::move(comm)), pad_(pad) {}

  std::shared_ptr<TokenRoute> route(Step& step, const Tensor& expert_TK,
                                    int64_t capacity) override {
    auto route = std::make_shared<AllToAllRoute>();
    const int64_t padded = pad_ ? capacity : 0;
    route->order = ops::expert_rows(step.compute, expert_TK, comm_->experts(), 0, padded);
    if (padded > 0)
      find_way(step.compute, *route, [&](int64_t, int64_t, int64_t) { return padded; });
    if (padded > 0 || knows_counts(step)) return route;
    route->counts = Tensor::empty(step.compute, {comm_->ranks(), comm_->experts()}, DType::i32);
    comm_->enqueue(step.compute, [&](const Group& group, Stream& stream) {
      group.all_gather(route->order.count_E, route->counts, stream);
    });
    return route;
  }

  ExpertRows to_rows(Step& step, TokenRoute& route, const Tensor& x_TH,
                     const Tensor& weight_TK) override {
    return model::permuted_rows(step.compute, of(route).order, x_TH, weight_TK);
  }

  ExpertRows send(Step& step, TokenRoute& route, ExpertRows rows) override {
    AllToAllRoute& r = of(route);
    if (!r.known) read(step, r);
    return comm_->exchange(step.compute, rows, r.travelling);
  }

  ExpertRows by_expert(Step& step, TokenRoute& route, ExpertRows arrived) override {
    return ordered(step.compute, std::move(arrived), of(route).to_experts);
  }

  Tensor first_E1(const TokenRoute& route) const override {
    return dynamic_cast<const AllToAllRoute&>(route).first_E1;
  }

  ExpertRows from_experts(Step& step, TokenRoute& route, ExpertRows rows) override {
    return ordered(step.compute, std::move(rows), ops::inverse(of(route).to_experts));
  }

  ExpertRows send_back(Step& step, TokenRoute& route, ExpertRows rows) override {
    return comm_->exchange(step.compute, rows, of(route).travelling.back());
  }

  model::TokenSums to_tokens(Step& step, TokenRoute& route, ExpertRows arrived) override {
    step.compute.wait(arrived.there);  // edge: the rows' way back -> their sums
    return model::sums_of_rows(step.compute, of(route).order, arrived);
  }

 private:
  static AllToAllRoute& of(TokenRoute& route) { return dynamic_cast<AllToAllRoute&>(route); }

  // Waits for the counts of the rows that travel.
  void read(Step& step, AllToAllRoute& r) const {
    const std::vector<int32_t> counts = read_counts(step, r.counts, comm_->stream());
    r.counts = {};
    find_way(step.compute, r, [&](int64_t from, int64_t to, int64_t expert) {
      const int64_t of_all = to * comm_->experts_here() + expert;
      return int64_t(counts[size_t(from * comm_->experts() + of_all)]);
    });
  }

  // Finds what travels where. rows(from, to, e) is the number of one rank's rows for an expert of
  // another rank.
  template <class Rows>
  void find_way(Stream& compute, AllToAllRoute& r, const Rows& rows) const {
    const int64_t ranks = comm_->ranks(), here = comm_->experts_here();
    r.travelling.sends.assign(size_t(ranks), 0), r.travelling.receives.assign(size_t(ranks), 0);
    std::vector<int64_t> of_expert(static_cast<size_t>(here));
    for (int64_t rank = 0; rank < ranks; ++rank)
      for (int64_t e = 0; e < here; ++e) {
        r.travelling.sends[size_t(rank)] += rows(comm_->rank(), rank, e);
        r.travelling.receives[size_t(rank)] += rows(rank, comm_->rank(), e);
        of_expert[size_t(e)] += rows(rank, comm_->rank(), e);
      }
    std::vector<int32_t> first(size_t(here) + 1);
    std::partial_sum(of_expert.begin(), of_expert.end(), first.begin() + 1);
    std::vector<int64_t> next(first.begin(), first.end() - 1);  // of each expert
    int64_t arrived = 0;
    for (int64_t rank = 0; here > 1 && rank < ranks; ++rank)
      for (int64_t e = 0; e < here; ++e) {
        const int64_t n = rows(rank, comm_->rank(), e);
        if (n > 0)
          r.to_experts.push_back({.from_row = arrived,
                                  .from_column = 0,
                                  .to_row = next[size_t(e)],
                                  .to_column = 0,
                                  .rows = n,
                                  .columns = 0});
        arrived += n, next[size_t(e)] += n;
      }
    r.first_E1 = Tensor::from_host(compute, {here + 1}, std::move(first),
                                   device::MemoryCategory::activations);
    r.known = true;
  }

  // Waits for rows that travel, and brings them into another order.
  static ExpertRows ordered(Stream& compute, ExpertRows rows,
                            const std::vector<ops::CopyBlock>& blocks) {
    compute.wait(std::exchange(rows.there, {}));  // edge: the rows' way -> the experts
    if (blocks.empty()) return rows;
    const auto copy = [&](Tensor& t, int64_t width) {
      const int64_t R = t.dim(0);
      const Tensor to = Tensor::empty(compute, t.shape(), t.dtype());
      std::vector<ops::CopyBlock> wide = blocks;
      for (ops::CopyBlock& b : wide) b.columns = width;
      ops::copy_blocks(compute, t.view({R, width}), to.view({R, width}), std::move(wide));
      t = to;
    };
    copy(rows.x_RH, rows.x_RH.dim(1));
    if (rows.weight_R) copy(rows.weight_R, 1);
    return rows;
  }

  const std::shared_ptr<ExpertComm> comm_;
  const bool pad_;
};

}  // namespace

std::unique_ptr<model::TokenDispatcher> all_to_all_dispatcher(std::shared_ptr<ExpertComm> comm,
                                                              bool pad) {
  return std::make_unique<AllToAllDispatcher>(std::move(comm), pad);
}

}  // namespace mtrain::parallel
