#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/permute.h"
#include "parallel/expert/expert_comm.h"

namespace mtrain::parallel {

namespace {

using model::ExpertRows;
using model::Step;
using model::TokenRoute;

// T tokens of this rank; each goes to at most M ranks. L rows leave, and A rows arrive. A row that
// travels stands for those of a token's K experts that one rank has. R rows are those of experts.
struct FlexRoute : TokenRoute {
  int64_t tokens = 0, choices = 0;  // T, and T K
  ops::ExpertRows to_ranks;  // rows that leave, in the order of ranks: their row_TK is (T, M)
  Tensor counts;             // (ranks, 2, ranks): rank_choices().count_2N of each rank
  Tensor expert_LK;          // the experts of each row that leaves, until they have left
  // Known from the first send() on.
  bool known = false;
  RowCounts travelling;
  int64_t leaving = 0, rows = 0;  // L and R
  Tensor expert_AK;               // until by_expert() has read them
  // Known from the first by_expert() on: the rows of this rank's experts among the choices of the
  // tokens that have arrived.
  ops::ExpertRows order;
  Tensor choice_R;  // the first of order.choice_R, those with a choice
};

class FlexDispatcher : public model::TokenDispatcher {
 public:
  explicit FlexDispatcher(std::shared_ptr<ExpertComm> comm) : comm_(std::move(comm)) {}

  std::shared_ptr<TokenRoute> route(Step& step, const Tensor& expert_TK, int64_t) override {
    auto route = std::make_shared<FlexRoute>();
    Stream& compute = step.compute;
    const int64_t ranks = comm_->ranks(), here = comm_->experts_here();
    route->tokens = expert_TK.dim(0);
    route->choices = expert_TK.count();
    const ops::RankChoices to = ops::rank_choices(compute, expert_TK, ranks, here);
    if (!knows_counts(step)) route->counts = comm_->gather_counts(compute, to.count_2N);
    route->to_ranks = ops::expert_rows(compute, to.rank_TM, ranks);
    route->expert_LK =
        ops::experts_of_rows(compute, expert_TK, to.rank_TM, route->to_ranks.choice_R, here);
    return route;
  }

  // Until the host knows how many rows leave, the tensor has the largest possible number.
  ExpertRows to_rows(Step& step, TokenRoute& route, const Tensor& x_TH,
                     const Tensor& weight_TK) override {
    const FlexRoute& r = of(route);
    const int64_t M = r.to_ranks.row_TK.dim(1);
    const Tensor choice_L = r.known ? r.to_ranks.choice_R.rows(0, r.leaving) : r.to_ranks.choice_R;
    ExpertRows rows{.x_RH = ops::permute(step.compute, x_TH, choice_L, M)};
    if (weight_TK) rows.weight_R = ops::permute(step.compute, weight_TK, choice_L, M);
    return rows;
  }

  ExpertRows send(Step& step, TokenRoute& route, ExpertRows rows) override {
    FlexRoute& r = of(route);
    if (r.known) return comm_->exchange(step.compute, rows, r.travelling);
    read(step, r);
    std::vector<Tensor> leaving{rows.x_RH, std::exchange(r.expert_LK, {})};
    if (rows.weight_R) leaving.push_back(rows.weight_R);
    const Event ready = rows.ready ? rows.ready : step.compute.record();
    const auto [arriving, done] = comm_->exchange(ready, leaving, r.travelling);
    r.expert_AK = arriving[1];
    return {.x_RH = arriving[0], .weight_R = rows.weight_R ? arriving[2] : Tensor(), .ready = done};
  }

  ExpertRows by_expert(Step& step, TokenRoute& route, ExpertRows arrived) override {
    FlexRoute& r = of(route);
    Stream& compute = step.compute;
    compute.wait(arrived.ready);  // edge: the tokens' transfer -> the experts
    if (r.expert_AK) {
      r.order = ops::expert_rows(compute, std::exchange(r.expert_AK, {}), comm_->experts_here(),
                                 comm_->first_expert());
      r.choice_R = r.order.choice_R.rows(0, r.rows);
    }
    const int64_t K = r.order.row_TK.dim(1), choices = r.order.row_TK.count();
    ExpertRows rows{.x_RH = ops::permute(compute, arrived.x_RH, r.choice_R, K)};
    // A choice's weight is a row of one column, and each choice a token of its own.
    if (arrived.weight_R)
      rows.weight_R =
          ops::permute(compute, arrived.weight_R.view({choices, 1}), r.choice_R, 1).view({r.rows});
    return rows;
  }

