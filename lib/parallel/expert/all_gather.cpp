#include <tuple>

#include "base/math.h"
#include "ops/permute.h"
#include "parallel/expert/expert_comm.h"

namespace mtrain::parallel {

namespace {

using model::ExpertRows;
using model::Step;
using model::TokenRoute;

struct AllGatherRoute : TokenRoute {
  Tensor expert_AK;     // the choices of all ranks' A tokens, until they have been read
  Event gathered = {};  // when they have arrived
  int64_t padded = 0;   // rows of each expert; 0: as many as choices
  // Known from the first send() on: the rows of this rank's experts among all choices.
  bool known = false;
  ops::ExpertRows order;
  Tensor choice_R;  // the first of order.choice_R, those with a choice; all if all experts are here
};

class AllGatherDispatcher : public model::TokenDispatcher {
 public:
  AllGatherDispatcher(std::shared_ptr<ExpertComm> comm, bool pad)
      : comm_(std::move(comm)), pad_(pad) {}

  std::shared_ptr<TokenRoute> route(Step& step, const Tensor& expert_TK,
                                    int64_t capacity) override {
    auto route = std::make_shared<AllGatherRoute>();
    if (pad_) route->padded = comm_->all().size() * capacity;
    std::tie(route->expert_AK, route->gathered) = gather(step.compute.record(), expert_TK);
    return route;
  }

  // A token travels as one row. The receiving rank makes all rows of the token from it.
  ExpertRows to_rows(Step&, TokenRoute&, const Tensor& x_TH, const Tensor& weight_TK) override {
    return {.x_RH = x_TH, .weight_R = weight_TK};
  }

  ExpertRows send(Step& step, TokenRoute& route, ExpertRows tokens) override {
    AllGatherRoute& r = of(route);
    const Event ready = tokens.ready ? tokens.ready : step.compute.record();
    ExpertRows out;
    std::tie(out.x_RH, out.ready) = gather(ready, tokens.x_RH);
    if (tokens.weight_R) std::tie(out.weight_R, out.ready) = gather(ready, tokens.weight_R);
    if (!r.known) read(step, r);
    return out;
  }

  ExpertRows by_expert(Step& step, TokenRoute& route, ExpertRows arrived) override {
    const AllGatherRoute& r = of(route);
    Stream& compute = step.compute;
    compute.wait(arrived.ready);  // edge: the tokens' transfer -> the experts
    const int64_t K = r.order.row_TK.dim(1), choices = r.order.row_TK.count(),
                  R = r.choice_R.count();
    ExpertRows rows{.x_RH = ops::permute(compute, arrived.x_RH, r.choice_R, K)};
    // A choice's weight is a row of one column, and each choice a token of its own.
    if (arrived.weight_R)
      rows.weight_R =
          ops::permute(compute, arrived.weight_R.view({choices, 1}), r.choice_R, 1).view({R});
    return rows;
  }

  Tensor first_E1(const TokenRoute& route) const override {
    return dynamic_cast<const AllGatherRoute&>(route).order.first_E1;
  }

  // Returns the sums of this rank's rows for all ranks' tokens. Choices of experts on other ranks
  // have no rows on this rank.
  ExpertRows from_experts(Step& step, TokenRoute& route, ExpertRows rows) override {
    const Tensor& row_AK = of(route).order.row_TK;
    const int64_t choices = row_AK.count(), R = rows.x_RH.dim(0);
    ExpertRows out{.x_RH = ops::unpermute(step.compute, rows.x_RH, row_AK)};
    if (rows.weight_R)
      out.weight_R =
          ops::unpermute(step.compute, rows.weight_R.view({R, 1}), row_AK.view({choices, 1}));
    return out;
  }

  ExpertRows send_back(Step& step, TokenRoute& route, ExpertRows sums) override {
    const Tensor& row_AK = of(route).order.row_TK;
    const Event ready = sums.ready ? sums.ready : step.compute.record();
    ExpertRows out;
    std::tie(out.x_RH, out.ready) = scatter(ready, sums.x_RH);
    if (sums.weight_R)
      std::tie(out.weight_R, out.ready) = scatter(ready, sums.weight_R.view(row_AK.shape()));
    return out;
  }

  model::TokenSums to_tokens(Step& step, TokenRoute&, ExpertRows arrived) override {
    step.compute.wait(arrived.ready);  // edge: the return of the sums -> their use
    return {.sum_TH = arrived.x_RH, .weight_TK = arrived.weight_R};
  }

 private:
  static AllGatherRoute& of(TokenRoute& route) { return dynamic_cast<AllGatherRoute&>(route); }

  // Waits for the choices of all ranks, and for the number of rows that this rank gets. A rank with
  // all experts has a row for each choice and need not wait for the number: rows without a choice
  // are zero.
  void read(Step& step, AllGatherRoute& r) const {
    step.compute.wait(r.gathered);  // edge: the gather of the choices -> what reads them
    r.order = ops::expert_rows(step.compute, std::exchange(r.expert_AK, {}), comm_->experts_here(),
                               comm_->first_expert(), r.padded);
    r.choice_R = r.order.choice_R;
    r.known = true;
    if (r.padded > 0 || comm_->ranks() == 1) return;
    const std::vector<int32_t> counts = read_counts(step, r.order.count_E, step.compute, [&] {
      const int64_t here = comm_->experts_here();
      return even_parts(r.order.row_TK.count() / comm_->ranks(), here);
    });
    int64_t rows = 0;
    for (const int32_t n : counts) rows += n;
    r.choice_R = r.order.choice_R.rows(0, rows);
  }

  // (T, N) -> (ranks T, N)
  std::pair<Tensor, Event> gather(const Event& ready, const Tensor& x_TN) const {
    const int64_t ranks = comm_->all().size();
    const Tensor all =
        Tensor::empty(comm_->stream(), {ranks * x_TN.dim(0), x_TN.dim(1)}, x_TN.dtype());
    Event done = comm_->enqueue(
        ready, [&](const Group&, Stream& stream) { comm_->all().all_gather(x_TN, all, stream); });
    return {all, done};
  }
  // (ranks T, N) -> (T, N)
  std::pair<Tensor, Event> scatter(const Event& ready, const Tensor& x_AN) const {
    const int64_t ranks = comm_->all().size();
    const Tensor own =
        Tensor::empty(comm_->stream(), {exact_div(x_AN.dim(0), ranks), x_AN.dim(1)}, x_AN.dtype());
    Event done = comm_->enqueue(ready, [&](const Group&, Stream& stream) {
      comm_->all().reduce_scatter(x_AN, own, comm::Reduce::sum, stream);
    });
    return {own, done};
  }

  const std::shared_ptr<ExpertComm> comm_;
  const bool pad_;
};

}  // namespace

std::unique_ptr<model::TokenDispatcher> all_gather_dispatcher(std::shared_ptr<ExpertComm> comm,
                                                              bool pad) {
  return std::make_unique<AllGatherDispatcher>(std::move(comm), pad);
}

}  // namespace mtrain::parallel
