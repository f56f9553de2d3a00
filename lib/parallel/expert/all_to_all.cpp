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
  // Known from the first send() on: the rows for each rank of ep and from each one, and the blocks
  // that bring rows from the order of arrival (rank of tp, rank of ep, expert, token) into that of
  // the experts.
  bool known = false;
  std::vector<int64_t> sends, receives;
  bool in_order = false;                   // the orders are the same, and there are no blocks
  std::vector<ops::CopyBlock> to_experts;  // in rows
  int64_t rows = 0;                        // of this rank's experts
  // How many rows arrive from each rank of tp: as many as the most of them have for these experts.
  // What lies behind a rank's own rows is never read, except by sums that are not read either.
  int64_t arrive_each = 0;
  Tensor first_E1;
};

std::vector<int64_t> times(std::vector<int64_t> counts, int64_t factor) {
  for (int64_t& n : counts) n *= factor;
  return counts;
}
int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t(0));
}

class AllToAllDispatcher : public model::TokenDispatcher {
 public:
  explicit AllToAllDispatcher(std::shared_ptr<ExpertComm> comm) : comm_(std::move(comm)) {}

  std::shared_ptr<TokenRoute> route(Step& step, const Tensor& expert_TK) override {
    auto route = std::make_shared<AllToAllRoute>();
    route->order = ops::expert_rows(step.compute, expert_TK, comm_->experts());
    if (knows_counts(step)) return route;
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
    return travel(
        step.compute, rows, arrived(r),
        [&](const Tensor& x, const Tensor& y, int64_t width, const Group& ep, Stream& stream) {
          const Tensor own = own_part(r, y);
          ep.all_to_all(x, times(r.sends, width), own.rows(0, sum(r.receives)),
                        times(r.receives, width), stream);
          if (comm_->tp() > 1) comm_->parts().all_gather(own, y, stream);
        });
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
    return r.in_order ? rows : ordered(step.compute, rows, ops::inverse(r.to_experts), arrived(r));
  }

  // Sums the parts of the ranks of tp in place, in the memory of `rows`.
  ExpertRows send_back(Step& step, TokenRoute& route, ExpertRows rows) override {
    const AllToAllRoute& r = of(route);
    return travel(
        step.compute, rows, r.order.choice_R.count(),
        [&](const Tensor& x, const Tensor& y, int64_t width, const Group& ep, Stream& stream) {
          const Tensor own = own_part(r, x);
          if (comm_->tp() > 1) comm_->parts().reduce_scatter(x, own, comm::Reduce::sum, stream);
          ep.all_to_all(own.rows(0, sum(r.receives)), times(r.receives, width), y,
                        times(r.sends, width), stream);
        });
  }

  model::TokenSums to_tokens(Step& step, TokenRoute& route, ExpertRows arrived) override {
    step.compute.wait(arrived.there);  // edge: the rows' way back -> their sums
    return model::sums_of_rows(step.compute, of(route).order, arrived);
  }

 private:
  static AllToAllRoute& of(TokenRoute& route) { return dynamic_cast<AllToAllRoute&>(route); }

  // Waits for the counts, and finds what travels where.
  void read(Step& step, AllToAllRoute& r) const {
    const std::vector<int32_t> counts = read_counts(step, r.counts, comm_->stream());
    r.counts = {};
    const int64_t ranks = comm_->ranks(), tp = comm_->tp(), E = comm_->experts(),
                  here = comm_->experts_here();
    // Of the tokens of rank `t` of tp and rank `from` of ep, for an expert of rank `to` of ep.
    const auto rows = [&](int64_t from, int64_t t, int64_t to, int64_t expert) {
      return int64_t(counts[size_t((from * tp + t) * E + to * here + expert)]);
    };
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
    r.sends.assign(size_t(ranks), 0), r.receives.assign(size_t(ranks), 0);
    std::vector<int64_t> of_part(static_cast<size_t>(tp));
    for (int64_t rank = 0; rank < ranks; ++rank)
      for (int64_t e = 0; e < here; ++e) {
        r.sends[size_t(rank)] += rows(comm_->rank(), comm_->tp_rank(), rank, e);
        r.receives[size_t(rank)] += rows(rank, comm_->tp_rank(), comm_->rank(), e);
        for (int64_t t = 0; t < tp; ++t) of_part[size_t(t)] += rows(rank, t, comm_->rank(), e);
      }
    r.arrive_each = *std::ranges::max_element(of_part);
    r.in_order = here == 1 && tp == 1;
    for (int64_t t = 0; !r.in_order && t < tp; ++t) {
      int64_t at = t * r.arrive_each;
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
    r.first_E1 = Tensor::from_host(step.compute, {here + 1}, std::move(first),
                                   device::MemoryCategory::activations);
    r.known = true;
  }

  // Returns how many rows arrive, and those of them that come over ep alone.
  int64_t arrived(const AllToAllRoute& r) const { return comm_->tp() * r.arrive_each; }
  Tensor own_part(const AllToAllRoute& r, const Tensor& rows) const {
    return rows.rows(comm_->tp_rank() * r.arrive_each, (comm_->tp_rank() + 1) * r.arrive_each);
  }

  // Lets rows travel, and their weights: `communicate` is called for both.
  template <class F>
  ExpertRows travel(Stream& compute, const ExpertRows& rows, int64_t received,
                    const F& communicate) const {
    const int64_t H = rows.x_RH.dim(1);
    ExpertRows out{.x_RH = Tensor::empty(compute, {received, H}, rows.x_RH.dtype())};
    if (rows.weight_R) out.weight_R = Tensor::empty(compute, {received}, DType::f32);
    out.there = comm_->enqueue(compute, [&](const Group& ep, Stream& stream) {
      communicate(rows.x_RH, out.x_RH, H, ep, stream);
      if (rows.weight_R) communicate(rows.weight_R, out.weight_R, 1, ep, stream);
    });
    return out;
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
};

}  // namespace

std::unique_ptr<model::TokenDispatcher> all_to_all_dispatcher(std::shared_ptr<ExpertComm> comm) {
  return std::make_unique<AllToAllDispatcher>(std::move(comm));
}

}  // namespace mtrain::parallel