  Tensor first_E1(const TokenRoute& route) const override {
    return dynamic_cast<const FlexRoute&>(route).order.first_E1;
  }

  // Returns the sum of the rows of each token that has arrived, and the weights of its choices.
  ExpertRows from_experts(Step& step, TokenRoute& route, ExpertRows rows) override {
    const FlexRoute& r = of(route);
    const Tensor& row_AK = r.order.row_TK;
    ExpertRows out{.x_RH = ops::unpermute(step.compute, rows.x_RH, row_AK)};
    if (rows.weight_R)
      out.weight_R = ops::unpermute(step.compute, rows.weight_R.view({r.rows, 1}),
                                    row_AK.view({row_AK.count(), 1}))
                         .view(row_AK.shape());
    return out;
  }

  ExpertRows send_back(Step& step, TokenRoute& route, ExpertRows sums) override {
    return comm_->exchange_back(step.compute, sums, of(route).travelling);
  }

  // Only one rank returns the weight of a choice: the others' are 0.
  model::TokenSums to_tokens(Step& step, TokenRoute& route, ExpertRows arrived) override {
    const Tensor& row_TM = of(route).to_ranks.row_TK;
    step.compute.wait(arrived.ready);  // edge: the return of the sums -> the tokens' sums
    model::TokenSums sums{.sum_TH = ops::unpermute(step.compute, arrived.x_RH, row_TM),
                          .weight_TK = {}};
    if (arrived.weight_R) sums.weight_TK = ops::unpermute(step.compute, arrived.weight_R, row_TM);
    return sums;
  }

 private:
  static FlexRoute& of(TokenRoute& route) { return dynamic_cast<FlexRoute&>(route); }

  // Returns RankChoices::count_2N of tokens whose K experts are any of the E, with equal
  // probability. A token passes a rank by if it chooses K times among the other ranks' experts.
  std::vector<int32_t> even_counts(const FlexRoute& r) const {
    const int64_t ranks = comm_->ranks(), E = comm_->experts(), here = comm_->experts_here(),
                  K = r.choices / std::max<int64_t>(1, r.tokens);
    double passes = 1;
    for (int64_t k = 0; k < K; ++k)
      passes *= double(std::max<int64_t>(0, E - here - k)) / double(E - k);
    std::vector<int32_t> counts =
        even_parts(std::llround(double(r.tokens * ranks) * (1 - passes)), ranks, r.tokens);
    const std::vector<int32_t> choices = even_parts(r.choices, ranks);
    counts.insert(counts.end(), choices.begin(), choices.end());
    return counts;
  }

  // Waits for the counts of the rows that travel, and of the rows of this rank's experts.
  void read(Step& step, FlexRoute& r) const {
    const std::vector<int32_t> counts =
        comm_->read_counts(step, r.counts, [&] { return even_counts(r); });
    r.counts = {};
    const int64_t ranks = comm_->ranks(), own = comm_->rank();
    const auto of_rank = [&](int64_t from, int64_t i) {
      return counts[size_t(from * 2 * ranks + i)];
    };
    for (int64_t rank = 0; rank < ranks; ++rank) {
      r.travelling.sends.push_back(of_rank(own, rank));
      r.travelling.receives.push_back(of_rank(rank, own));
      r.leaving += of_rank(own, rank);
      r.rows += of_rank(rank, ranks + own);  // numbers of choices follow those of tokens
    }
    r.known = true;
  }

  const std::shared_ptr<ExpertComm> comm_;
};

}  // namespace

std::unique_ptr<model::TokenDispatcher> flex_dispatcher(std::shared_ptr<ExpertComm> comm) {
  return std::make_unique<FlexDispatcher>(std::move(comm));
}

}  // namespace mtrain::parallel
