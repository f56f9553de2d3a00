#include <algorithm>
#include <numeric>

#include "base/math.h"
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
  Tensor counts;  // (ranks of ep x tp, E): how many rows each rank has for each expert
  // Known from the first send() on: how many rows travel, and the blocks that bring them from the
  // order of arrival (rank of tp, rank of ep, expert, token) into that of the experts.
  bool known = false;
  RowCounts travelling;
  bool in_order = false;                   // the orders are the same, and there are no blocks
  std::vector<ops::CopyBlock> to_experts;  // in rows
  int64_t rows = 0;                        // of this rank's experts
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
      find_way(step.compute, *route, [&](int64_t, int64_t, int64_t, int64_t) { return padded; });
    if (padded > 0 || knows_counts(step)) return route;
    const Group& all = comm_->all();
    route->counts = Tensor::empty(step.compute, {all.size(), comm_->experts()}, DType::i32);
    comm_->enqueue(step.compute, [&](const Group&, Stream& stream) {
      all.all_gather(route->order.count_E, route->counts, stream);
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
    const AllToAllRoute& r = of(route);
    step.compute.wait(std::exchange(arrived.there, {}));  // edge: the rows' way -> the experts
    return r.in_order ? arrived : ordered(step.compute, arrived, r.to_experts, r.rows);
  }

  Tensor first_E1(const TokenRoute& route) const override {
    return dynamic_cast<const AllToAllRoute&>(route).first_E1;
  }

  ExpertRows from_experts(Step& step, TokenRoute& route, ExpertRows rows) override {
    const AllToAllRoute& r = of(route);
    if (r.in_order) return rows;
    return ordered(step.compute, rows, ops::inverse(r.to_experts), comm_->arriving(r.travelling));
  }

  ExpertRows send_back(Step& step, TokenRoute& route, ExpertRows rows) override {
    return comm_->exchange_back(step.compute, rows, of(route).travelling);
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
    const int64_t tp = comm_->tp(), E = comm_->experts(), here = comm_->experts_here();
    find_way(step.compute, r, [&](int64_t from, int64_t t, int64_t to, int64_t expert) {
      return int64_t(counts[size_t((from * tp + t) * E + to * here + expert)]);
    });
  }

  // Finds what travels where. rows(from, t, to, e) counts those of the tokens of rank `t` of tp and
  // rank `from` of ep, for an expert of rank `to` of ep.
  template <class Rows>
  void find_way(Stream& compute, AllToAllRoute& r, const Rows& rows) const {
    const int64_t ranks = comm_->ranks(), tp = comm_->tp(), here = comm_->experts_here();
    // An expert's rows are in the order of the ranks of ep, then of tp, then of the tokens.
    std::vector<int64_t> begin{0};
    std::vector<int32_t> first{0};
    for (int64_t e = 0; e < here; ++e) {
      for (int64_t from = 0; from < ranks; ++from)
        for (int64_t t = 0; t < tp; ++t)
          begin.push_back(begin.back() + rows(from, t, comm_->rank(), e));
      first.push_back(narrow<int32_t>(begin.back()));
    }
    r.rows = begin.back();
    RowCounts& travelling = r.travelling;
    travelling.sends.assign(size_t(ranks), 0), travelling.receives.assign(size_t(ranks), 0);
    std::vector<int64_t> of_part(static_cast<size_t>(tp));
    for (int64_t rank = 0; rank < ranks; ++rank)
      for (int64_t e = 0; e < here; ++e) {
        travelling.sends[size_t(rank)] += rows(comm_->rank(), comm_->tp_rank(), rank, e);
        travelling.receives[size_t(rank)] += rows(rank, comm_->tp_rank(), comm_->rank(), e);
        for (int64_t t = 0; t < tp; ++t) of_part[size_t(t)] += rows(rank, t, comm_->rank(), e);
      }
    travelling.each = *std::ranges::max_element(of_part);
    r.in_order = here == 1 && tp == 1;
    for (int64_t t = 0; !r.in_order && t < tp; ++t) {
      int64_t at = t * travelling.each;
      for (int64_t from = 0; from < ranks; ++from)
        for (int64_t e = 0; e < here; ++e) {
          const int64_t n = rows(from, t, comm_->rank(), e);
          if (n > 0)
            r.to_experts.push_back({.from_row = at,
                                    .from_column = 0,
                                    .to_row = begin[size_t((e * ranks + from) * tp + t)],
                                    .to_column = 0,
                                    .rows = n,
                                    .columns = 0});
          at += n;
        }
    }
    r.first_E1 = Tensor::from_host(compute, {here + 1}, std::move(first),
                                   device::MemoryCategory::activations);
    r.known = true;
  }

  // Brings rows into another order, in which there are `count`.
  static ExpertRows ordered(Stream& compute, const ExpertRows& rows,
                            const std::vector<ops::CopyBlock>& blocks, int64_t count) {
    const auto copied = [&](const Tensor& t, Shape shape, int64_t width) {
      const Tensor to = Tensor::empty(compute, shape, t.dtype());
      std::vector<ops::CopyBlock> wide = blocks;
      for (ops::CopyBlock& b : wide) b.columns = width;
      ops::copy_blocks(compute, t.view({t.dim(0), width}), to.view({count, width}),
                       std::move(wide));
      return to;
    };
    const int64_t H = rows.x_RH.dim(1);
    ExpertRows out{.x_RH = copied(rows.x_RH, {count, H}, H)};
    if (rows.weight_R) out.weight_R = copied(rows.weight_R, {count}, 1);
    return out;
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
